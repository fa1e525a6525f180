"""Computing the reports of a release anew, from the weights alone, and comparing them with what they state.

An expansion is compared element by element with the pack that it was made from, by the gate, which shares no code
with what expanded it. Audits are made again. A fidelity gate needs what the pack was made from; where that is not
given, a note says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from convertkit import __version__
from convertkit.checkpoint import Checkpoint
from convertkit.checks.engines import audit_engines
from convertkit.checks.fidelity import DEFAULT_LIMITS, Tally, metrics, total
from convertkit.checks.gate import compare_checkpoints, weights_of
from convertkit.checks.target import read_target
from convertkit.containers.files import read_small
from convertkit.containers.folder import open_any, open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.conversion.desk import Desk
from convertkit.conversion.identify import identify
from convertkit.conversion.stop import Stop
from convertkit.conversion.tiles import Buffers
from convertkit.dialects.planes import find_packed
from convertkit.dtypes import FLOAT_WORDS
from convertkit.engines.rules import parse_engine
from convertkit.errors import ConvertError, Finding, finding, shown
from convertkit.progress import Progress
from convertkit.release.page import render_page
from convertkit.release.page_parts import text
from convertkit.release.paths import PAGE, folder_of, join
from convertkit.release.summary import AUDIT, EXPANSION, GATE, RELEASE_REPORT, read_report, read_view
from convertkit.verbs.audit import audit
from convertkit.verbs.gate import gate
from convertkit.workers import worker_count

UNLIMITED: Mapping[str, float | None] = dict.fromkeys(DEFAULT_LIMITS)
WORDS = {dtype: word for word, dtype in FLOAT_WORDS.items()}
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
    asked = [path for path in sorted(paths) if path.rpartition("/")[2] in MAKERS]
    reports = {path: read_report(root, path) for path in asked if not path.endswith(PAGE)}
    work = Work(root, reports, source, target_model, workers, progress)
    done: list[str] = []
    findings: list[Finding] = []
    for path in asked:
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
    dtype = WORDS.get(str(report["plan"]["parameters"].get("dtype")))
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
    report = work.reports[path]
    document = audit(work.root / folder_of(path)).document
    stated, found = report["summary"], dict(document["summary"])
    carried = _carried(report)
    found["errors"] -= sum(item["severity"] == "error" and item["code"] in carried for item in document["findings"])
    for key in AUDITED:
        if key in stated and stated[key] != found.get(key):
            yield _differs(path, key.replace("_", " "), stated[key], found.get(key))


def _carried(report: Mapping[str, Any]) -> set[str]:
    """Codes of errors that a repair or renaming found in its source already, or was asked to make: it states them as
    warnings (``verbs.beside``)."""
    if report["plan"]["verb"] not in ("repair", "fix-keys", "from-torch"):
        return set()
    items = (item for item in report["findings"] if item["severity"] == "warning")
    return {item["code"] for item in items if item["code"].startswith("E_")}


def _gated(work: Work, path: str) -> Iterator[Finding]:
    report, folder = work.reports[path], folder_of(path)
    inside = work.holding(report["source"]["files"], folder)
    if report["summary"].get("as_served"):
        yield _not_done(path, "it measures what an engine serves")
        return
    if "forward" in report["summary"]:
        yield _not_done(path, "it measures what drafters compute")
        return
    if inside is None and work.source is None:
        yield _not_done(path, "what the pack was made from is not here", "--source SRC")
        return
    reference = work.root / inside if inside is not None else Path(work.source or "")
    summary = report["summary"]
    rows = [row for row in report.get("rows", ()) if "metrics" in row]
    names = [row["name"] for row in rows if row["scope"] == "tensor"]
    sides = open_checkpoint(reference), open_checkpoint(work.root / folder)
    tallies = _tallies(work, *sides, names, summary.get("stored"))
    unsaid = sorted(_packed_between(*sides) - set(names))
    if unsaid:
        yield _differs(path, f"weights without a row, such as '{shown(unsaid[0])}'", 0, len(unsaid))
    rows.append({"name": "the summary", "scope": "whole", "metrics": summary["whole"]})
    for row in rows:
        members = {"tensor": [row["name"]], "group": row.get("members", ()), "whole": names}[row["scope"]]
        found = metrics(total(tallies.get(name, Tally()) for name in members))
        for key in MEASURED:
            if key in row["metrics"] and not _same(found.get(key), row["metrics"][key]):
                yield _differs(path, f"{key} of '{shown(row['name'])}'", row["metrics"][key], found.get(key))
                break


def _packed_between(reference: Checkpoint, pack: Checkpoint) -> set[str]:
    """Names of the dense weights that a pack holds as planes and its reference does not."""
    before, after = find_packed(reference).packed, find_packed(pack).packed
    return {f"{module}.weight" for module in after if module not in before}


def _tallies(
    work: Work, theirs: Checkpoint, mine: Checkpoint, names: Sequence[str], stored: str | None
) -> dict[str, Tally]:
    """What the named weights of a pack lost, by name; those that have no counterpart are missing."""
    left, right = weights_of(theirs), weights_of(mine)
    both = [name for name in names if name in left and name in right and left[name].shape == right[name].shape]
    with Reader(theirs) as one, Reader(mine) as two:
        desks = Desk(one, Stop(), work.progress, Buffers()), Desk(two, Stop(), work.progress, Buffers())
        pairs = [(left[name], right[name]) for name in both]
        found = compare_checkpoints(desks, pairs, worker_count(work.workers), stored)
    return {item.name: item.tally for item in found if item.tally is not None}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, (int, float)) and not isinstance(other, bool):
        return abs(one - other) <= TOLERANCE * max(abs(one), abs(other), TOLERANCE)
    return bool(one == other)


def _released(work: Work, path: str) -> Iterator[Finding]:
    """The verdicts of engines."""
    report = work.reports[path]
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
        ranks = row.get("tensor_parallel", 1)
        (view,) = audit_engines(checkpoint, identify(checkpoint), [asked], target, ranks).views
        if view["verdict"] != row["verdict"]:
            yield _differs(path, f"{row['title']} with {row['variant']}", row["verdict"], view["verdict"])


def _page(work: Work, path: str) -> Iterator[Finding]:
    """The page of a release, rendered once more from its reports; files that came after it are not looked for in it."""
    base = folder_of(path)
    release = work.reports.get(join(base, RELEASE_REPORT))
    if release is None:
        yield _not_done(path, "only the page of a release is made anew")
        return
    if release["tool"]["version"] != __version__:
        yield _not_done(path, f"it was made by convertkit {shown(release['tool']['version'])}")
        return
    written = read_small(work.root, path)
    view = read_view(work.root / base)
    listed = tuple(file for file in view.files if f">{text(file.path)}<".encode() in written)
    if render_page(replace(view, files=listed)) != written:
        yield finding("E_RECOMPUTE", "error", "the page is not what the reports show", file=path,
                      fix="make it anew with `convertkit report`")  # fmt: skip


MAKERS = {EXPANSION: _expansion, AUDIT: _audited, GATE: _gated, RELEASE_REPORT: _released, PAGE: _page}
"""By name of the report."""
