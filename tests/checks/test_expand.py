"""The expand check: plain arithmetic element by element, and every planted fault counted exactly."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from convertkit.checks.expand import ARITHMETICS, Differences, ExpandTally, check_expand_tile, table_of
from convertkit.checks.reference import float_of
from tests.checks import plain

DTYPES = ("BF16", "F16", "F32")
SENSES = ("multiplier", "divisor")
SIGN = {"BF16": 0x8000, "F16": 0x8000, "F32": 0x80000000}
GLOBALS = {"multiplier": 0x39D1B717, "divisor": 0x451C4000}  # 4e-4, 2500


def planes(rows: int, width: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (rows, width // 2)).astype(np.uint8)
    return codes, rng.integers(1, 127, (rows, width // 16)).astype(np.uint8)


def written(
    codes: NDArray[Any], scales: NDArray[Any], global_bits: int, sense: str, dtype: str, arithmetic: str = "exact"
) -> NDArray[Any]:
    table = table_of(global_bits, sense, dtype, arithmetic)
    entries: NDArray[Any] = table[np.repeat(scales, 16, axis=1), plain.nibbles_of(codes)]
    return entries


@pytest.mark.parametrize("sense", SENSES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_expansion_has_no_difference(dtype: str, sense: str) -> None:
    codes, scales = planes(3, 1040)
    nibbles, wide = plain.nibbles_of(codes), np.repeat(scales, 16, axis=1)
    out = (
        np.array(
            [
                plain.round_once(
                    plain.exact(int(c), int(s), float(float_of(GLOBALS[sense])), sense), dtype, bool(c & 8)
                )
                for c, s in zip(nibbles.reshape(-1), wide.reshape(-1), strict=True)
            ]
        )
        .astype("<u4" if dtype == "F32" else "<u2")
        .reshape(nibbles.shape)
    )
    tally = check_expand_tile(codes, scales, GLOBALS[sense], sense, out, dtype)
    minus = int(np.count_nonzero(nibbles == 8))
    assert tally.differences["exact"] == Differences(0, 0)
    assert tally.differing() == 0
    assert (tally.elements, tally.blocks) == (out.size, scales.size)
    assert tally.minus_zero_codes == minus > 0
    assert tally.negative_zeros == int(np.count_nonzero(out == SIGN[dtype]))
    assert tally.unrecovered_zero_signs == 0
    if dtype != "F16":
        assert (tally.negative_zeros, tally.flushed_blocks, tally.unrecovered) == (minus, 0, 0)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("dtype", DTYPES)
@given(bits=st.integers(0x37000000, 0x47000000), sense=st.sampled_from(SENSES), seed=st.integers(0, 999))
@settings(max_examples=25, deadline=None)
def test_all_three_arithmetics_are_counted(dtype: str, arithmetic: str, bits: int, sense: str, seed: int) -> None:
    codes, scales = planes(1, 1056, seed)
    out = written(codes, scales, bits, sense, dtype, arithmetic)
    tally = check_expand_tile(codes, scales, bits, sense, out, dtype, arithmetic=arithmetic)
    magnitude = SIGN[dtype] - 1
    for name in ARITHMETICS:
        other = written(codes, scales, bits, sense, dtype, name)
        zeros = (out & magnitude == 0) & (other & magnitude == 0)
        differ = out != other
        assert tally.differences[name] == Differences(int((differ & ~zeros).sum()), int((differ & zeros).sum()))
        same = check_expand_tile(codes, scales, bits, sense, out, dtype, arithmetic=name)
        assert same == tally


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_flipped_bit_is_one_difference(dtype: str) -> None:
    codes, scales = planes(2, 1056)
    clean = written(codes, scales, GLOBALS["multiplier"], "multiplier", dtype)
    rng = np.random.default_rng(1)
    for place in rng.choice(clean.size, 50, replace=False):
        for bit in range(clean.itemsize * 8):
            out = clean.copy()
            out.reshape(-1)[place] ^= clean.dtype.type(1 << bit)
            tally = check_expand_tile(codes, scales, GLOBALS["multiplier"], "multiplier", out, dtype)
            assert tally.differing() == 1
            both_zero = not (out.reshape(-1)[place] | clean.reshape(-1)[place]) & (SIGN[dtype] - 1)
            assert tally.differences["exact"] == Differences(not both_zero, both_zero)


def test_one_wrong_nibble_or_scale_byte_in_the_planes_is_counted_exactly() -> None:
    codes, scales = planes(2, 512)
    out = written(codes, scales, GLOBALS["divisor"], "divisor", "BF16")
    changed = codes.copy()
    changed[1, 7] ^= 0x30
    assert check_expand_tile(changed, scales, GLOBALS["divisor"], "divisor", out, "BF16").differing() == 1
    changed = scales.copy()
    changed[0, 5] ^= 1
    nonzero = int(np.count_nonzero(plain.nibbles_of(codes)[0, 80:96] & 7))
    assert check_expand_tile(codes, changed, GLOBALS["divisor"], "divisor", out, "BF16").differing() == nonzero


def test_modelopt_writes_no_minus_zero() -> None:
    codes, scales = planes(1, 512)
    out = written(codes, scales, GLOBALS["multiplier"], "multiplier", "BF16", "modelopt")
    minus = int(np.count_nonzero(plain.nibbles_of(codes) == 8))
    tally = check_expand_tile(codes, scales, GLOBALS["multiplier"], "multiplier", out, "BF16", arithmetic="modelopt")
    assert tally.differences["modelopt"] == Differences(0, 0)
    assert tally.differences["exact"] == Differences(0, minus)
    assert (tally.negative_zeros, tally.minus_zero_codes) == (0, minus)
    assert (tally.unrecovered, tally.unrecovered_zero_signs) == (0, minus)


def recovered(out: NDArray[Any], scales: NDArray[Any], bits: int, sense: str, dtype: str) -> NDArray[np.int64]:
    """Codes nearest to written values over the recorded scales, by fractions."""
    wide = np.repeat(scales, 16, axis=1).reshape(-1)
    values = plain.float32(out, dtype).reshape(-1)
    result = []
    for value, scale in zip(values.tolist(), wide.tolist(), strict=True):
        unit = plain.exact(2, scale, float(float_of(bits)), sense)
        size = abs(Fraction(value)) / unit if np.isfinite(value) and unit else Fraction(6 if unit else 0)
        steps = [Fraction(code) for code in plain.CODES]
        result.append(min(range(8), key=lambda i: (abs(steps[i] - min(size, Fraction(6))), i % 2)))
    return np.array(result)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_codes_that_cannot_be_recovered_are_counted(dtype: str) -> None:
    """In F16 this global scale makes some values subnormal and some zero."""
    bits = 0x34000000  # 2**-23
    codes, scales = planes(2, 1040, 5)
    scales[0, :3] = 0
    out = written(codes, scales, bits, "multiplier", dtype)
    tally = check_expand_tile(codes, scales, bits, "multiplier", out, dtype)
    nibbles = plain.nibbles_of(codes).reshape(-1)
    lost = recovered(out, scales, bits, "multiplier", dtype) != nibbles & 7
    assert tally.unrecovered == int(lost.sum())
    zeros = (out.reshape(-1, 16) & 0x7FFF == 0).all(axis=1)
    assert tally.flushed_blocks == int((zeros & (nibbles.reshape(-1, 16) & 7).any(axis=1)).sum())
    assert (tally.unrecovered > 48) == (dtype == "F16")
    assert tally.differing() == 0


def test_a_wrong_element_that_is_another_code_is_unrecovered() -> None:
    codes, scales = np.full((1, 8), 0x22, np.uint8), np.full((1, 1), 0x38, np.uint8)
    out = np.full((1, 16), 0x3F80, np.uint16)
    assert check_expand_tile(codes, scales, 0x3F800000, "multiplier", out, "BF16").unrecovered == 0
    out[0, 4] = 0x3F81  # still nearest to 1.0
    tally = check_expand_tile(codes, scales, 0x3F800000, "multiplier", out, "BF16")
    assert (tally.differing(), tally.unrecovered) == (1, 0)
    out[0, 4:7] = [0x4000, 0xBF80, 0x7FC0]  # 2.0, -1.0, NaN
    tally = check_expand_tile(codes, scales, 0x3F800000, "multiplier", out, "BF16")
    assert (tally.differing(), tally.unrecovered) == (3, 3)


def test_tallies_add_up() -> None:
    codes, scales = planes(4, 512)
    out = written(codes, scales, GLOBALS["divisor"], "divisor", "BF16", "modelopt")
    whole = check_expand_tile(codes, scales, GLOBALS["divisor"], "divisor", out, "BF16")
    parts = ExpandTally()
    for row in range(4):
        rows = slice(row, row + 1)
        parts = parts + check_expand_tile(codes[rows], scales[rows], GLOBALS["divisor"], "divisor", out[rows], "BF16")
    assert parts == whole


def test_shapes_that_do_not_fit_are_refused() -> None:
    codes, scales = planes(2, 64)
    with pytest.raises(ValueError, match="do not fit"):
        check_expand_tile(codes, scales, 0x3F800000, "multiplier", np.zeros((2, 48), np.uint16), "BF16")
