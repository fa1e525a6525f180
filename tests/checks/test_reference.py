"""The checker's tables against fractions and by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convertkit.checks import reference
from tests.checks import plain

POSITIVE = st.integers(1, 0x7F7FFFFF)
USUAL = st.integers(0x2F800000, 0x4F800000)  # 2**-32 .. 2**32


def value_of(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))


def test_scale_bytes_are_e4m3_numbers() -> None:
    assert [unit / 512 for unit in reference.SCALE_UNITS[:127].tolist()] == list(plain.SCALES)
    assert reference.SCALE_UNITS[0x7E] / 512 == 448
    assert reference.SCALE_UNITS[0x01] / 512 == 2.0**-9


@pytest.mark.parametrize("sense", ["multiplier", "divisor"])
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@given(bits=st.one_of(POSITIVE, USUAL), scale=st.integers(0, 126), code=st.integers(0, 7))
@settings(max_examples=150, deadline=None)
def test_each_entry_is_the_real_number_rounded_once(sense: str, dtype: str, bits: int, scale: int, code: int) -> None:
    table = reference.exact_rounded_table(bits, sense, dtype)
    real = plain.exact(code, scale, value_of(bits), sense)
    assert int(table[scale, code]) == plain.round_once(real, dtype)
    assert int(table[scale, code | 8]) == plain.round_once(-real, dtype, minus=True)
    assert int(table[scale | 128, code | 8]) == plain.round_once(real, dtype)
    assert reference.exact_table(bits, sense)[scale, code] == float(real)


@pytest.mark.parametrize(
    ("global_bits", "sense", "dtype", "scale", "code", "stored"),
    [
        (0x3F800000, "multiplier", "BF16", 0x38, 1, 0x3F00),  # 0.5 * 1 * 1
        (0x3F800000, "divisor", "BF16", 0x38, 15, 0xC0C0),  # -6
        (0x3F800000, "multiplier", "BF16", 0x38, 8, 0x8000),  # -0
        (0x3FA40000, "multiplier", "BF16", 0x38, 3, 0x3FF6),  # 1.5 * 1.28125 = 1.921875
        (0x3F808000, "multiplier", "BF16", 0x38, 2, 0x3F80),  # a tie, down to even
        (0x3F818000, "multiplier", "BF16", 0x38, 2, 0x3F82),  # a tie, up to even
        (0x40400000, "divisor", "F32", 0x38, 2, 0x3EAAAAAB),  # 1/3
        (0x7F000000, "multiplier", "BF16", 0x7E, 7, 0x7F80),  # overflows to infinity
        (0x33800000, "multiplier", "F16", 0x01, 1, 0x0000),  # 2**-34 underflows
        (0x3F800000, "multiplier", "F16", 0x7F, 0, 0x7E00),  # a NaN scale
        (0x3F800000, "multiplier", "BF16", 0xFF, 3, 0x7FC0),
    ],
)
def test_entries_by_hand(global_bits: int, sense: str, dtype: str, scale: int, code: int, stored: int) -> None:
    assert int(reference.exact_rounded_table(global_bits, sense, dtype)[scale, code]) == stored


@pytest.mark.parametrize("bits", [0, 0x80000000, 0xBF800000, 0x7F800000, 0x7FC00000])
def test_global_scales_that_are_not_positive_numbers_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match="positive finite"):
        reference.exact_rounded_table(bits, "multiplier", "BF16")
    with pytest.raises(ValueError, match="positive finite"):
        reference.plane_tables(bits, "divisor")


def test_unknown_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="sense"):
        reference.exact_table(0x3F800000, "other")


@given(bits=USUAL, scale=st.integers(0, 126), code=st.integers(0, 15))
@settings(max_examples=200, deadline=None)
def test_package_tables_take_the_packages_steps(bits: int, scale: int, code: int) -> None:
    def rounded(value: Fraction) -> Fraction:
        stored = plain.round_once(abs(value), "F32")
        return Fraction(value_of(stored)) * (-1 if value < 0 else 1)

    sign, size = (-1) ** (code >> 3), Fraction(plain.CODES[code & 7])
    scale_value, given_ = Fraction(plain.SCALES[scale]), Fraction(value_of(bits))
    inverse = rounded(1 / given_)
    for sense, multiplier, divisor in (("multiplier", given_, inverse), ("divisor", inverse, given_)):
        modelopt = rounded(sign * size * rounded(scale_value * multiplier))
        other = rounded(sign * size * rounded(scale_value / divisor))
        table = reference.package_table(bits, sense, "BF16", "modelopt")
        minus = sign < 0 and code != 8  # ModelOpt's table holds an integer 0 for code 8
        assert int(table[scale, code]) == plain.round_once(modelopt, "BF16", minus)
        table = reference.package_table(bits, sense, "BF16", "compressed-tensors")
        assert int(table[scale, code]) == plain.round_once(other, "BF16", sign < 0)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@given(words=st.lists(st.integers(0, 0xFFFFFFFF), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_narrowing_rounds_once(dtype: str, words: list[int]) -> None:
    values = np.array(words, np.uint32).view(np.float32)
    values = values[np.isfinite(values)]
    assert reference.narrowed(values, dtype).tolist() == plain.to_dtype(values, dtype).tolist()


def test_narrowing_keeps_special_values() -> None:
    values = np.array([np.inf, -np.inf, np.nan, -0.0], np.float32)
    assert reference.narrowed(values, "BF16").tolist() == [0x7F80, 0xFF80, 0x7FC0, 0x8000]
    assert reference.narrowed(values, "F16").tolist() == [0x7C00, 0xFC00, 0x7E00, 0x8000]


@given(bits=USUAL, stored=st.sampled_from([None, "BF16", "F16"]))
@settings(max_examples=50, deadline=None)
def test_plane_tables_describe_their_values(bits: int, stored: str | None) -> None:
    tables = reference.plane_tables(bits, "multiplier", stored)
    for scale in range(127):
        top = abs(Fraction(float(tables.values[scale, 7]))) if np.isfinite(tables.values[scale, 7]) else None
        if top is not None and tables.tops[scale] < np.float32(3e38):
            assert Fraction(float(tables.tops[scale])) <= top
            assert top < Fraction(float(np.nextafter(tables.tops[scale], np.float32(np.inf))))
        first = next((code for code in range(8) if tables.values[scale, code] != 0), 8)
        assert tables.starts[scale] == first


def test_rounding_to_bf16_in_pieces_is_that_of_fractions() -> None:
    random = np.random.default_rng(3)
    bits = random.integers(0, 1 << 32, 70_000, dtype=np.uint64).astype(np.uint32)
    bits[:8] = (0x7F800000, 0xFF800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x00018000, 0x00008000)
    made = reference.narrowed(bits.view(np.float32), "BF16")
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    assert (made[nan] == 0x7FC0).all()
    whole, rest = bits[~nan] >> 16, bits[~nan] & 0xFFFF
    up = (rest > 0x8000) | ((rest == 0x8000) & (whole & 1 == 1))
    assert np.array_equal(made[~nan], (whole + up).astype(np.uint16))
