"""``repair``: put right what is wrong around the weights, and say what provably stayed the same."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from convertkit import __version__
from convertkit.checks.bench import Evidence
from convertkit.checks.surgery import FoldedEvidence
from convertkit.containers.folder import CONFIG, QUANT_CONFIG, open_checkpoint
from convertkit.containers.loose import Loose, open_loose
from convertkit.containers.reader import Reader
from convertkit.containers.strict_json import dump_config
from convertkit.conversion.identify import identify
from convertkit.conversion.metadata import METADATA
from convertkit.conversion.place import check_place
from convertkit.conversion.plan import DEFAULT_SHARD_BYTES, Draft, Plan, settle
from convertkit.conversion.renaming import has_config, refuse_gguf
from convertkit.conversion.repair_work import RepairRequest, Work
from convertkit.conversion.repairs import Repair, apply_repairs
from convertkit.conversion.units import Copy
from convertkit.errors import Finding, check_text, finding, refusal, shown
from convertkit.hub.arguments import from_hub
from convertkit.layouts.fusions import EXPERT_FORMS
from convertkit.verbs.beside import Beside
from convertkit.verbs.case import Case, Options, Report, Reporter, Result
from convertkit.verbs.line import carry_out
from convertkit.verbs.planned import DryRun
from convertkit.verbs.reporting import report_of

REPAIR = "REPAIR_REPORT.json"
ONE_FILE_BYTES = 1 << 62
"""A shard size that keeps everything in one file."""


@dataclass(frozen=True)
class Untouched:
    """Nothing was to be repaired, so nothing was written."""

    document: Mapping[str, Any]
    findings: tuple[Finding, ...]


@from_hub("source")
def repair(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    request: RepairRequest,
    *,
    header_slack_bytes: int = 0,
    only_plan: bool = False,
    options: Options = Options(),
) -> Result | DryRun | Untouched:
    """Carry out the repairs of ``request`` from ``source`` into the new folder ``out``.

    Tensors that no repair names are copied byte for byte. With ``rebuild_index`` or ``dedupe`` the folder is opened
    by the headers of its files, whatever its index says.

    Raises:
        ConvertError: see ``docs/errors.md``; a repair that would change the model without being told to is refused.
    """
    if request.merge and request.shard_bytes is not None:
        raise refusal("E_USAGE", "--shard and --merge exclude each other")
    if request.drop and request.keep:
        raise refusal("E_USAGE", "--drop and --keep exclude each other")
    if request.metadata.get("format", "pt") != "pt":
        raise refusal("E_USAGE", "format is always 'pt': readers of PyTorch models refuse other files")
    for pair in request.metadata.items():
        check_text("=".join(pair), "--metadata")
    if request.d2t_holds is not None and request.d2t is None:
        raise refusal("E_USAGE", "--d2t-holds goes with --d2t", fix="--d2t offsets is what readers expect")
    if (request.groups or request.allow_loss) and not request.tie_scales:
        raise refusal("E_USAGE", "--group and --allow-loss go with --tie-scales")
    loose = _open(Path(source), request)
    checkpoint = loose.checkpoint
    refuse_gguf(checkpoint, "repair")
    check_place(Path(out), checkpoint.paths, force=options.force or only_plan)
    with Reader(checkpoint) as reader:
        work = Work(checkpoint, identify(checkpoint), reader, loose.repeated, loose.lost, loose.strays)
        work.config, work.quant_config = _copy(checkpoint.config), _copy(checkpoint.quant_config)
        for file in checkpoint.files:
            work.metadata.update(file.metadata)
        rows = apply_repairs(work, request)
    if not work.effects:
        return _untouched(work)
    plan = _plan(work, request, rows, header_slack_bytes)
    stacked = ["E_PACK_STACKED"] if EXPERT_FORMS.keys() & set(request.fuse) else []
    beside = Beside(checkpoint, stacked, options.engines)
    if only_plan:
        return beside.foreseen(plan)
    return carry_out(plan, Path(out), [_repair_report(work, rows), beside.report], options)


def _open(path: Path, request: RepairRequest) -> Loose:
    if not (request.rebuild_index or request.dedupe) or not path.exists():
        return Loose(open_checkpoint(path), {}, ())
    if not path.is_dir():
        raise refusal("E_USAGE", "--rebuild-index and --dedupe work on a folder", fix=f"name it: {shown(path.parent)}")
    loose = open_loose(path)
    if loose.repeated and not request.dedupe:
        first = next(iter(loose.repeated))
        files = ", ".join(ref.file for ref in loose.repeated[first])
        raise refusal(
            "E_INDEX_MISMATCH", f"{len(loose.repeated)} tensors are held by several files, this one by {files}",
            tensor=first, fix="add --dedupe, which keeps one if they are equal",
        )  # fmt: skip
    return loose


def _copy(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in config.items()}


def _untouched(work: Work) -> Untouched:
    findings = (*work.findings, finding("N_NOTHING_TO_DO", "note", "nothing to do: there is nothing of the kind here"))
    document = {
        "schema": "convertkit.untouched/1",
        "tool": {"name": "convertkit", "version": __version__},
        "verb": "repair",
        "findings": [item.as_json() for item in findings],
    }
    return Untouched(document, findings)


def _plan(work: Work, request: RepairRequest, rows: Iterable[Repair], slack_bytes: int) -> Plan:
    documents = {}
    if work.config or has_config(work.source):
        documents[CONFIG] = dump_config(work.config)
    if work.quant_config:
        documents[QUANT_CONFIG] = dump_config(work.quant_config)
    metadata = dict(sorted({**METADATA, **work.metadata}.items()))
    parameters = {**asdict(request), "metadata": metadata, "repairs": [row.option for row in rows]}
    notes = [finding("N_DROPPED", "note", reason, tensor=name) for name, reason in work.dropped.items()]
    draft = Draft(
        "repair", parameters, work.units(), work.drops(), documents, (*work.findings, *notes), metadata=metadata
    )
    sharded = len(work.source.files) > 1 and not request.merge
    size = request.shard_bytes or (DEFAULT_SHARD_BYTES if sharded else ONE_FILE_BYTES)
    return settle(work.source, draft, size, slack_bytes)


def _repair_report(work: Work, rows: Iterable[Repair]) -> Reporter:
    """REPAIR_REPORT.json: every tensor with its promise, and what was dropped."""
    repairs = tuple(rows)

    def report(case: Case) -> Report:
        made = [row for item in case.evidence for row in _rows(item, case, work)]
        dropped = [_dropped(work, name, reason) for name, reason in work.dropped.items()]
        summary = {
            "repairs": list(work.effects),
            "tensors": len(made),
            "same": sum(row["promise"] == "bytes" for row in made),
            "changed": sum(row["promise"] != "bytes" for row in made),
            "dropped": len(dropped),
            "changed_values": sum(row.get("changed_values", 0) for row in made),
            "cures": sorted({code for row in repairs for code in row.cures}),
        }
        found = tuple(item for item in work.findings if item.severity != "error")
        written = report_of(REPAIR, "repair-report", case, [*made, *dropped], summary, found)
        return replace(written, findings=())  # the plan has said them

    return report


def _rows(item: Evidence, case: Case, work: Work) -> Iterable[dict[str, Any]]:
    unit = item.unit
    option = None if isinstance(unit, Copy) else work.owner[unit.inputs[0]]
    folded = next((detail for detail in item.details if isinstance(detail, FoldedEvidence)), None)
    for spec in unit.outputs:
        note = ""
        if isinstance(unit, Copy) and unit.name != unit.source.spec.name:
            note = f"was {unit.source.spec.name}"
            option = work.owner.get(unit.source.spec.name)
        row: dict[str, Any] = {
            "name": spec.name,
            "repair": option,
            "promise": unit.promise,
            "inputs": list(unit.inputs),
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "sha256": case.tensor_sha256[spec.name],
            "note": note,
        }
        if folded is not None and spec == unit.outputs[0]:
            row["changed_values"] = folded.changed_values
            row["note"] = f"global scale 0x{folded.before_bits:08x} became 0x{folded.after_bits:08x}"
        yield row


def _dropped(work: Work, name: str, reason: str) -> dict[str, Any]:
    spec = work.source.tensors[name].spec
    return {
        "name": name,
        "repair": work.owner.get(name),
        "promise": "dropped",
        "inputs": [name],
        "dtype": spec.dtype,
        "shape": list(spec.shape),
        "sha256": None,
        "note": reason,
    }
