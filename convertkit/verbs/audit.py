"""``audit``: names, shapes, dtypes, planes, config and fused scales of a checkpoint, against each other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.checks.audit import audit_written
from convertkit.checks.audited import Audit
from convertkit.checks.refused import audit_refused
from convertkit.checks.target import read_target
from convertkit.checks.wanted import Wanted
from convertkit.containers.folder import CONFIG, QUANT_CONFIG, open_any
from convertkit.containers.strict_json import paused_gc
from convertkit.engines.rules import Asked, parse_engines
from convertkit.errors import ConvertError, Finding, refusal
from convertkit.hub.arguments import from_hub
from convertkit.layouts.fused import user_groups
from convertkit.progress import SILENT, Progress
from convertkit.release.digests import sha256_opened
from convertkit.release.report_files import check_report_place, write_report_files
from convertkit.release.reports import envelope, render_report, settled


@dataclass(frozen=True)
class AuditResult:
    """``document`` is the report, or without ``report`` the same without the digests of files; ``status`` is 0 if
    there is no error, else 1; 3 for a folder that is refused, of which only engines say something."""

    document: Mapping[str, Any]
    findings: tuple[Finding, ...]
    status: int


@from_hub(headers=("path", "target_model", "against"))
def audit(
    path: str | os.PathLike[str],
    *,
    fuse: Sequence[str] = (),
    scan: bool = False,
    engines: Sequence[str] = (),
    target_model: str | os.PathLike[str] | None = None,
    tp: int = 1,
    against: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    workers: int = 0,
    progress: Progress = SILENT,
) -> AuditResult:
    """Audit a folder or a safetensors file. Nothing is written unless ``report`` names a file, ending in .json.

    Headers, config and global scales are read; with ``scan`` all values, with ``report`` all bytes, for the digests.
    ``fuse`` adds fused groups, each ``a.{i}.to_q,a.{i}.to_k``. ``engines`` are names with or without a version
    (``vllm``, ``sglang@0.5.23``, ``all``), asked what they would do on ``tp`` ranks beside the target in the folder
    ``target_model``. ``against`` is a checkpoint that this one must be a drop-in for.

    A folder that cannot be opened as one checkpoint is refused, but engines that were asked answer first: they load
    much that no two readers understand alike.

    Raises:
        ConvertError: a broken container and no engine asked (3), a report that cannot be written (4).
    """
    if report is not None:
        check_report_place(Path(report))
    if tp < 1:
        raise refusal("E_USAGE", "--tp is the number of ranks, at least 1")
    asked = parse_engines(engines)
    target = None if target_model is None else read_target(target_model)
    reference = None if against is None else open_any(against)
    wanted = Wanted(asked, target, tp, reference) if asked or target or reference else None
    with paused_gc():
        try:
            checkpoint = open_any(path)
        except ConvertError as error:
            checkpoint, found = audit_refused(path, error, wanted)
            status = error.status
        else:
            found = audit_written(checkpoint, fuse=user_groups(fuse), scan=scan, wanted=wanted)
            status = 1 if found.errors else 0
    if report is None:
        return AuditResult(_document(found), found.findings, status)
    document = envelope(
        "load-shape-audit",
        source=(),
        output=_files(checkpoint, workers, progress),
        verb="audit",
        fingerprint=None,
        parameters=_parameters(fuse, scan, asked, tp),
        summary=found.summary,
        findings=found.findings,
    )
    if found.engines:
        document["engines"] = [settled(view) for view in found.engines]
    place = Path(report)
    rendered = render_report(place.name, document, found.rows)
    write_report_files(place, rendered.files)
    return AuditResult(rendered.document, found.findings, status)


def _parameters(fuse: Sequence[str], scan: bool, asked: Sequence[Asked], tp: int) -> dict[str, Any]:
    """What was asked for; engines only where they were, so that other reports stay as they are."""
    given: dict[str, Any] = {"fuse": list(fuse), "scan": scan}
    return {**given, "engines": [str(one) for one in asked], "tp": tp} if asked else given


def _document(found: Audit) -> dict[str, Any]:
    engines = {"engines": [settled(view) for view in found.engines]} if found.engines else {}
    return {
        **engines,
        "verdict": "fail" if found.errors else "pass",
        "summary": dict(found.summary),
        "rows": [settled(row) for row in found.rows],
        "findings": [item.as_json() for item in found.findings],
    }


def _files(checkpoint: Checkpoint, workers: int, progress: Progress) -> list[dict[str, Any]]:
    """Weight files and config with their digests."""
    beside = () if checkpoint.is_file else (CONFIG, QUANT_CONFIG)
    names = [name for name in beside if (checkpoint.root / name).exists()]
    return [
        {"path": name, "size_bytes": digest.size_bytes, "sha256": digest.sha256}
        for name, digest in sha256_opened(checkpoint, names, workers, progress).items()
    ]
