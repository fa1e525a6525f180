"""The end of the line, when the output is written and checked: verdicts, and the manifest with its lineage."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from convertkit.containers.files import read_small
from convertkit.containers.folder import CONFIG, QUANT_CONFIG
from convertkit.containers.strict_json import parse_json
from convertkit.conversion.carry import CARRIED_KEY, Carried, leftovers
from convertkit.conversion.failures import write_failure
from convertkit.conversion.place import Place
from convertkit.conversion.plan import Plan
from convertkit.conversion.staging import Staging, write_small
from convertkit.errors import ConvertError, raise_all, refusal
from convertkit.hub.address import origin_of
from convertkit.release.inventory import unlistable_among
from convertkit.release.tree import walk
from convertkit.verbs.case import Case, Options, Report
from convertkit.verbs.manifest import manifest


def refuse_leftovers(place: Place) -> None:
    """Refuse, before any work, what an old output holds that the manifest of the new one could not list.

    Raises ``ConvertError`` as the manifest would at the end: E_NAME_UNSAFE, E_NOT_REGULAR, E_PATH_CASE.
    """
    kept = leftovers(place)
    if kept:
        raise_all(unlistable_among(walk(place.out), kept))


def source_rows(plan: Plan, digests: Mapping[str, str]) -> tuple[Mapping[str, Any], ...]:
    """Weight files and the JSON that decided the output, with sizes and digests. Raises E_CHANGED if the JSON is not
    what the plan was made from any more."""
    root = plan.source.root
    rows = [
        {"path": file.name, "size_bytes": file.size_bytes, "sha256": digests[file.name]} for file in plan.source.files
    ]
    for name, used in ((CONFIG, plan.source.config), (QUANT_CONFIG, plan.source.quant_config)):
        if used:
            data = read_small(root, name)
            if parse_json(data, name) != used:
                raise refusal("E_CHANGED", "the file changed after it was read", file=name,
                              fix="run again when nothing writes to the source")  # fmt: skip
            rows.append({"path": name, "size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    return tuple(sorted(rows, key=lambda row: str(row["path"])))


def judge(reports: Sequence[Report], staging: Staging, options: Options) -> bool:
    """Write the reports into the output; True if one says no and it is to be published all the same."""
    for report in reports:
        for name, data in report.files.items():
            write_small(staging, name, data)
    errors = [item for report in reports for item in report.findings if item.severity == "error"]
    if options.report_dir is not None and (errors or staging.place.kind == "file"):
        try:
            options.report_dir.mkdir(parents=True, exist_ok=True)
            for report in reports:
                for name in report.files:
                    shutil.copyfile(staging.files / name, options.report_dir / name)
        except OSError as error:  # a verdict is told all the same, and counts
            raise ConvertError([*errors, *write_failure(error, options.report_dir).findings]) from error
    if errors and not options.publish_anyway:
        raise ConvertError(errors, status=1)
    return bool(errors)


def list_output(
    case: Case, reports: Sequence[Report], carried: Carried, staging: Staging, options: Options
) -> dict[str, Any]:
    """List the staged folder. What was carried over is named, so that the next ``--force`` carries it again."""
    digests = dict(case.file_sha256)
    for report in reports:
        digests.update((name, hashlib.sha256(data).hexdigest()) for name, data in report.files.items())
    parameters = dict(case.plan.parameters)
    if carried.carried:
        parameters[CARRIED_KEY] = list(carried.carried)
    lineage = {
        "source": {"files": [dict(row) | origin_of(case.plan.source.root) for row in case.source_files]},
        "plan": {"verb": case.plan.verb, "fingerprint": case.plan.fingerprint, "parameters": parameters},
    }
    return manifest(
        case.staged,
        follows=staging.place.out if staging.place.existing == "old" else None,
        digests=digests,
        tensors=case.tensor_sha256,
        lineage=lineage,
        workers=options.workers,
    )
