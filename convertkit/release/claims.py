"""What other files of a release claim about its bytes: reports, and the manifests of subfolders."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from convertkit.containers.files import read_small
from convertkit.containers.strict_json import parse_json
from convertkit.errors import ConvertError, Finding, finding, shown
from convertkit.release.manifest_reader import read_manifest
from convertkit.release.paths import MANIFEST, SUMS, folder_of, join, path_fault
from convertkit.release.provenance import PROVENANCE
from convertkit.release.sums import read_sums

REPORTS = (
    "DEQUANT_REPORT.json",
    "FIDELITY_GATE.json",
    "LOAD_SHAPE_AUDIT.json",
    "RENAME_REPORT.json",
    "REPAIR_REPORT.json",
    "GGUF_REPORT.json",
    "RELEASE_REPORT.json",
)
OURS = "convertkit."


def check_claims(root: Path, paths: Iterable[str], stated: Mapping[str, str], *, rows: bool) -> list[Finding]:
    """Findings about the reports and nested manifests among ``paths``.

    ``stated`` are the digests of all files by the manifest of the whole release (by path from the root). Whether the
    files have them is checked elsewhere, so a damaged file is not the fault of its report too. ``rows`` validates the
    rows of reports, not only their envelopes.
    """
    findings: list[Finding] = []
    paths = tuple(paths)
    for path in paths:
        name, folder = path.rpartition("/")[2], folder_of(path)
        try:
            if name in REPORTS:
                findings.extend(_check_report(root, path, stated, rows, frozenset(paths)))
            elif name == PROVENANCE:
                from convertkit.release.release_claims import provenance_faults

                findings.extend(provenance_faults(root, path, stated))
            elif folder and name in (MANIFEST, SUMS):
                findings.extend(_check_nested(root, path, stated))
        except ConvertError as error:
            findings.extend(error.findings)
    return findings


def _check_report(
    root: Path, path: str, stated: Mapping[str, str], rows: bool, sound: Collection[str]
) -> Iterable[Finding]:
    """A report of ours must follow its schema and be about the files that lie beside it."""
    document = parse_json(read_small(root, path), path)
    if not isinstance(document, dict) or not str(document.get("schema")).startswith(OURS):
        return
    faults = _schema_faults(root, path, document, rows)
    if faults:
        yield from faults
        return
    yield from _count_faults(root, path, document, stated, sound)
    for claim in _claimed(document):
        yield from _check_claim(path, claim, stated)
    if document.get("verdict") == "fail":
        yield finding("W_REPORT_VERDICT", "warning", "the report records a failed check", file=path,
                      fix="read the report before you use these files")  # fmt: skip


COUNTED = ("tensors", "expanded", "respelled", "elements", "differing", "unrecovered")
"""Counts in the summary of a DEQUANT_REPORT that its rows add up to."""


def _count_faults(
    root: Path, path: str, document: Mapping[str, Any], stated: Mapping[str, str], sound: Collection[str]
) -> Iterable[Finding]:
    """A summary must be the sum of its rows, so that an edited one is noticed even under a new manifest."""
    from convertkit.release.release_claims import gate_faults, release_faults

    name = path.rpartition("/")[2]
    if name == "RELEASE_REPORT.json":
        yield from release_faults(root, path, stated, sound)
    elif name == "FIDELITY_GATE.json":
        yield from gate_faults(root, path)
    elif name == "DEQUANT_REPORT.json":
        yield from _expansion_faults(root, path, document)


def _expansion_faults(root: Path, path: str, document: Mapping[str, Any]) -> Iterable[Finding]:
    from convertkit.release.rows import dequant_summary
    from convertkit.release.summary import read_report

    counted = dequant_summary(read_report(root, path)["rows"])
    for key in COUNTED:
        stated = document["summary"].get(key)
        if stated != counted[key]:
            yield finding(
                "E_REPORT_COUNTS", "error", f"the summary states {shown(stated)} {key}, the rows have {counted[key]}",
                file=path, fix="fetch the report again, or make it anew",
            )  # fmt: skip


def _claimed(document: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Files beside the report whose digests it states: its outputs and its rows."""
    yield from document.get("output", {}).get("files", ())
    if "rows_file" in document:
        yield document["rows_file"]


def _check_claim(report: str, claim: Mapping[str, Any], stated: Mapping[str, str]) -> Iterable[Finding]:
    name, sha256 = claim["path"], claim["sha256"]
    fault = path_fault(name)
    if fault is not None:
        yield finding("E_REPORT_SCHEMA", "error", f"{fault}: '{shown(name)}'", file=report)
        return
    file = join(folder_of(report), name)
    if sha256 is None:  # the report was made without reading the file, and says so
        return
    if stated.get(file) != sha256:
        what = "has other bytes" if file in stated else "is not part of the release"
        yield finding(
            "E_REPORT_BYTES", "error", f"the report is about other bytes: '{shown(file)}' {what}", file=report,
            fix="fetch report and weights of one release, or make the report anew",
            data={"file": file, "report": sha256, "manifest": stated.get(file)},
        )  # fmt: skip


def _schema_faults(root: Path, path: str, document: Mapping[str, Any], rows: bool) -> list[Finding]:
    from convertkit.release.reports import report_faults

    return report_faults(root, path, document, rows=rows)


def _check_nested(root: Path, path: str, stated: Mapping[str, str]) -> Iterable[Finding]:
    """A subfolder's own manifest must hold when the subfolder is downloaded alone.

    Paths that it lists and that are not part of the release are no claim about these files.
    """
    folder = folder_of(path)
    try:
        if path.endswith(MANIFEST):
            nested = {entry.path: entry.sha256 for entry in read_manifest(root, folder).manifest.files}
        else:
            nested = read_sums(read_small(root, path), path)
    except ConvertError:
        return  # an ordinary file that happens to have the name
    for name, sha256 in sorted(nested.items()):
        file = join(folder, name)
        if stated.get(file, sha256) != sha256:
            yield finding(
                "E_MANIFEST_CONFLICT", "error", f"it lists other bytes for '{shown(file)}'", file=path,
                fix=f"run `convertkit manifest` on {shown(folder)} first, then on the whole folder",
            )  # fmt: skip
