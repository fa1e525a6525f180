"""Test every promise of a plan on the staged bytes, with arithmetic of the checks' own.

Copied bytes were read back from the staged file and compared with the source's as they were written
(``conversion.run``). Everything else is read again, source and output, and derived a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from convertkit.checks.bench import Bench, Evidence, broken
from convertkit.checks.evidence import ExpandedEvidence, RespelledEvidence
from convertkit.checks.expand import ExpandTally, check_expand_tile
from convertkit.checks.reference import exact_rounded_table, narrowed, reciprocal, widened
from convertkit.checks.tiles import flat_tiles, row_tiles
from convertkit.containers.reader import Reader
from convertkit.conversion.desk import Desk
from convertkit.conversion.plan import Plan, Unit
from convertkit.conversion.survey import STORAGE, Facts
from convertkit.conversion.tiles import in_parallel
from convertkit.conversion.units import Cast, Copy, Expand, Pack, Relabel, Respell
from convertkit.dialects.spelling import GROUP
from convertkit.errors import Finding, finding


def verify_output(
    plan: Plan,
    facts: Facts,
    desk: Desk,
    output: Reader,
    differing: Mapping[str, int],
    workers: int,
) -> list[Evidence]:
    """Evidence of every unit, in the order of the plan.

    ``differing`` are the bytes of each copied tensor that are not those of its source. The output's tensors must be
    exactly the planned ones.
    """
    bench = Bench(plan, facts, desk, output, differing)
    shape_faults = _inventory_faults(plan, output)
    if shape_faults:
        return [Evidence(plan.units[0], shape_faults)]
    order = sorted(range(len(plan.units)), key=lambda i: _turn(plan.units[i]))
    desk.progress.stage("check", sum(spec.size_bytes for unit in plan.units for spec in unit.outputs))
    found = in_parallel(lambda i: _verify(bench, plan.units[i]), order, workers)
    by_place = dict(zip(order, found, strict=True))
    return [by_place[i] for i in range(len(plan.units))]


def _turn(unit: Unit) -> int:
    return -sum(spec.size_bytes for spec in unit.outputs)


def _inventory_faults(plan: Plan, output: Reader) -> tuple[Finding, ...]:
    planned = plan.outputs
    there = {name: ref.spec for name, ref in output.checkpoint.tensors.items()}
    wrong = sorted(name for name in planned.keys() | there.keys() if planned.get(name) != there.get(name))
    return tuple(broken(name, "is not as planned in the staged files") for name in wrong)


def _verify(bench: Bench, unit: Unit) -> Evidence:
    if type(unit) in VERIFIERS:
        evidence = VERIFIERS[type(unit)](bench, unit)
    else:
        evidence = Evidence(unit, *_verifier_elsewhere(type(unit))(bench, unit))
    bench.desk.progress.advance(sum(spec.size_bytes for spec in unit.outputs))
    return evidence


def _verifier_elsewhere(kind: type) -> Callable[[Bench, Any], tuple[Any, Any]]:
    """Verifiers that are imported only where a plan has their units."""
    from convertkit.checks.drafter_units import DRAFTER_VERIFIERS

    if kind in DRAFTER_VERIFIERS:
        return DRAFTER_VERIFIERS[kind]
    from convertkit.checks.surgery import SURGERY_VERIFIERS

    if kind in SURGERY_VERIFIERS:
        return SURGERY_VERIFIERS[kind]
    from convertkit.checks.gguf import GGUF_VERIFIERS

    return GGUF_VERIFIERS[kind]


def _verify_copy(bench: Bench, unit: Copy) -> Evidence:
    return Evidence(unit, bench.copy_faults(unit.name))


def _verify_relabel(bench: Bench, unit: Relabel) -> Evidence:
    """By digest; where that of the source was recorded, other bytes mean that the source is not what was recorded."""
    faults: list[Finding] = []
    for ref, name, recorded in zip(unit.sources, unit.names, unit.recorded, strict=True):
        wrong = bench.copy_faults(name)
        if not wrong or recorded is None:
            faults.extend(wrong)
            continue
        message = "the source's bytes are not those that its manifest states"
        faults.append(finding("E_TENSOR_DIGEST", "error", message, file=ref.file, tensor=ref.spec.name))
    return Evidence(unit, tuple(faults))


def _verify_cast(bench: Bench, unit: Cast) -> Evidence:
    """Every element rounded once more, from the source's bits."""
    source, out = unit.source, bench.staged(unit.source.spec.name)
    differing = 0
    for first, count in flat_tiles(source.spec.elements):
        bench.desk.stop.check()
        before = bench.desk.rows("source", source, first, (count,), STORAGE[source.spec.dtype])
        after = bench.written.rows("dense", out, first, (count,), STORAGE[unit.dtype])
        values = widened(before, source.spec.dtype)
        wrong = narrowed(values, unit.dtype).view(after.dtype) != after
        wrong &= ~(np.isnan(values) & np.isnan(widened(after, unit.dtype)))  # any NaN is a NaN
        differing += int(np.count_nonzero(wrong))
    faults = (broken(unit.key, "is not its source rounded once", differing=differing),) if differing else ()
    return Evidence(unit, faults)


def _verify_pack(bench: Bench, unit: Pack) -> Evidence:
    from convertkit.checks.packs import verify_pack

    return Evidence(unit, *verify_pack(bench, unit))


def _verify_expand(bench: Bench, unit: Expand) -> Evidence:
    packed = unit.packed
    out = bench.staged(unit.outputs[0].name)
    tally = ExpandTally()
    for first, count in row_tiles(packed.out_features, packed.in_features):
        bench.desk.stop.check()
        tally += check_expand_tile(
            bench.desk.rows("codes", packed.codes, first, (count, packed.in_features // 2), "|u1"),
            bench.desk.rows("scales", packed.block_scale, first, (count, packed.in_features // GROUP), "|u1"),
            bench.facts.global_bits[packed.module],
            packed.spelling.sense,
            bench.written.rows("dense", out, first, (count, packed.in_features), STORAGE[unit.dtype]),
            unit.dtype,
            arithmetic=unit.arithmetic,
        )
    differing = tally.differing(unit.arithmetic)
    faults = (broken(out.spec.name, "is not the expansion of its planes", differing=differing),) if differing else ()
    return Evidence(unit, faults, (ExpandedEvidence(packed.module, tally),))


def _verify_respell(bench: Bench, unit: Respell) -> Evidence:
    """Codes and block scales as copies; the scalar's sense by dividing again; what readers decode by tables."""
    packed, specs = unit.packed, unit.outputs
    faults = [fault for spec in specs[:2] for fault in bench.copy_faults(spec.name)]
    scalars = [(specs[2].name, bench.facts.global_bits[packed.module])]
    if packed.input_scale is not None:
        scalars.append((specs[3].name, bench.facts.input_bits[packed.module]))
    swap = packed.spelling.sense != unit.spelling.sense
    for name, before in scalars:
        if bench.output_bits(name) != (reciprocal(before) if swap else before):
            faults.append(broken(name, "is not the scale of its source"))
    after = bench.output_bits(specs[2].name)
    changed = _changed_values(bench, unit, scalars[0][1], after)
    return Evidence(unit, tuple(faults), (RespelledEvidence(packed.module, scalars[0][1], after, changed),))


def _changed_values(bench: Bench, unit: Respell, before: int, after: int) -> int:
    """BF16 values that the changed scalar changes; codes are read only if some table entry differs."""
    packed = unit.packed
    tables = (
        exact_rounded_table(before, packed.spelling.sense, "BF16"),
        exact_rounded_table(after, unit.spelling.sense, "BF16"),
    )
    differs = tables[0] != tables[1]
    if not differs[:127].any():
        return 0
    count = 0
    for first, rows in row_tiles(packed.out_features, packed.in_features):
        codes = bench.desk.rows("codes", packed.codes, first, (rows, packed.in_features // 2), "|u1")
        scales = bench.desk.rows("scales", packed.block_scale, first, (rows, packed.in_features // GROUP), "|u1")
        spread = np.repeat(scales, GROUP // 2, axis=1)
        count += int(differs[spread, codes & 15].sum()) + int(differs[spread, codes >> 4].sum())
    return count


VERIFIERS: Mapping[type, Callable[[Bench, Any], Evidence]] = {
    Copy: _verify_copy,
    Relabel: _verify_relabel,
    Cast: _verify_cast,
    Pack: _verify_pack,
    Expand: _verify_expand,
    Respell: _verify_respell,
}
"""What tests the promise of each kind of unit; those of GGUF files are in ``gguf``, those of
drafters in ``drafter_units``."""
