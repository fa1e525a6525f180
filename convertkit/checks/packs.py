"""Verify the packed linears of one fused group, however their scales were chosen.

Scales by amax are derived again, byte for byte. Scales of least squared error are tested for being that. Weights
that lie on a grid must expand to the bits of their source, every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.checkpoint import TensorRef
from convertkit.checks import slots
from convertkit.checks.arrays import flat, source_words, tally_of
from convertkit.checks.bench import Bench, broken
from convertkit.checks.derive import SCALE_VALUES, amax_scales, codes_under, peaks_of, stored_differences, words_of
from convertkit.checks.evidence import PackedEvidence
from convertkit.checks.fidelity import Tally
from convertkit.checks.pack import (
    NARROW,
    RULES,
    SENSES,
    PackTally,
    check_pack_tile,
    expected_global,
    measure_tile,
)
from convertkit.checks.reference import exact_rounded_table, float_of, package_table, plane_tables
from convertkit.checks.tiles import LANES, row_tiles
from convertkit.conversion.encoders import grid_of
from convertkit.conversion.gridsearch import GridFact
from convertkit.conversion.survey import STORAGE
from convertkit.conversion.units import Pack
from convertkit.dialects.spelling import GROUP
from convertkit.errors import Finding

SWEEPS = {"mse": (4, 8), "four-over-six": (0, 0)}
"""Scale bytes that a search tries below and above that of amax."""


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """A tile of one linear: source bits [rows, in], codes [rows, in/2] and block scales [rows, in/16] as written."""

    source: NDArray[Any]
    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Member:
    """One linear of the group: its tally and, where that was measured, amax's and what differs when it is stored."""

    tally: PackTally = field(default_factory=PackTally)
    baseline: Tally | None = None
    differing: int | None = None
    differing_blocks: int | None = None

    def __add__(self, other: Member) -> Member:
        return Member(
            self.tally + other.tally,
            _sum(self.baseline, other.baseline),
            _sum(self.differing, other.differing),
            _sum(self.differing_blocks, other.differing_blocks),
        )


def _sum(one: Any, two: Any) -> Any:
    return two if one is None else one if two is None else one + two


def verify_pack(bench: Bench, unit: Pack) -> tuple[tuple[Finding, ...], tuple[PackedEvidence, ...]]:
    """Faults (broken promises) and evidence of each linear."""
    fact = grid_of(bench.facts, unit)
    amax = bench.facts.group_amax[unit.key]
    recorded = fact.found[0].global_bits if fact else _recorded(unit, amax)
    check = _checker(unit, amax, recorded, fact)
    details: list[PackedEvidence] = []
    faults: list[Finding] = []
    for number, module in enumerate(unit.modules):
        codes, scales, scalar = (bench.staged(f"{module}.{leaf}") for leaf in unit.spelling.leaves)
        global_bits = bench.output_bits(scalar.spec.name)
        member = Member()
        for tile in _tiles(bench, unit.sources[number], codes, scales):
            member += check(tile)
        tally = member.tally
        details.append(
            PackedEvidence(module, tally, global_bits, member.baseline, member.differing, member.differing_blocks)
        )
        if tally.wrong_codes:
            faults.append(broken(codes.spec.name, f"has {tally.wrong_codes} wrong codes", wrong=tally.wrong_codes))
        if tally.wrong_scales:
            faults.append(broken(scales.spec.name, f"has {tally.wrong_scales} wrong scales", wrong=tally.wrong_scales))
        if global_bits != recorded:
            faults.append(broken(scalar.spec.name, "is not the scale of its group"))
    if fact is not None:
        faults += _grid_faults(unit, fact, details)
    if max(item.tally.amax_bits for item in details) != amax:
        faults.append(broken(details[0].module, "was scaled for another largest magnitude"))
    return tuple(faults), tuple(details)


def _recorded(unit: Pack, amax: int) -> int:
    return expected_global(unit.arithmetic, unit.dtype, amax, reversible=unit.reversible, sense=unit.spelling.sense)


def _tiles(bench: Bench, source: TensorRef, codes: TensorRef, scales: TensorRef) -> Iterator[Tile]:
    rows, width = source.spec.shape
    storage = STORAGE[source.spec.dtype]
    for first, count in row_tiles(rows, width):
        bench.desk.stop.check()
        yield Tile(
            bench.desk.rows("source", source, first, (count, width), storage),
            bench.written.rows("codes", codes, first, (count, width // 2), "|u1"),
            bench.written.rows("scales", scales, first, (count, width // GROUP), "|u1"),
        )


def _checker(unit: Pack, amax: int, recorded: int, fact: GridFact | None) -> Callable[[Tile], Member]:
    sense = unit.spelling.sense
    if fact is not None:
        multiplier = float_of(recorded) if sense == "multiplier" else np.float32(1.0) / float_of(recorded)
        table = _expected(unit, fact)
        return lambda tile: _check_on_grid(unit, tile, recorded, multiplier, table)
    encoding = expected_global(unit.arithmetic, unit.dtype, amax, reversible=unit.reversible)
    if unit.arithmetic in RULES and unit.least_scale == 1:
        return lambda tile: Member(
            check_pack_tile(
                tile.source, unit.dtype, tile.codes, tile.scales, recorded, sense, unit.arithmetic,
                encoding_bits=encoding,
            )
        )  # fmt: skip
    plain = expected_global(
        "amax" if unit.arithmetic in SWEEPS else unit.arithmetic, unit.dtype, amax, reversible=unit.reversible
    )
    return lambda tile: _check_chosen(unit, tile, recorded, float_of(encoding), plain)


def _measured(unit: Pack, tile: Tile, bits: int, sense: str, encoder: np.float32) -> tuple[int, Tally, int]:
    """Codes that are not those of the multiplier ``encoder`` under the written block scales, the tally of a tile as
    written, and the largest magnitude of its source as storage bits."""
    counts, tally = measure_tile(tile.source, unit.dtype, tile.codes, tile.scales, bits, sense, None, encoder=encoder)
    magnitude = np.uint32(0x7FFFFFFF) if tile.source.dtype.itemsize == 4 else np.uint16(0x7FFF)
    return int(counts[slots.WRONG_CODES]), tally, int((tile.source & magnitude).max())


def _check_chosen(unit: Pack, tile: Tile, recorded: int, encoder: np.float32, plain_bits: int) -> Member:
    """Scales of least error, or with a floor: no scale that is tried has less error; codes are those of the scales."""
    rule = RULES.get(unit.arithmetic, slots.AMAX_RULE)
    plain = np.empty(tile.codes.size, np.uint8), np.empty(tile.scales.size, np.uint8)
    judge = _check_swept if unit.arithmetic in SWEEPS else _check_floored
    wrong_scales, floored_codes = judge(unit, tile, encoder, float_of(plain_bits), plain)
    wrong_codes, tally, amax = _measured(unit, tile, recorded, unit.spelling.sense, encoder)
    if rule != slots.AMAX_RULE:  # its divisors are quotients
        wrong_codes = floored_codes
    by_amax = _loss_of(unit, tile, *plain, plain_bits, SENSES.get(unit.arithmetic, "multiplier"))
    return Member(PackTally(wrong_codes, wrong_scales, amax, tally), by_amax)


def _loss_of(unit: Pack, tile: Tile, codes: Any, scales: Any, bits: int, sense: str) -> Tally:
    """What a tile of finite values loses in other planes: sums, without blocks."""
    from convertkit.checks.kernels_planes import sum_planes

    words, shift = source_words(tile.source, unit.dtype)
    lanes, counts = np.zeros(slots.SUMS * LANES), np.zeros(slots.COUNTS, np.int64)
    sum_planes(words, shift, codes, scales, plane_tables(bits, sense).values, lanes, counts)
    return tally_of(words.size, lanes, counts)


def _check_swept(
    unit: Pack, tile: Tile, encoder: np.float32, plain: np.float32, planes: tuple[Any, Any]
) -> tuple[int, int]:
    """Blocks for which a scale that is tried has less error. Fills ``planes`` with the codes and scales of plain amax,
    under the global scale ``plain``."""
    from convertkit.checks.kernels_choice import check_chosen

    bits, shift = source_words(tile.source, unit.dtype)
    sweep = np.array([*SWEEPS[unit.arithmetic], unit.least_scale], np.int64)
    stretch = np.float32(1.5 if unit.arithmetic == "four-over-six" else 1.0)
    scales = flat(tile.scales, "u1")
    return int(check_chosen(bits, shift, scales, SCALE_VALUES, sweep, encoder, stretch, plain, *planes)), 0


def _check_floored(
    unit: Pack, tile: Tile, encoder: np.float32, plain: np.float32, planes: tuple[Any, Any]
) -> tuple[int, int]:
    """Scales that are not those of amax with a floor, and codes that are not those of the scales. ``planes`` as for
    ``_check_swept``."""
    rule, narrow = RULES[unit.arithmetic], NARROW[unit.dtype]
    words, scales = words_of(tile.source, unit.dtype), tile.scales.reshape(-1)
    peaks = peaks_of(words)
    bases = amax_scales(peaks, encoder, least=unit.least_scale, rule=rule, narrow=narrow)[: scales.size]
    planes[1][:] = amax_scales(peaks, plain, rule=rule, narrow=narrow)[: scales.size]
    planes[0][:] = codes_under(words, planes[1], plain, rule=rule)
    wrong_codes = _nibbles(tile.codes.reshape(-1) ^ codes_under(words, scales, encoder, rule=rule))
    return int(np.count_nonzero(bases != scales)), wrong_codes


def _nibbles(difference: NDArray[np.uint8]) -> int:
    return int(np.count_nonzero(difference & 15)) + int(np.count_nonzero(difference >> 4))


def _expected(unit: Pack, fact: GridFact) -> NDArray[Any]:
    """What planes on the grid expand to [256, 16]: by exact products, or by the steps of the package that packed."""
    bits, sense, arithmetic = fact.found[0].global_bits, unit.spelling.sense, fact.found[0].arithmetic
    if arithmetic == "exact":
        return exact_rounded_table(bits, sense, unit.dtype)
    return package_table(bits, sense, unit.dtype, arithmetic)


def _check_on_grid(unit: Pack, tile: Tile, recorded: int, multiplier: np.float32, table: NDArray[Any]) -> Member:
    """Elements that do not expand to the bits of the source; blocks with any must be packed by amax."""
    differs = stored_differences(tile.source, tile.codes, tile.scales, table)
    scales = tile.scales.reshape(-1)
    differing = int(np.count_nonzero(differs))
    off = differs.any(axis=1) if differing else np.zeros(len(differs), np.bool_)
    wrong_scales = int(np.count_nonzero((scales == 0) | (scales >= 0x7F)))
    wrong_codes = 0
    if off.any():
        words = words_of(tile.source, unit.dtype)
        bases = amax_scales(peaks_of(words), multiplier, least=unit.least_scale)[: scales.size]
        wrong_scales += int(np.count_nonzero((bases != scales) & off))
        wrong = (tile.codes.reshape(-1) ^ codes_under(words, bases, multiplier)).reshape(-1, 8)
        wrong_codes = _nibbles(wrong[off & (bases == scales)])
    _, tally, amax = _measured(unit, tile, recorded, unit.spelling.sense, multiplier)
    return Member(
        PackTally(wrong_codes, wrong_scales, amax, tally),
        None,
        differing,
        int(np.count_nonzero(off)),
    )


def _grid_faults(unit: Pack, fact: GridFact, details: list[PackedEvidence]) -> list[Finding]:
    """A group on a grid has no differing element; one partly on it has as many other blocks as were found."""
    promised = [item.blocks - item.on for item in fact.where] or [0] * len(details)
    return [
        broken(
            f"{item.module}.{unit.spelling.codes}",
            f"expands to {item.differing} elements in {item.differing_blocks} blocks that are not those of its source",
            differing=item.differing,
        )
        for item, blocks in zip(details, promised, strict=True)
        if item.differing_blocks != blocks
    ]
