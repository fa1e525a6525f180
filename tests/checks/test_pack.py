"""The pack check: the same bits as plain arithmetic, and every planted fault counted exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from convertkit.checks.pack import SENSES, PackTally, check_pack_tile, expected_global
from convertkit.checks.reference import float_of
from tests.checks import plain

ARITHMETICS = ("amax", "amax-llmcompressor")
DTYPES = ("BF16", "F16", "F32")


class Packed:
    """A matrix in ``dtype``, packed by the plain encoder."""

    def __init__(self, values: NDArray[np.float32], dtype: str, arithmetic: str) -> None:
        self.dtype, self.arithmetic, self.sense = dtype, arithmetic, SENSES[arithmetic]
        self.source = plain.to_dtype(values, dtype)
        self.values = plain.float32(self.source, dtype)
        magnitude = 0x7FFFFFFF if dtype == "F32" else 0x7FFF
        self.amax_bits = int((self.source & magnitude).max())
        self.global_bits = expected_global(arithmetic, dtype, self.amax_bits)
        self.scales, self.codes = plain.encoded(self.values, dtype, arithmetic, float_of(self.global_bits))

    def check(self, **changes: Any) -> PackTally:
        return check_pack_tile(
            changes.get("source", self.source), self.dtype, changes.get("codes", self.codes),
            changes.get("scales", self.scales), changes.get("global_bits", self.global_bits), self.sense,
            self.arithmetic, stored=changes.get("stored"),
        )  # fmt: skip


def gaussian(rows: int, width: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def wild(seed: int, blocks: int) -> NDArray[np.float32]:
    """Blocks of every kind: zeros, signed zeros, ties of the grid, tiny, huge, mixed magnitudes."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((blocks, 16)) * np.exp2(rng.integers(-40, 10, (blocks, 1)))
    ties = rng.choice([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0], (blocks, 16)) * rng.choice([-1, 1], (blocks, 16))
    kind = rng.integers(0, 6, (blocks, 1))
    values = np.where(kind == 0, 0.0, values)
    values = np.where(kind == 1, -0.0, values)
    values = np.where(kind == 2, ties * np.exp2(rng.integers(-3, 3, (blocks, 1))), values)
    values = np.where(kind == 3, values * np.exp2(rng.integers(-30, 1, (blocks, 16))), values)
    return values.astype(np.float32)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=st.integers(0, 2**32), blocks=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_plain_packing_of_anything_is_found_right(dtype: str, arithmetic: str, seed: int, blocks: int) -> None:
    packed = Packed(wild(seed, blocks), dtype, arithmetic)
    tally = packed.check()
    assert (tally.wrong_codes, tally.wrong_scales) == (0, 0)
    assert tally.amax_bits == packed.amax_bits


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 16), (1, 1024), (2, 528), (3, 1040), (5, 1600)])
def test_measures_have_the_bits_of_plain_sums(dtype: str, arithmetic: str, shape: tuple[int, int]) -> None:
    packed = Packed(gaussian(*shape), dtype, arithmetic)
    reference = packed.values.astype(np.float64)
    candidate = plain.decoded(packed.codes, packed.scales, float(float_of(packed.global_bits)), packed.sense)
    tally = packed.check().fidelity
    assert tally.square_reference.value == plain.folded(reference * reference)
    assert tally.square_candidate.value == plain.folded(candidate * candidate)
    assert tally.square_error.value == plain.folded((reference - candidate) ** 2)
    assert tally.max_abs_error == np.abs(reference - candidate).max()
    assert tally.changed == np.count_nonzero(reference != candidate)
    assert (tally.elements, tally.blocks) == (reference.size, reference.size // 16)
    assert tally.scale_histogram == tuple(np.bincount(packed.scales.reshape(-1), minlength=256).tolist())
    tops = plain.decoded(
        np.full_like(packed.codes, 0x77), packed.scales, float(float_of(packed.global_bits)), packed.sense
    )
    assert tally.saturated == np.count_nonzero(np.abs(reference) > tops)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_wrong_nibble_is_one_wrong_code_wherever_it_is(dtype: str, arithmetic: str) -> None:
    packed = Packed(gaussian(2, 1056), dtype, arithmetic)
    rng = np.random.default_rng(3)
    for place in rng.choice(packed.codes.size, 40, replace=False):
        for flip in (1, 2, 4, 8, 15, 0x10, 0x80, 0xF0):
            codes = packed.codes.copy()
            codes.reshape(-1)[place] ^= flip
            tally = packed.check(codes=codes)
            assert (tally.wrong_codes, tally.wrong_scales) == (1, 0)
    codes = packed.codes ^ np.uint8(0x11)
    assert packed.check(codes=codes).wrong_codes == packed.source.size


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_one_wrong_scale_byte_is_one_wrong_scale(arithmetic: str) -> None:
    packed = Packed(gaussian(2, 1056), "BF16", arithmetic)
    for place in range(packed.scales.size):
        for bit in range(8):
            scales = packed.scales.copy()
            scales.reshape(-1)[place] ^= np.uint8(1 << bit)
            tally = packed.check(scales=scales)
            assert (tally.wrong_codes, tally.wrong_scales) == (0, 1)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_a_global_scale_that_is_off_by_some_bits_is_noticed(arithmetic: str) -> None:
    packed = Packed(gaussian(4, 1024), "F32", arithmetic)
    tally = packed.check(global_bits=packed.global_bits + (1 << 18))
    assert tally.wrong_codes > 0
    assert tally.wrong_scales > 0


def test_swapped_nibbles_are_noticed() -> None:
    packed = Packed(gaussian(2, 512), "BF16", "amax")
    swapped = (packed.codes >> 4) | (packed.codes << 4)
    tally = packed.check(codes=swapped)
    nibbles = plain.nibbles_of(packed.codes)
    assert tally.wrong_codes == np.count_nonzero(nibbles != plain.nibbles_of(swapped))


def test_a_changed_source_bit_is_noticed() -> None:
    packed = Packed(gaussian(1, 64), "BF16", "amax")
    before = packed.check()
    source = packed.source.copy()
    place = int(np.abs(packed.values).argmax())
    source.reshape(-1)[place] -= 0x80  # half the largest value of the tensor
    tally = packed.check(source=source)
    assert tally.amax_bits < packed.amax_bits
    assert (tally.wrong_codes, tally.wrong_scales) != (before.wrong_codes, before.wrong_scales)


def test_blocks_by_hand() -> None:
    """g = 1: a block of top 6 has scale 1.0, a block of zeros has 1.0 too, and each value its code."""
    values = np.array([[0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6] + [0.0] * 16], np.float32)
    source = plain.to_dtype(values, "BF16")
    # code 8 is never written for -0: the quotient is not below zero
    codes = np.array([[0x10, 0x32, 0x54, 0x76, 0x90, 0xBA, 0xDC, 0xFE] + [0] * 8], np.uint8)
    scales = np.array([[0x38, 0x38]], np.uint8)
    tally = check_pack_tile(source, "BF16", codes, scales, 0x3F800000, "multiplier", "amax")
    assert (tally.wrong_codes, tally.wrong_scales, tally.amax_bits) == (0, 0, 0x40C0)
    assert (tally.fidelity.changed, tally.fidelity.saturated, tally.fidelity.flushed_blocks) == (0, 0, 0)
    assert tally.fidelity.scale_histogram[0x38] == 2
    assert tally.fidelity.square_reference.total == 137.0


def test_flushed_and_saturated_by_hand() -> None:
    values = np.array([[1e-8] * 16 + [7.0] * 15 + [6.0]], np.float32)
    source = values.view(np.uint32)
    codes = np.array([[0] * 8 + [0x77] * 8], np.uint8)
    scales = np.array([[0x01, 0x38]], np.uint8)
    tally = check_pack_tile(source, "F32", codes, scales, 0x3F800000, "multiplier", "amax").fidelity
    assert (tally.flushed_blocks, tally.saturated) == (1, 15)
    zero_scale = np.array([[0x00, 0x38]], np.uint8)
    codes = np.full((1, 16), 0x77, np.uint8)
    tally = check_pack_tile(source, "F32", codes, zero_scale, 0x3F800000, "multiplier", "amax").fidelity
    assert (tally.flushed_blocks, tally.saturated) == (1, 31)


def test_an_all_zero_tensor_has_scale_one_and_no_nan() -> None:
    for arithmetic, byte in (("amax", 0x38), ("amax-llmcompressor", 0x20)):
        packed = Packed(np.zeros((1, 32), np.float32), "BF16", arithmetic)
        assert packed.global_bits == 0x3F800000
        scales, codes = np.full((1, 2), byte, np.uint8), np.zeros((1, 16), np.uint8)
        tally = packed.check(scales=scales, codes=codes)
        assert (tally.wrong_codes, tally.wrong_scales) == (0, 0)
        nan = np.full((1, 2), 0x7F, np.uint8)
        tally = packed.check(scales=nan, codes=np.full((1, 16), 0x77, np.uint8))
        assert (tally.wrong_codes, tally.wrong_scales, tally.fidelity.nonfinite) == (32, 2, 32)


def test_values_that_are_not_finite_are_counted_and_left_out_of_sums() -> None:
    packed = Packed(gaussian(1, 2048), "F32", "amax")
    clean = packed.check().fidelity
    source = packed.source.copy()
    source[0, [3, 1500]] = [0x7FC00000, 0xFF800000]
    source[0, 1600] = 0
    tally = packed.check(source=source).fidelity
    assert tally.nonfinite == 2
    assert 0 < tally.square_error.total < clean.square_error.total + packed.values[0, 1600] ** 2
    assert np.isfinite(tally.max_abs_error)


def test_as_stored_measures_the_rounded_values() -> None:
    packed = Packed(gaussian(2, 512), "BF16", "amax")
    candidate = plain.decoded(packed.codes, packed.scales, float(float_of(packed.global_bits)), packed.sense)
    stored = plain.float32(plain.to_dtype(candidate.astype(np.float32), "BF16"), "BF16").astype(np.float64)
    tally = packed.check(stored="BF16").fidelity
    assert tally.square_candidate.value == plain.folded(stored * stored)
    assert tally.max_abs_error == np.abs(packed.values - stored).max()


@given(bits=st.integers(0, 0x7F7F), reversible=st.booleans())
@settings(max_examples=200, deadline=None)
def test_expected_globals(bits: int, reversible: bool) -> None:
    amax = float(plain.float32(np.array([bits], np.uint16), "BF16")[0])
    scale = float_of(expected_global("amax", "BF16", bits, reversible=reversible))
    plain_scale = np.float32(1) if amax == 0 else max(np.float32(amax) / np.float32(2688), np.float32(2.0**-126))
    if reversible:
        assert np.float32(1) / (np.float32(1) / scale) == scale
        assert plain_scale <= scale <= plain_scale * np.float32(1 + 2.0**-20)
    else:
        assert scale == plain_scale


@pytest.mark.parametrize(
    ("arithmetic", "dtype", "amax_bits", "expected"),
    [
        ("amax", "BF16", 0x4528, 0x3F800000),  # 2688 / 2688
        ("amax", "F16", 0x6940, 0x3F800000),
        ("amax", "F32", 0x00000001, 0x00800000),  # tiny: the least normal multiplier
        ("amax-llmcompressor", "BF16", 0x3F80, 0x45280000),  # 2688 / 1
        ("amax-llmcompressor", "BF16", 0x4040, 0x44600000),  # bf16(bf16(1/3) * 2688) = 896
        ("amax-llmcompressor", "BF16", 0x0000, 0x3F800000),
        ("amax-llmcompressor", "F16", 0x2800, 0x3F800000),  # 2688 / 2**-5 overflows F16: 1.0
        ("amax-llmcompressor", "F32", 0x40400000, 0x44600000),
    ],
)
def test_expected_globals_by_hand(arithmetic: str, dtype: str, amax_bits: int, expected: int) -> None:
    assert expected_global(arithmetic, dtype, amax_bits) == expected


def test_a_scale_recorded_in_the_other_sense() -> None:
    packed = Packed(gaussian(4, 1024), "BF16", "amax")
    own = expected_global("amax", "BF16", packed.amax_bits)
    other = expected_global("amax", "BF16", packed.amax_bits, sense="divisor")
    assert float_of(other) == np.float32(1) / float_of(own)
    tally = check_pack_tile(
        packed.source, "BF16", packed.codes, packed.scales, other, "divisor", "amax", encoding_bits=own
    )
    assert (tally.wrong_codes, tally.wrong_scales) == (0, 0)
    assert tally.fidelity.square_error.total == pytest.approx(packed.check().fidelity.square_error.total, rel=1e-5)


def test_tiles_add_up_and_may_be_read_only_or_strided() -> None:
    packed = Packed(gaussian(6, 1024), "BF16", "amax")
    whole = packed.check()
    parts = PackTally()
    for first in range(0, 6, 2):
        pieces = {name: getattr(packed, name)[first : first + 2].copy() for name in ("source", "codes", "scales")}
        for piece in pieces.values():
            piece.flags.writeable = False
        parts = parts + packed.check(**pieces)
    assert (parts.amax_bits, parts.fidelity.elements) == (whole.amax_bits, whole.fidelity.elements)
    assert parts.fidelity.scale_histogram == whole.fidelity.scale_histogram
    assert parts.fidelity.square_error.total == pytest.approx(whole.fidelity.square_error.total, rel=1e-14)
    strided = np.repeat(packed.source, 2, axis=1)[:, ::2]
    assert packed.check(source=strided) == whole


def test_shapes_that_do_not_fit_are_refused() -> None:
    packed = Packed(gaussian(2, 64), "BF16", "amax")
    with pytest.raises(ValueError, match="do not fit"):
        packed.check(codes=packed.codes[:1])
    with pytest.raises(ValueError, match="do not fit"):
        packed.check(scales=packed.scales[:, :1])
