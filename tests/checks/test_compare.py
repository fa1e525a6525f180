"""Dense and planes, on either side, measured with the bits of plain sums."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from convertkit.checks import slots
from convertkit.checks.compare import Dense, Planes, Side, compare_tile, measure_small
from convertkit.checks.fidelity import Tally
from convertkit.checks.kernels_dense import measure_dense
from convertkit.checks.reference import float_of
from convertkit.checks.tiles import LANES
from tests.checks import plain

KINDS = ("BF16", "F16", "F32", "multiplier", "divisor")
SHAPE = (3, 1056)
GLOBAL = {"multiplier": 0x39D1B717, "divisor": 0x451C4000}


def side(kind: str, seed: int) -> Side:
    rng = np.random.default_rng(seed)
    if kind in GLOBAL:
        codes = rng.integers(0, 256, (SHAPE[0], SHAPE[1] // 2)).astype(np.uint8)
        scales = rng.integers(0, 127, (SHAPE[0], SHAPE[1] // 16)).astype(np.uint8)
        return Planes(codes, scales, GLOBAL[kind], kind)
    values = (rng.standard_normal(SHAPE) * 0.02).astype(np.float32)
    values[0, :32] = 0
    return Dense(plain.to_dtype(values, kind), kind)


def values_of(item: Side) -> NDArray[np.float64]:
    if isinstance(item, Dense):
        return plain.float32(item.bits, item.dtype).astype(np.float64)
    return plain.decoded(item.codes, item.scales, float(float_of(item.global_bits)), item.sense)


def check(tally: Tally, reference: NDArray[Any], candidate: NDArray[Any]) -> None:
    assert tally.elements == reference.size
    assert tally.changed == np.count_nonzero(reference != candidate)
    assert tally.square_reference.value == plain.folded(reference * reference)
    assert tally.square_candidate.value == plain.folded(candidate * candidate)
    assert tally.square_error.value == plain.folded((reference - candidate) ** 2)
    assert tally.max_abs_error == np.abs(reference - candidate).max()


@pytest.mark.parametrize(("mine", "yours"), list(product(KINDS, repeat=2)))
def test_any_two_sides(mine: str, yours: str) -> None:
    reference, candidate = side(mine, 1), side(yours, 2)
    left, right = values_of(reference), values_of(candidate)
    tally = compare_tile(reference, candidate)
    check(tally, left, right)
    if isinstance(candidate, Planes):
        tops = values_of(replace(candidate, codes=np.full_like(candidate.codes, 0x77)))
        blocks = (left.reshape(-1, 16) != 0).any(axis=1) & ~(right.reshape(-1, 16) != 0).any(axis=1)
        assert tally.saturated == np.count_nonzero(np.abs(left) > tops)
        assert tally.flushed_blocks == np.count_nonzero(blocks)
        assert sum(tally.scale_histogram) == tally.blocks == candidate.scales.size
    else:
        assert (tally.blocks, tally.scale_histogram) == (0, ())
    if isinstance(reference, Dense) and isinstance(candidate, Dense) and mine == yours:
        assert tally.bit_differences == np.count_nonzero(reference.bits != candidate.bits)
    else:
        assert tally.bit_differences is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_side_against_itself_is_exact(kind: str) -> None:
    tally = compare_tile(side(kind, 3), side(kind, 3))
    assert (tally.changed, tally.square_error.total, tally.max_abs_error) == (0, 0.0, 0.0)
    assert tally.square_reference == tally.square_candidate


@pytest.mark.parametrize("mine", ["BF16", "F32", "divisor"])
@pytest.mark.parametrize("yours", ["F16", "F32", "multiplier", "divisor"])
def test_as_stored_rounds_the_candidate_once(mine: str, yours: str) -> None:
    reference, candidate = side(mine, 4), side(yours, 5)
    exact = values_of(candidate)
    bits = [plain.round_once(Fraction(value), "BF16") for value in exact.reshape(-1).tolist()]
    stored = plain.float32(np.array(bits, np.uint16), "BF16").astype(np.float64).reshape(exact.shape)
    check(compare_tile(reference, candidate, stored="BF16"), values_of(reference), stored)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_one_flipped_bit_is_one_bit_difference(dtype: str) -> None:
    reference = side(dtype, 6)
    assert isinstance(reference, Dense)
    bits = reference.bits.copy()
    bits[1, 77] ^= 1
    bits[0, 3] ^= bits.dtype.type(1 << (8 * bits.itemsize - 1))  # 0 becomes -0: other bits, the same value
    tally = compare_tile(reference, Dense(bits, dtype))
    assert (tally.bit_differences, tally.changed) == (2, 1)


@pytest.mark.parametrize(("mine", "yours"), [("BF16", "BF16"), ("F32", "F32"), ("F16", "BF16"), ("BF16", "divisor")])
def test_values_that_are_not_finite_are_counted(mine: str, yours: str) -> None:
    reference, candidate = side(mine, 7), side(yours, 8)
    assert isinstance(reference, Dense)
    infinity = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}
    nan = {"BF16": 0x7FC0, "F16": 0x7E00, "F32": 0x7FC00000}
    reference.bits[0, 100] = nan[mine]
    if isinstance(candidate, Dense):
        candidate.bits[2, 1055] = infinity[yours]
        expected = 2
    else:
        candidate.scales[2, 65] = 0x7F
        expected = 17
    left, right = values_of_finite(reference, candidate)
    tally = compare_tile(reference, candidate)
    assert tally.nonfinite == expected
    assert tally.square_error.value == plain.folded((left - right) ** 2)


def values_of_finite(reference: Dense, candidate: Side) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    left = values_of(reference)
    if isinstance(candidate, Planes):
        scales = np.where(candidate.scales == 0x7F, 0, candidate.scales).astype(np.uint8)
        right = values_of(replace(candidate, scales=scales))
        bad = np.repeat(candidate.scales == 0x7F, 16, axis=1) | ~np.isfinite(left)
    else:
        right = values_of(candidate)
        bad = ~np.isfinite(left) | ~np.isfinite(right)
    return np.where(bad, 0.0, left), np.where(bad, 0.0, right)


def test_sides_of_other_sizes_are_refused() -> None:
    short = Dense(np.zeros((1, 16), np.uint16), "BF16")
    for other in (side("BF16", 1), side("F32", 1), side("divisor", 1)):
        with pytest.raises(ValueError, match=r"against|do not fit"):
            compare_tile(short, other)
        with pytest.raises(ValueError, match=r"against|do not fit"):
            compare_tile(other, short)


@pytest.mark.parametrize("elements", [1, 15, 1023, 1024, 1025, 9000])
@pytest.mark.parametrize("shift", [0, 16])
def test_small_tiles_are_measured_alike_without_kernels(elements: int, shift: int) -> None:
    random = np.random.default_rng(elements)
    dtype = np.uint16 if shift else np.uint32
    left = random.integers(0, 1 << (16 if shift else 32), elements).astype(dtype)  # every kind of bits, NaN too
    right = np.where(random.random(elements) < 0.5, left, random.permutation(left))
    found = []
    for measure in (measure_small, measure_dense):
        lanes = np.zeros(slots.SUMS * LANES)
        counts = np.zeros(slots.COUNTS, np.int64)
        with np.errstate(over="ignore"):
            measure(left, right, shift, lanes, counts)
        found.append((lanes.tobytes(), counts.tobytes()))
    assert found[0] == found[1]
