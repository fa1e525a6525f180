"""RENAME_REPORT.json: names before and after, and where every byte lies before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.conversion.renaming import Rename, tensors_by_file
from convertkit.errors import Finding
from convertkit.layouts.rules import families
from convertkit.release.recorded import Recorded
from convertkit.release.reports import envelope, render_report
from convertkit.verbs.case import Case, Report, Reporter
from convertkit.verbs.edit_keys import Edited
from convertkit.verbs.reporting import report_of

RENAME = "RENAME_REPORT.json"


def report_parts(change: Rename) -> dict[str, Any]:
    """What is renamed, by rule and by family: for people and ``--json``."""
    renaming = change.renaming
    return {
        "renamed": len(renaming.names),
        "config_entries": change.config.changed,
        "rules": _rules(change),
        "families": [
            {"template": family.template, "count": len(family.names), "first": family.names[0],
             "becomes": renaming.names[family.names[0]]}
            for family in families(renaming.names).values()
        ],
    }  # fmt: skip


def _rules(change: Rename) -> list[dict[str, Any]]:
    renaming = change.renaming
    return [
        {"rule": str(rule), "renamed": count, "settled": settled}
        for rule, count, settled in zip(renaming.rules, renaming.counts, renaming.settled, strict=True)
    ]


def rename_report(change: Rename) -> Reporter:
    """The report of a new output, made by the line."""

    def report(case: Case) -> Report:
        source = case.plan.source
        starts = {name: start for file in case.plan.files for name, start in file.header.starts.items()}
        rows = list(_rows(source, change, starts, case.tensor_sha256))
        files = [
            _file_row(before.name, "new file", before.size_bytes, after.header.size_bytes, before.data_start,
                      len(after.header.prefix), None)
            for before, after in zip(source.files, case.plan.files, strict=True)
        ]  # fmt: skip
        return report_of(RENAME, "rename-report", case, rows, _summary(change, "new", len(rows), files), ())

    return report


def _summary(change: Rename, mode: str, tensors: int, files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "mode": mode,
        "tensors": tensors,
        "renamed": len(change.renaming.names),
        "config_entries": change.config.changed,
        "rules": _rules(change),
        "files": list(files),
    }


def _file_row(
    path: str, method: str, size: int, new_size: int, start: int, new_start: int, payload_sha256: str | None
) -> dict[str, Any]:
    return {
        "path": path,
        "method": method,
        "size_before": size,
        "size_after": new_size,
        "data_start_before": start,
        "data_start_after": new_start,
        "payload_bytes": size - start,
        "payload_sha256": payload_sha256,
    }


def _rows(
    source: Checkpoint, change: Rename, starts: Mapping[str, int], sha256: Mapping[str, str]
) -> Iterable[dict[str, Any]]:
    """One row per tensor in the order of files and bytes; ``starts`` and ``sha256`` go by new names."""
    for file, refs in tensors_by_file(source).items():
        for ref in refs:
            new = change.renaming.new_name(ref.spec.name)
            yield {
                "name": new,
                "was": ref.spec.name,
                "file": file,
                "dtype": ref.spec.dtype,
                "shape": list(ref.spec.shape),
                "size_bytes": ref.size_bytes,
                "start_before": ref.start,
                "start_after": starts[new],
                "sha256": sha256.get(new),
            }


def edited_report(
    source: Checkpoint,
    change: Rename,
    known: Recorded,
    made: Edited,
    parameters: Mapping[str, Any],
    findings: Sequence[Finding],
    with_rows: bool,
) -> tuple[dict[str, Any], Mapping[str, bytes]]:
    """The parts for ``--json`` of a change in place and, if asked for, the report's files."""
    files = [
        _file_row(name, made.moved.get(name, "untouched"), old, new, start, new_start, made.payload_sha256.get(name))
        for name, (old, new, start, new_start, _) in made.sizes.items()
    ]
    parts = {**report_parts(change), "files": files}
    if not with_rows:
        return parts, {}
    shift = {name: sizes[3] - sizes[2] for name, sizes in made.sizes.items()}
    starts = {change.renaming.new_name(name): ref.start + shift[ref.file] for name, ref in source.tensors.items()}
    sha256 = {change.renaming.new_name(name): digest for name, digest in known.tensors.items()}
    rows = list(_rows(source, change, starts, sha256))
    document = envelope(
        "rename-report",
        source=[
            {"path": name, "size_bytes": sizes[0], "sha256": _digest(known, name)} for name, sizes in made.sizes.items()
        ],
        output=[
            {"path": name, "size_bytes": sizes[1], "sha256": made.file_sha256.get(name)}
            for name, sizes in made.sizes.items()
        ],
        verb="fix-keys",
        fingerprint=None,
        parameters=parameters,
        summary=_summary(change, "in place", len(rows), files),
        findings=findings,
    )
    return parts, render_report(RENAME, document, rows).files


def _digest(known: Recorded, path: str) -> str | None:
    entries = () if known.manifest is None else known.manifest.files
    return next((entry.sha256 for entry in entries if entry.path == path and not entry.is_pending), None)
