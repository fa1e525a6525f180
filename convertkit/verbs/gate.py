"""``gate``: a candidate against its reference, tensor by tensor, whatever the dialects of the two."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.checks.fidelity import DEFAULT_LIMITS, Tally, check_limits, judge, total
from convertkit.checks.gate import Compared, Weight, compare_checkpoints, missing_findings, weights_of
from convertkit.checks.nibbles import swapped_findings
from convertkit.checks.served import ENGINES
from convertkit.checks.serving import Serving, serving_of
from convertkit.containers.folder import CONFIG, open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.conversion.desk import Desk
from convertkit.conversion.identify import identify
from convertkit.conversion.stop import stop_on_signals
from convertkit.conversion.tiles import Buffers
from convertkit.dialects.planes import PackedModule
from convertkit.dtypes import FLOAT_WORDS
from convertkit.errors import Finding, finding, raise_all, refusal
from convertkit.grids.nvfp4.devices import kernels_of
from convertkit.hub.arguments import from_hub
from convertkit.layouts.fused import Group, fused_groups, idle_members, user_groups
from convertkit.layouts.rules import module_of
from convertkit.progress import SILENT, Progress
from convertkit.release.digests import sha256_opened
from convertkit.release.report_files import check_report_place, write_report_files
from convertkit.release.reports import envelope, render_report
from convertkit.release.rows import bytes_row, gate_row, gate_summary
from convertkit.workers import worker_count

STORED: Mapping[str | None, str | None] = dict(((None, None), *FLOAT_WORDS.items()))


@dataclass(frozen=True)
class GateResult:
    """The report document, its rows, findings and exit status (0 passed, 1 not)."""

    document: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    findings: tuple[Finding, ...]
    status: int
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class Judgement:
    """What a gate found: what it was asked, its summary, a row per weight, group or module, and findings."""

    parameters: Mapping[str, Any]
    summary: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    findings: Sequence[Finding]


@from_hub("candidate", "reference")
def gate(
    candidate: str | os.PathLike[str],
    reference: str | os.PathLike[str],
    *,
    limits: Mapping[str, float | None] = DEFAULT_LIMITS,
    stored: str | None = None,
    as_served: str | None = None,
    fuse: Sequence[str] = (),
    report: str | os.PathLike[str] | None = None,
    workers: int = 0,
    progress: Progress = SILENT,
    device: str = "cpu",
) -> GateResult:
    """Compare two checkpoints as values and judge the candidate. Nothing is written unless ``report`` names a file.

    ``stored`` (bf16, f16, f32) compares the candidate as an expanded file of that dtype would hold it, instead of
    its exact values. ``as_served`` (a row of ``checks.served.ENGINES``) compares it as that engine would serve it;
    ``fuse`` adds fused matrices. Metrics are per weight, per fused group and for the whole; tensors that are not
    floats must be equal byte for byte. ``device`` (cpu, cuda) sums; the report is the same.

    Raises:
        ConvertError: broken containers or planes (3), a global scale that is no positive number (1).
    """
    _check_words(limits, stored, as_served, report)
    if device != "cpu":
        kernels_of(device)
    theirs, mine = open_checkpoint(reference), open_checkpoint(candidate)
    left, right = weights_of(theirs), weights_of(mine)
    raise_all(idle_members(user_groups(fuse), {module_of(name) for name in mine.tensors}))
    missing = list(missing_findings(left, right))
    pairs = [(left[name], right[name]) for name in right if name in left and left[name].shape == right[name].shape]
    with stop_on_signals() as stop, Reader(theirs) as one, Reader(mine) as two:
        buffers = Buffers(pinned=device == "cuda"), Buffers(pinned=device == "cuda")
        desks = Desk(one, stop, progress, buffers[0], device), Desk(two, stop, progress, buffers[1], device)
        serving = served_by(mine, desks[1], as_served, worker_count(workers), fuse)
        found = compare_checkpoints(desks, pairs, worker_count(workers), STORED[stored], serving.tables)
        rows, whole = _rows(mine, right, found, user_groups(fuse))
        judged = judge([row for row in rows if "metrics" in row], limits)
        refused = list(dict.fromkeys(item.data["name"] for item in judged if item.data["scope"] == "tensor"))
        swapped = swapped_findings(desks, pairs, refused, limits, STORED[stored])
        one.assert_unchanged()
        two.assert_unchanged()
    bad_scales = [finding_ for item in found for finding_ in item.findings]
    findings = [*missing, *serving.findings, *bad_scales, *judged, *swapped, *_bytes_findings(found)]
    parameters = {"limits": dict(limits), "stored": stored, "as_served": as_served, "fuse": list(fuse)}
    judgement = Judgement(parameters, gate_summary(rows, whole, limits, STORED[stored], as_served), rows, findings)
    return gate_result((theirs, mine), judgement, report, workers)


def _check_words(
    limits: Mapping[str, float | None],
    stored: str | None,
    as_served: str | None,
    report: str | os.PathLike[str] | None,
) -> None:
    if stored not in STORED:
        raise refusal("E_USAGE", f"unknown dtype '{stored}' for --stored")
    check_limits(limits)
    if report is not None:
        check_report_place(Path(report))
    if as_served is not None and (as_served not in ENGINES or stored is not None):
        names = ", ".join(ENGINES)
        raise refusal("E_USAGE", f"--as-served takes one of {names}, and no --stored beside it")


def gate_result(
    sides: tuple[Checkpoint, Checkpoint], made: Judgement, report: str | os.PathLike[str] | None, workers: int
) -> GateResult:
    """The report about reference and candidate, written where ``report`` says.

    Raises E_CHANGED for a weight file that is not the one that was opened, E_SCHEMA, and as ``write_report_files``.
    """
    document = envelope(
        "fidelity-gate",
        source=compared_files(sides[0], workers),
        output=compared_files(sides[1], workers),
        verb="gate",
        fingerprint=None,
        parameters=made.parameters,
        summary=made.summary,
        findings=made.findings,
    )
    rendered = render_report("FIDELITY_GATE.json" if report is None else Path(report).name, document, made.rows)
    if report is not None:
        write_report_files(Path(report), rendered.files)
    status = 1 if any(item.severity == "error" for item in made.findings) else 0
    return GateResult(rendered.document, made.rows, tuple(made.findings), status, rendered.files)


def served_by(mine: Checkpoint, desk: Desk, as_served: str | None, workers: int, fuse: Sequence[str]) -> Serving:
    """How an engine serves the candidate; nothing without one."""
    if as_served is None:
        return Serving()
    identity = identify(mine)
    return serving_of(desk, identity.packed, identity.layout, as_served, workers, user_groups(fuse))


def _rows(
    mine: Checkpoint, weights: Mapping[str, Weight], found: Sequence[Compared], fuse: Sequence[Group]
) -> tuple[list[dict[str, Any]], Tally]:
    """Rows of weights in file order, of fused groups of packed linears, and of the whole."""
    layout = identify(mine).layout
    packed = {item.name.removesuffix(".weight"): item for item in found if item.packed and item.tally is not None}
    group_of = {
        member: (lead, members)
        for lead, members in fused_groups(packed, layout, fuse).items()
        if len(members) > 1
        for member in members
    }
    rows: list[dict[str, Any]] = []
    for item in found:
        if item.tally is None:
            rows.append(bytes_row(item.name, bool(item.equal_bytes)))
            continue
        place = group_of.get(item.name.removesuffix(".weight"))
        stored = weights[item.name].stored
        sense = stored.spelling.sense if isinstance(stored, PackedModule) else None
        rows.append(
            gate_row(
                item.name,
                item.tally,
                group=place[0] if place else None,
                packed=item.packed,
                global_bits=item.global_bits,
                sense=sense,
            )
        )
    for lead, members in dict(group_of.values()).items():
        tally = total(packed[module].tally or Tally() for module in members)
        rows.append(gate_row(lead, tally, scope="group", members=[f"{module}.weight" for module in members]))
    whole = total(item.tally for item in found if item.tally is not None)
    rows.append(gate_row("whole", whole, scope="whole"))
    return rows, whole


def _bytes_findings(found: Sequence[Compared]) -> list[Finding]:
    return [
        finding("E_GATE", "error", "the bytes differ from the reference", tensor=item.name)
        for item in found
        if item.equal_bytes is False
    ]


def compared_files(checkpoint: Checkpoint, workers: int) -> list[dict[str, Any]]:
    """Weight files and config of one side with their digests. Raises E_CHANGED for a weight file that is not the one
    that was opened."""
    digests = sha256_opened(checkpoint, [CONFIG] if checkpoint.config else [], workers)
    return [{"path": name, "size_bytes": one.size_bytes, "sha256": one.sha256} for name, one in digests.items()]
