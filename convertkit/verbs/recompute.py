"""Computing the reports of a release anew, from the weights alone, and comparing them with what they state.

An expansion is compared element by element with the pack that it was made from, by the gate, which shares no code
with what expanded it. Audits are made again. A fidelity gate needs what the pack was made from; where that is not
given, a note says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convertkit.checks.engines import audit_engines
from convertkit.checks.fidelity import DEFAULT_LIMITS
from convertkit.checks.target import read_target
from convertkit.containers.folder import open_any
from convertkit.conversion.identify import identify
from convertkit.engines.rules import parse_engine
from convertkit.errors import ConvertError, Finding, finding, shown
from convertkit.progress import Progress
from convertkit.release.paths import folder_of
from convertkit.release.summary import AUDIT, EXPANSION, GATE, RELEASE_REPORT, read_report
from convertkit.verbs.audit import audit
from convertkit.verbs.gate import gate

UNLIMITED: Mapping[str, float | None] = dict.fromkeys(DEFAULT_LIMITS)
DTYPES = {"BF16": "bf16", "F16": "f16", "F32": "f32"}
AUDITED = ("layout", "kind", "dialect", "tensors", "packed_linears", "dense_linears", "fused_groups", "errors")
MEASURED = ("elements", "changed", "flushed_blocks", "saturated", "rel_rms", "sqnr_db", "cosine", "max_abs_error")
TOLERANCE = 1e-6
"""Relative; two checkers add the same squares in different tiles. Counts must be equal."""


@dataclass(frozen=True)
class Recomputed:
    """Paths of the reports that were computed anew, and what is not as they state."""

    reports: tuple[str, ...]
    findings: tuple[Finding, ...]


def recompute(
    root: Path,
    paths: Iterable[str],
    source: str | os.PathLike[str] | None,
    target_model: str | os.PathLike[str] | None,
    workers: int,
    progress: Progress,
) -> Recomputed:
    """Compute every report among ``paths`` anew. Codes: E_RECOMPUTE, W_NOT_RECOMPUTED, and those of a source or pack
    that cannot be read."""
    reports = {path: read_report(root, path) for path in sorted(paths) if path.rpartition("/")[2] in MAKERS}
    work = Work(root, reports, source, target_model, workers, progress)
    done: list[str] = []
    findings: list[Finding] = []
    for path in reports:
        try:
            found = list(MAKERS[path.rpartition("/")[2]](work, path))
        except ConvertError as error:
            found = list(error.findings)
        findings.extend(found)
        if all(item.code != "W_NOT_RECOMPUTED" for item in found):
            done.append(path)
    return Recomputed(tuple(done), tuple(findings))


@dataclass(frozen=True)
class Work:
    """The folder, its reports by path, and what the user gave."""

    root: Path
    reports: Mapping[str, Mapping[str, Any]]
    source: str | os.PathLike[str] | None
    target_model: str | os.PathLike[str] | None
    workers: int
    progress: Progress

    def holding(self, files: Sequence[Mapping[str, Any]], but: str) -> str | None:
        """The folder whose reports state the very weights in ``files``; None if the release has none."""
        wanted = _weights(files)
        for path, report in self.reports.items():
            folder = folder_of(path)
            beside = path.rpartition("/")[2] != RELEASE_REPORT and folder != but
            if beside and wanted and _weights(report["output"]["files"]) == wanted:
                return folder
        return None


def _weights(files: Sequence[Mapping[str, Any]]) -> set[str]:
    return {str(item["sha256"]) for item in files if str(item["path"]).endswith((".safetensors", ".gguf"))}


def _differs(path: str, what: str, stated: object, found: object) -> Finding:
    message = f"{what}: the report states {shown(stated)}, computed anew it is {shown(found)}"
    return finding("E_RECOMPUTE", "error", message, file=path, fix="make the report anew from these weights")


def _not_done(path: str, why: str, fix: str = "") -> Finding:
    return finding("W_NOT_RECOMPUTED", "note", why, file=path, fix=fix)


def _expansion(work: Work, path: str) -> Iterator[Finding]:
    report, folder = work.reports[path], folder_of(path)
    pack = work.holding(report["source"]["files"], folder)
    dtype = DTYPES.get(str(report["plan"]["parameters"].get("dtype")))
    if report["plan"]["parameters"].get("arithmetic", "exact") != "exact" or dtype is None:
        yield _not_done(path, "only exact expansions are computed anew")
        return
    if pack is None and work.source is None:
        yield _not_done(path, "the pack that was expanded is not here", "--source PACK")
        return
    packed = work.root / pack if pack is not None else Path(work.source or "")
    found = gate(packed, work.root / folder, limits=UNLIMITED, stored=dtype, workers=work.workers,
                 progress=work.progress)  # fmt: skip
    whole, summary = found.document["summary"]["whole"], report["summary"]
    if whole["changed"] != summary["differing"]:
        yield _differs(path, "differing elements", summary["differing"], whole["changed"])
    yield from (
        finding("E_RECOMPUTE", "error", item.message, file=path, tensor=item.where.tensor)
        for item in found.findings
        if item.severity == "error"
    )


def _audited(work: Work, path: str) -> Iterator[Finding]:
    found = audit(work.root / folder_of(path)).document["summary"]
    stated = work.reports[path]["summary"]
    for key in AUDITED:
        if key in stated and stated[key] != found.get(key):
            yield _differs(path, key.replace("_", " "), stated[key], found.get(key))


def _gated(work: Work, path: str) -> Iterator[Finding]:
    report, folder = work.reports[path], folder_of(path)
    inside = work.holding(report["source"]["files"], folder)
    if report["summary"].get("as_served"):
        yield _not_done(path, "it measures what an engine serves")
        return
    if inside is None and work.source is None:
        yield _not_done(path, "what the pack was made from is not here", "--source SRC")
        return
    reference = work.root / inside if inside is not None else Path(work.source or "")
    found = gate(work.root / folder, reference, limits=UNLIMITED, workers=work.workers, progress=work.progress)
    rows = {row["name"]: row["metrics"] for row in found.rows if row["scope"] == "tensor" and "metrics" in row}
    for row in report.get("rows", ()):
        if row["scope"] != "tensor" or "metrics" not in row:
            continue
        for key in MEASURED:
            mine, theirs = rows.get(row["name"], {}).get(key), row["metrics"].get(key)
            if not _same(mine, theirs):
                yield _differs(path, f"{key} of '{shown(row['name'])}'", theirs, mine)
                break


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, (int, float)) and not isinstance(other, bool):
        return abs(one - other) <= TOLERANCE * max(abs(one), abs(other), TOLERANCE)
    return bool(one == other)


def _released(work: Work, path: str) -> Iterator[Finding]:
    """The verdicts of engines."""
    report = work.reports[path]
    wishes = report["plan"]["parameters"].get("engines", ())
    ranks = {item["name"].lower(): item.get("tensor_parallel", 1) for item in wishes}
    if report["plan"]["parameters"].get("has_target_model") and work.target_model is None:
        yield _not_done(path, "the engines were asked beside a target that is not here", "--target-model DIR")
        return
    target = None if work.target_model is None else read_target(work.target_model)
    for row in report["summary"]["engines"]:
        folder = work.root / row["variant"]
        if not folder.is_dir() or not any(folder.glob("*.safetensors")):
            continue
        checkpoint = open_any(folder)
        asked = parse_engine(f"{row['engine']}@{row['version']}")
        (view,) = audit_engines(checkpoint, identify(checkpoint), [asked], target, ranks.get(row["engine"], 1)).views
        if view["verdict"] != row["verdict"]:
            yield _differs(path, f"{row['title']} with {row['variant']}", row["verdict"], view["verdict"])


MAKERS = {EXPANSION: _expansion, AUDIT: _audited, GATE: _gated, RELEASE_REPORT: _released}
"""By name of the report."""
