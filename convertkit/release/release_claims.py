"""What a release says about itself in RELEASE_REPORT.json and PROVENANCE.intoto.json, held against its other files.

Both repeat what reports and manifests state, so whoever edits one of them and writes new checksums is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from convertkit.containers.files import read_small
from convertkit.containers.strict_json import parse_json
from convertkit.errors import ConvertError, Finding, finding, shown
from convertkit.release.manifest_reader import read_manifest
from convertkit.release.paths import folder_of, join
from convertkit.release.summary import EXPANSION, GATE, expansion_of, grid_of, plain, read_report

COUNTED_METRICS = ("elements", "changed", "blocks", "flushed_blocks", "saturated", "nonfinite")


def release_faults(root: Path, path: str, stated: Mapping[str, str], sound: Collection[str]) -> Iterator[Finding]:
    """RELEASE_REPORT.json: its rows are those of the variants' reports, its source is that of the manifest.

    ``stated`` are the digests of all files by the manifest of the whole, ``sound`` the files that have theirs.
    """
    document, base = read_report(root, path), folder_of(path)
    for row in document["rows"]:
        folder = join(base, row["folder"].strip("/").removeprefix("."))
        for name, key, value in _row_claims(root, folder, row, sound):
            if row.get(key) != value:
                yield _counts(path, f"{key.replace('_', ' ')} of {row['folder']}", row.get(key), value, name)
        for item in row["reports"]:
            place = join(folder, item["name"])
            if place not in stated:
                yield _bytes(path, f"'{shown(place)}' is not part of the release")
            elif place in sound:
                yield from _report_faults(root, path, place, item, row)
    yield from _source_faults(root, path, document["source"]["files"], document["plan"].get("fingerprint"))


def _row_claims(
    root: Path, folder: str, row: Mapping[str, Any], sound: Collection[str]
) -> Iterator[tuple[str, str, Any]]:
    """(what says so, key of the row, value) for what can be looked up here."""
    weights = [join(folder, item["path"]) for item in row["weights"]]
    if all(place in sound for place in weights):
        yield "the weights", "size_bytes", sum((root / place).stat().st_size for place in weights)
    yield "its weights", "tensors", sum(item["tensors"] for item in row["weights"])
    gate, expansion = join(folder, GATE), join(folder, EXPANSION)
    if gate in sound:
        report = read_report(root, gate)
        yield gate, "fidelity", plain(report["summary"].get("whole", {}))
        yield gate, "on_grid", grid_of(report["rows"])
    if expansion in sound:
        yield expansion, "expansion", expansion_of(read_report(root, expansion))


def _report_faults(
    root: Path, path: str, place: str, item: Mapping[str, Any], row: Mapping[str, Any]
) -> Iterator[Finding]:
    report = read_report(root, place)
    if report["verdict"] != item["verdict"]:
        yield _counts(path, f"verdict of {shown(place)}", item["verdict"], report["verdict"], place)
    if report["plan"].get("fingerprint") != row["fingerprint"]:
        yield _counts(path, f"plan of {row['folder']}", row["fingerprint"], report["plan"].get("fingerprint"), place)


def provenance_faults(root: Path, path: str, stated: Mapping[str, str]) -> Iterator[Finding]:
    """PROVENANCE.intoto.json: weights and reports have the digests that it states, and so has the source."""
    document = parse_json(read_small(root, path), path)
    try:
        predicate = document["predicate"]
        named = [*document["subject"], *predicate["runDetails"]["byproducts"]]
        files = {str(item["name"]): str(item["digest"]["sha256"]) for item in named}
        plan = predicate["buildDefinition"]
        source = [{"path": item["name"], "sha256": item["digest"]["sha256"]} for item in plan["resolvedDependencies"]]
        fingerprint = plan["internalParameters"]["fingerprint"]
    except (KeyError, TypeError):
        return  # somebody else's statement
    for name, sha256 in sorted(files.items()):
        place = join(folder_of(path), name)
        if stated.get(place) != sha256:
            what = "has other bytes" if place in stated else "is not part of the release"
            yield _bytes(path, f"'{shown(place)}' {what}")
    yield from _source_faults(root, path, source, fingerprint)


def _source_faults(
    root: Path, path: str, source: Sequence[Mapping[str, Any]], fingerprint: object
) -> Iterator[Finding]:
    """The manifest beside it must name the same source, if it is that of the same plan."""
    try:
        manifest = read_manifest(root, folder_of(path)).manifest
    except ConvertError:
        return
    theirs = {str(item["path"]): str(item["sha256"]) for item in manifest.source}
    if not theirs:
        return
    if manifest.plan.get("fingerprint") != fingerprint:
        yield _bytes(path, "the manifest is that of another plan")
        return
    for item in source:
        if theirs.get(str(item["path"])) != item["sha256"]:
            yield _bytes(path, f"the manifest states another digest of the source file '{shown(item['path'])}'")


def gate_faults(root: Path, path: str) -> Iterator[Finding]:
    """FIDELITY_GATE.json: its summary is its row of the whole, whose counts are the sums of those of all weights."""
    document = read_report(root, path)
    rows = document["rows"]
    whole = next((row["metrics"] for row in rows if row["scope"] == "whole"), None)
    if whole is not None and document["summary"]["whole"] != whole:
        yield _counts(path, "the whole", "the summary", "otherwise", "its rows")
        return
    parts = [row["metrics"] for row in rows if row["scope"] == "tensor" and "metrics" in row]
    for key in COUNTED_METRICS:
        found = sum(part.get(key) or 0 for part in parts)
        if whole is not None and key in whole and whole[key] != found:
            yield _counts(path, key.replace("_", " "), whole[key], found, "its rows")


def _counts(path: str, what: str, stated: object, found: object, where: str) -> Finding:
    message = f"{what}: it states {_short(stated)}, {where} {_short(found)}"
    return finding("E_REPORT_COUNTS", "error", message, file=path, fix="fetch the report again, or make it anew")


def _short(value: object) -> str:
    text = shown(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= 80 else f"{text[:77]}..."


def _bytes(path: str, what: str) -> Finding:
    message = f"it is about another release: {what}"
    return finding("E_REPORT_BYTES", "error", message, file=path, fix="fetch all files of one release")
