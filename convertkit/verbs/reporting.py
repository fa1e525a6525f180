"""The reports of a run, made from the evidence of its checks: gate, expansion, audit."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.checks.audit import audit_written
from convertkit.checks.audited import Audit
from convertkit.checks.bench import Evidence
from convertkit.checks.evidence import ExpandedEvidence, RespelledEvidence
from convertkit.checks.gate import compare_checkpoints, weights_of
from convertkit.checks.scales import inverted_scales
from convertkit.checks.target import stated_target
from convertkit.checks.wanted import Wanted
from convertkit.containers.reader import Reader
from convertkit.conversion.desk import Desk
from convertkit.conversion.plan import Plan
from convertkit.conversion.stop import Stop
from convertkit.conversion.tiles import Buffers
from convertkit.conversion.units import Cast, Copy, Expand, Respell
from convertkit.engines.rules import parse_engines
from convertkit.errors import Finding, finding
from convertkit.layouts.fused import user_groups
from convertkit.progress import SILENT
from convertkit.release.reports import envelope, render_report, settled
from convertkit.release.rows import (
    dequant_row,
    dequant_summary,
    planes,
    respelled_row,
    tensor_row,
)
from convertkit.verbs.case import Case, Report, Reporter
from convertkit.workers import worker_count

MAX_NAMED = 50
"""Names kept in the data of one finding."""
GATE, EXPANSION, AUDIT = "FIDELITY_GATE.json", "DEQUANT_REPORT.json", "LOAD_SHAPE_AUDIT.json"


def report_of(
    name: str,
    kind: str,
    case: Case,
    rows: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
    found: Sequence[Finding],
    more: Mapping[str, Any] | None = None,
) -> Report:
    """A rendered report of kind ``kind`` (a schema name) about the output of a run; ``more`` are further keys."""
    plan = case.plan
    document = envelope(
        kind,
        source=case.source_files,
        output=_outputs(case),
        verb=plan.verb,
        fingerprint=plan.fingerprint,
        parameters=plan.parameters,
        summary=summary,
        findings=found,
    )
    rendered = render_report(name, {**document, **(more or {})}, rows)
    return Report(name, rendered.files, rendered.document, tuple(found))


def _outputs(case: Case) -> list[dict[str, Any]]:
    """Weights and documents of the output with sizes and digests."""
    files = [
        {"path": file.name, "size_bytes": file.header.size_bytes, "sha256": case.file_sha256[file.name]}
        for file in case.plan.files
    ]
    files.extend(
        {"path": name, "size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in case.plan.documents.items()
    )
    return files


def dequant_report(
    reference: Checkpoint | None = None, workers: int = 0, sha256: Mapping[str, str] | None = None
) -> Reporter:
    """DEQUANT_REPORT.json: how exact every expanded or re-spelled weight is; ``reference`` is compared with it.

    ``sha256`` are digests of the reference's weight files if somebody took them: equal files need no comparison.
    """

    def report(case: Case) -> Report:
        differing = {} if reference is None else _differing(reference, case, workers, sha256)
        rows = [row for item in case.evidence for row in _expansion_rows(case, item, differing, reference is not None)]
        found = [] if reference is None else _against_findings(differing)
        found.extend(_scale_notes(case.evidence))
        expanded = {unit.packed.module: unit.packed for unit in case.plan.units if isinstance(unit, Expand)}
        found.extend(inverted_scales(expanded, case.facts.global_bits))
        return report_of(EXPANSION, "dequant-report", case, rows, dequant_summary(rows), found)

    return report


def _expansion_rows(
    case: Case, item: Evidence, differing: Mapping[str, int | None], compared: bool
) -> Iterable[dict[str, Any]]:
    unit = item.unit
    for detail in item.details:
        if isinstance(unit, Expand) and isinstance(detail, ExpandedEvidence):
            spec, packed = unit.outputs[0], unit.packed
            yield dequant_row(
                spec,
                case.tensor_sha256[spec.name],
                detail.tally,
                dialect=packed.spelling.dialect,
                sources=planes([ref.spec.name for ref in packed.refs], {}),
                global_bits=case.facts.global_bits[packed.module],
                sense=packed.spelling.sense,
                arithmetic=unit.arithmetic,
                against=differing.get(spec.name),
                has_reference=compared,
            )
        if isinstance(unit, Respell) and isinstance(detail, RespelledEvidence):
            yield _respelled(case, unit, detail)
    if isinstance(unit, (Copy, Cast)):
        spec = unit.outputs[0]
        row = tensor_row(spec, unit.promise, case.tensor_sha256[spec.name])
        yield row | ({"against": {"differing": differing.get(spec.name)}} if compared else {})


def _respelled(case: Case, unit: Respell, detail: RespelledEvidence) -> dict[str, Any]:
    packed, spec = unit.packed, unit.outputs[0]
    same_sense = packed.spelling.sense == unit.spelling.sense
    return respelled_row(
        spec,
        case.tensor_sha256[spec.name],
        dialect=packed.spelling.dialect,
        sources=planes([ref.spec.name for ref in packed.refs], {}),
        before=(detail.before_bits, packed.spelling.sense),
        after=(detail.after_bits, unit.spelling.sense),
        reversible=same_sense or _inverts_back(detail),
        changed_values=detail.changed_values,
    )


def _inverts_back(detail: RespelledEvidence) -> bool:
    """Whether the reciprocal of the written scale is the stored scale of the source."""
    from convertkit.checks.reference import bits_of, float_of

    return bits_of(1 / float_of(detail.after_bits)) == detail.before_bits


def _scale_notes(evidence: Iterable[Evidence]) -> Iterable[Finding]:
    """One finding for all re-spelled linears whose global scale does not invert back."""
    details = [detail for item in evidence for detail in item.details if isinstance(detail, RespelledEvidence)]
    inverted = [detail for detail in details if detail.before_bits != detail.after_bits]
    lossy = [detail.module for detail in inverted if not _inverts_back(detail)]
    changed = {detail.module: detail.changed_values for detail in inverted if detail.changed_values}
    if lossy or changed:
        yield finding(
            "W_RECIPROCAL",
            "warning",
            f"of {len(inverted)} inverted global scales {len(lossy)} do not invert back (their stored bits are lost); "
            f"{sum(changed.values())} BF16 values differ when expanded exactly",
            tensor=(*lossy, *changed)[0],
            fix="stored bits are kept if the pack is made with --reversible-scale",
            data={"lossy": lossy[:MAX_NAMED], "changed_values": dict(list(changed.items())[:MAX_NAMED])},
        )


def _differing(
    reference: Checkpoint, case: Case, workers: int, sha256: Mapping[str, str] | None
) -> dict[str, int | None]:
    """Differing elements of every written tensor against the reference; None where that has no tensor of its shape."""
    staged = case.output
    mine, yours = weights_of(reference), weights_of(staged)
    if sha256 and dict(sha256) == {file.name: case.file_sha256[file.name] for file in case.plan.files}:
        return dict.fromkeys(yours, 0)
    names = [name for name in yours if name in mine and mine[name].shape == yours[name].shape]
    differing: dict[str, int | None] = dict.fromkeys(yours)
    with Reader(reference) as one, Reader(staged) as two:
        desks = Desk(one, Stop(), SILENT, Buffers()), Desk(two, Stop(), SILENT, Buffers())
        pairs = [(mine[name], yours[name]) for name in names]
        for name, found in zip(names, compare_checkpoints(desks, pairs, worker_count(workers)), strict=True):
            if found.tally is None:
                differing[name] = 0 if found.equal_bytes else yours[name].elements
            else:
                bits = found.tally.bit_differences
                differing[name] = found.tally.changed if bits is None else bits
    return differing


def _against_findings(differing: Mapping[str, int | None]) -> list[Finding]:
    """One finding for all that differs and one for all that the reference lacks; every count is in the rows."""
    found = []
    counts = {name: count for name, count in differing.items() if count}
    missing = [name for name, count in differing.items() if count is None]
    if counts:
        worst = max(counts, key=lambda name: counts[name])
        some = {name: counts[name] for name in [*counts][:MAX_NAMED]}
        found.append(
            finding(
                "E_AGAINST",
                "error",
                f"{sum(counts.values())} elements of {len(counts)} tensors differ from the reference, most in {worst}",
                tensor=next(iter(counts)),
                fix="nothing is published; --report-dir DIR keeps the report with every count",
                data={"differing": some},
            )
        )
    if missing:
        message = f"the reference does not hold {len(missing)} of the tensors in their shape"
        found.append(finding("E_REFERENCE", "error", message, tensor=missing[0], data={"missing": missing[:MAX_NAMED]}))
    return found


def audit_report(engines: Sequence[str] = (), target_model: str | os.PathLike[str] | None = None) -> Reporter:
    """LOAD_SHAPE_AUDIT.json of what was staged, with the tensors that the plan drops and what engines would do.

    ``engines`` as for ``audit``: what they would refuse or serve wrong is then an error. Without any, those that the
    output is meant for answer, and it is a warning if none of them would load it right. ``target_model`` is the folder
    of a drafter's target; without it, or if its config states no sizes, what the drafter says of it is assumed.
    """
    wanted = wanted_of(engines, target_model)

    def report(case: Case) -> Report:
        audit = audited_output(case.output, case.plan, wanted)
        views = {"engines": [settled(view) for view in audit.engines]}
        return report_of(AUDIT, "load-shape-audit", case, audit.rows, audit.summary, audit.findings, views)

    return report


def wanted_of(engines: Sequence[str], target_model: str | os.PathLike[str] | None) -> Wanted:
    """What ``audit_report`` asks of an output."""
    target = None if target_model is None else stated_target(target_model)
    return Wanted(parse_engines(engines), target, unasked=not engines)


def audited_output(
    output: Checkpoint, plan: Plan, wanted: Wanted, values: Callable[[Checkpoint], Reader] = Reader
) -> Audit:
    """The audit of what a plan makes, staged or foreseen, with the tensors that it drops."""
    fuse = user_groups(plan.parameters.get("fuse") or ())
    audit = audit_written(output, plan.outputs.values(), fuse=fuse, wanted=wanted, values=values)
    dropped = [finding("N_DROPPED", "note", drop.reason, tensor=drop.name) for drop in plan.drops]
    return replace(audit, summary={**audit.summary, "dropped": len(dropped)}, findings=(*audit.findings, *dropped))
