"""FIDELITY_GATE.json of a pack: what each packed linear lost, and how its scales were chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from convertkit.checks.evidence import PackedEvidence
from convertkit.checks.fidelity import Tally, judge, total
from convertkit.checks.gate import compare_checkpoints, weights_of
from convertkit.checks.serving import serving_of
from convertkit.containers.reader import Reader
from convertkit.conversion.desk import Desk
from convertkit.conversion.encoders import grid_of
from convertkit.conversion.gridsearch import grid_data
from convertkit.conversion.identify import identify
from convertkit.conversion.stop import Stop
from convertkit.conversion.survey import Facts
from convertkit.conversion.tiles import Buffers
from convertkit.conversion.units import Pack
from convertkit.errors import Finding, finding
from convertkit.layouts.fused import user_groups
from convertkit.progress import SILENT
from convertkit.release.rows import gate_row, gate_summary, scales_row
from convertkit.verbs.case import Case, Report, Reporter
from convertkit.verbs.reporting import GATE, report_of
from convertkit.workers import worker_count

MAX_LISTED = 50


def gate_report(limits: Mapping[str, float | None], as_served: str | None = None, workers: int = 0) -> Reporter:
    """FIDELITY_GATE.json of a pack: every linear, every fused group and the whole against the source.

    ``as_served`` measures the planes as that engine would serve them.
    """

    def report(case: Case) -> Report:
        served, warnings = _as_served(case, as_served, worker_count(workers))
        rows: list[dict[str, Any]] = []
        tallies: list[Tally] = []
        for item in case.evidence:
            if isinstance(item.unit, Pack):
                packed = [_replaced(detail, served) for detail in item.details if isinstance(detail, PackedEvidence)]
                rows.extend(_group_rows(case.facts, item.unit, packed))
                tallies.extend(detail.tally.fidelity for detail in packed)
        whole = total(tallies)
        rows.append(gate_row("whole", whole, scope="whole"))
        findings = [*warnings, *judge(rows, limits), *_grid_findings(case)]
        summary = gate_summary(rows, whole, limits, None, as_served)
        return report_of(GATE, "fidelity-gate", case, rows, summary, findings)

    return report


def _replaced(detail: PackedEvidence, served: Mapping[str, Tally]) -> PackedEvidence:
    """The evidence with the tally of its values as they are served."""
    return replace(detail, tally=replace(detail.tally, fidelity=served.get(detail.module, detail.tally.fidelity)))


def _as_served(case: Case, engine: str | None, workers: int) -> tuple[dict[str, Tally], tuple[Finding, ...]]:
    """Tallies of the packed linears as an engine serves them, by module; none without an engine."""
    if engine is None:
        return {}, ()
    staged = case.output
    identity = identify(staged)
    fuse = user_groups(case.plan.parameters.get("fuse") or ())
    mine, yours = weights_of(case.plan.source), weights_of(staged)
    pairs = [(mine[f"{module}.weight"], yours[f"{module}.weight"]) for module in identity.packed]
    with Reader(case.plan.source) as one, Reader(staged) as two:
        desks = Desk(one, Stop(), SILENT, Buffers()), Desk(two, Stop(), SILENT, Buffers())
        serving = serving_of(desks[1], identity.packed, identity.layout, engine, workers, fuse)
        found = compare_checkpoints(desks, pairs, workers, None, serving.tables)
    tallies = {item.name.removesuffix(".weight"): item.tally for item in found if item.tally is not None}
    return tallies, serving.findings


def _group_rows(facts: Facts, unit: Pack, packed: Sequence[PackedEvidence]) -> list[dict[str, Any]]:
    group = unit.modules[0] if len(packed) > 1 else None
    fact = grid_of(facts, unit)
    choice = unit.arithmetic if fact is None else "grid"
    rows = [
        gate_row(
            f"{item.module}.weight",
            item.tally.fidelity,
            group=group,
            packed=True,
            global_bits=item.global_bits,
            sense=unit.spelling.sense,
            scales=scales_row(
                choice,
                item.tally.fidelity,
                baseline=item.baseline,
                differing=item.differing,
                blocks_on_grid=None
                if item.differing_blocks is None
                else item.tally.fidelity.blocks - item.differing_blocks,
                arithmetic="exact" if fact is None else fact.found[0].arithmetic,
            ),
        )
        for item in packed
    ]
    if group is not None:
        whole = total(item.tally.fidelity for item in packed)
        rows.append(gate_row(group, whole, scope="group", members=[f"{item.module}.weight" for item in packed]))
    return rows


def _steps_finding(arithmetic: str, keys: Sequence[str], units: Mapping[str, Pack]) -> Finding:
    elements = sum(ref.spec.elements for key in keys for ref in units[key].sources)
    return finding(
        "W_GRID_STEPS",
        "warning",
        f"{len(keys)} of {len(units)} fused groups are what {arithmetic} expanded by its own steps: 0 of {elements} "
        "elements differ when they are expanded so again, and some by exact products, which round once",
        fix=f"expand with `convertkit dequant --arithmetic {arithmetic}`",
        data={"groups": len(keys), "elements": elements, "names": list(keys[:MAX_LISTED])},
    )


def _grid_findings(case: Case) -> Iterator[Finding]:
    """One note about all groups that were packed without loss, and a warning for each that lies on a grid in part."""
    units = {unit.key: unit for unit in case.plan.units if isinstance(unit, Pack)}
    by: dict[str, list[str]] = {}
    for key, unit in units.items():
        if (found := grid_of(case.facts, unit)) and found.status == "grid":
            by.setdefault(found.found[0].arithmetic, []).append(key)
    yield from (_steps_finding(arithmetic, keys, units) for arithmetic, keys in by.items() if arithmetic != "exact")
    whole = by.get("exact", [])
    if whole:
        elements = sum(ref.spec.elements for key in whole for ref in units[key].sources)
        yield finding(
            "N_ON_GRID",
            "note",
            f"{len(whole)} of {len(units)} fused groups lie on an NVFP4 grid and are packed without loss: 0 of "
            f"{elements} elements differ when they are expanded again",
            data={"groups": len(whole), "elements": elements, "names": whole[:MAX_LISTED]},
        )
    parts = [key for key in units if (seen := case.facts.grids.get(key)) and seen.status in ("part", "several")]
    for key in parts[:MAX_LISTED]:
        fact, unit = case.facts.grids[key], units[key]
        kept = "those blocks are kept" if grid_of(case.facts, unit) else f"all were packed by {unit.arithmetic}"
        yield finding(
            "W_PART_GRID",
            "warning",
            f"{fact.reason}; {kept}",
            tensor=unit.sources[0].spec.name,
            fix="split the weight where its grids meet" if fact.status == "several" else "",
            data=grid_data(fact),
        )
