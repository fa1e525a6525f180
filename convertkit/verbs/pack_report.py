"""FIDELITY_GATE.json of a pack: what each packed linear lost, and how its scales were chosen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from convertkit.checks.evidence import PackedEvidence
from convertkit.checks.fidelity import Tally, judge, total
from convertkit.convert.encoders import grid_of
from convertkit.convert.gridsearch import grid_data
from convertkit.convert.survey import Facts
from convertkit.convert.units import Pack
from convertkit.errors import Finding, finding
from convertkit.release.rows import gate_row, gate_summary, scales_row
from convertkit.verbs.line import Case, Report, Reporter
from convertkit.verbs.reporting import GATE, report_of

MAX_LISTED = 50


def gate_report(limits: Mapping[str, float | None]) -> Reporter:
    """FIDELITY_GATE.json of a pack: every linear, every fused group and the whole against the source."""

    def report(case: Case) -> Report:
        rows: list[dict[str, Any]] = []
        tallies: list[Tally] = []
        for item in case.evidence:
            if isinstance(item.unit, Pack):
                rows.extend(_group_rows(case.facts, item.unit, item.details))
                tallies.extend(detail.tally.fidelity for detail in item.details if isinstance(detail, PackedEvidence))
        whole = total(tallies)
        rows.append(gate_row("whole", whole, scope="whole"))
        findings = [*judge(rows, limits), *_grid_findings(case)]
        return report_of(GATE, "fidelity-gate", case, rows, gate_summary(rows, whole, limits), findings)

    return report


def _group_rows(facts: Facts, unit: Pack, details: Iterable[Any]) -> list[dict[str, Any]]:
    packed = [detail for detail in details if isinstance(detail, PackedEvidence)]
    group = unit.modules[0] if len(packed) > 1 else None
    choice = unit.arithmetic if grid_of(facts, unit) is None else "grid"
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
            ),
        )
        for item in packed
    ]
    if group is not None:
        whole = total(item.tally.fidelity for item in packed)
        rows.append(gate_row(group, whole, scope="group", members=[f"{item.module}.weight" for item in packed]))
    return rows


def _grid_findings(case: Case) -> Iterator[Finding]:
    """One note about all groups that were packed without loss, and a warning for each that lies on a grid in part."""
    units = {unit.key: unit for unit in case.plan.units if isinstance(unit, Pack)}
    whole = [key for key, unit in units.items() if (fact := grid_of(case.facts, unit)) and fact.status == "grid"]
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
