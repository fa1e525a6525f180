"""Encode tables: thresholds proved exhaustively against the float formulas, and the rules of odd groups."""

from __future__ import annotations

import numpy as np
import pytest

from convertkit.grids.nvfp4 import arithmetics, numbers, tables
from tests.grids import float_reference as reference

ARITHMETICS = tuple(arithmetics.ARITHMETICS)
DTYPES = ("BF16", "F16", "F32")
# Group amaxes: ordinary, extreme, at powers of two, subnormal.
AMAXES = {
    "BF16": (0x3D4F, 0x3F80, 0x3CCC, 0x4428, 0x7F7F, 0x0080, 0x007F, 0x0001, 0x0B21, 0x0723),
    "F16": (0x2A55, 0x3C00, 0x7BFF, 0x0400, 0x03FF, 0x0001, 0x1234, 0x5555),
    "F32": (0x3D4F1234, 0x3F800000, 0x45280000, 0x7F7FFFFF, 0x00800000, 0x007FFFFF, 0x00000001, 0x07300000),
}


def test_grids_hold_the_published_values() -> None:
    assert [float(v) for v in numbers.E2M1[:8]] == [float(v) for v in reference.CODE_VALUES]
    assert (np.signbit(numbers.E2M1) == (np.arange(16) >= 8)).all()
    exact = [float(reference.scale_value(byte)) for byte in range(256) if byte & 0x7F != 0x7F]
    assert numbers.E4M3[np.arange(256) & 0x7F != 0x7F].tolist() == exact
    assert np.isnan(numbers.E4M3[[0x7F, 0xFF]]).all()


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_every_block_amax_gets_the_scale_of_the_float_formula(arithmetic: str, dtype: str) -> None:
    amaxes = np.arange(reference.INFINITY[dtype], dtype=np.uint16)
    blocks = np.zeros((amaxes.size, 16), np.uint16)
    blocks[:, 5] = amaxes
    for group in AMAXES[dtype]:
        built = tables.build_encode_tables(arithmetic, dtype, group)
        _, scales, scale = reference.encode(arithmetic, dtype, blocks, group)
        assert numbers.float_of(built.global_bits) == scale
        assert np.array_equal(built.scale_bytes[amaxes], scales[:, 0])


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_every_magnitude_under_every_scale_gets_the_code_of_the_float_formula(arithmetic: str, dtype: str) -> None:
    magnitudes = np.arange(reference.INFINITY[dtype], dtype=np.uint16)
    values = reference.floats(magnitudes, dtype)
    for group in AMAXES[dtype][:4]:
        built = tables.build_encode_tables(arithmetic, dtype, group)
        scale = numbers.float_of(built.global_bits)
        for byte in range(1, 127):
            with np.errstate(all="ignore"):
                block = np.float32(float(reference.scale_value(byte)))
                ratio = values / (block * scale if built.sense == "multiplier" else block / scale)
                wide = ratio.astype(np.float64)
            codes = np.minimum.reduce([np.rint(2 * wide), np.rint(wide) + 2, np.rint(wide / 2) + 4])
            bounds = built.code_bounds[byte]
            assert np.array_equal(np.searchsorted(bounds[:7], magnitudes, side="left"), np.minimum(codes, 7))
            assert np.array_equal(magnitudes > bounds[7], ratio > 0)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("group", AMAXES["F32"])
def test_f32_thresholds_change_the_result_exactly_where_they_say(arithmetic: str, group: int) -> None:
    built = tables.build_encode_tables(arithmetic, "F32", group)
    edges = built.scale_bounds[1:127][built.scale_bounds[1:127] <= group]
    for offset in (0, 1):
        blocks = np.zeros((edges.size, 16), np.uint32)
        blocks[:, 0] = edges - np.uint32(offset)
        _, scales, _ = reference.encode(arithmetic, "F32", blocks, group)
        expected = np.searchsorted(built.scale_bounds[:127], blocks[:, 0], side="right") - 1
        assert np.array_equal(scales[:, 0], np.where(expected == 0, built.zero_byte, expected))
    scale = numbers.float_of(built.global_bits)
    with np.errstate(all="ignore"):
        blocks_value = numbers.E4M3[1:127, None]
        unit = blocks_value * scale if built.sense == "multiplier" else blocks_value / scale
        past = (built.code_bounds[1:127] + 1).astype(np.uint32).view(np.float32) / unit
        before = built.code_bounds[1:127].astype(np.uint32).view(np.float32) / unit
    finite = built.code_bounds[1:127] + 1 < 0x7F800000
    middles = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 0.0], np.float32)
    ties_up = np.array([False, True, False, True, False, True, False, False])
    assert (np.where(ties_up, past >= middles, past > middles) | ~finite).all()
    assert np.where(ties_up, before < middles, before <= middles).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("reversible", [False, True])
def test_no_group_gets_an_unusable_scale(arithmetic: str, dtype: str, reversible: bool) -> None:
    for group in (0, *AMAXES[dtype]):
        built = tables.build_encode_tables(arithmetic, dtype, group, reversible=reversible)
        assert 0 < built.global_bits < 0x7F800000
        assert np.isfinite(numbers.float_of(numbers.swap_sense(built.global_bits)[0]))
        assert built.scale_bytes.max() <= 126
        if dtype != "F32":
            assert built.scale_bytes.min() >= 1
            assert built.scale_bytes[0] == built.zero_byte


def test_a_group_of_zeros_gets_the_scale_one() -> None:
    for arithmetic, byte in (("amax", 0x38), ("amax-llmcompressor", 0x20)):
        for dtype in DTYPES:
            built = tables.build_encode_tables(arithmetic, dtype, 0)
            assert (built.global_bits, built.zero_byte) == (0x3F800000, byte)


@pytest.mark.parametrize(("dtype", "border"), [("BF16", 0x0628), ("F32", 0x06280000)])
def test_no_scale_of_modelopts_arithmetic_is_below_the_normal_numbers(dtype: str, border: int) -> None:
    # 2688 * 2^-126 is the least amax whose scale is a normal number.
    for group in (1, border - 1, border):
        assert tables.build_encode_tables("amax", dtype, group).global_bits == 0x00800000
    assert tables.build_encode_tables("amax", dtype, border + 1).global_bits > 0x00800000


def test_llmcompressor_falls_back_to_one_where_its_scale_overflows() -> None:
    # In F16, 2688/amax passes 65504 below amax 0.041: the package then uses 1.0 and so do we.
    small = int(np.float16(0.04).view(np.uint16))
    assert tables.build_encode_tables("amax-llmcompressor", "F16", small).global_bits == 0x3F800000


def test_global_scales_by_hand() -> None:
    assert tables.build_encode_tables("amax", "F32", 0x45280000).global_bits == 0x3F800000  # 2688 / 2688
    assert tables.build_encode_tables("amax", "BF16", 0x3F80).global_bits == 0x39C30C31  # 1 / 2688
    # BF16(1/1.5) = 0x3F2B = 0.66796875; times 2688 is 1795.5, in BF16 1792.
    assert tables.build_encode_tables("amax-llmcompressor", "BF16", 0x3FC0).global_bits == 0x44E00000
    # In F32 the same weights get fl(fl(1/1.5) * 2688).
    assert tables.build_encode_tables("amax-llmcompressor", "F32", 0x3FC00000).global_bits == 0x44E00000


def test_reversible_scales_invert_back() -> None:
    rng = np.random.default_rng(3)
    moved = 0
    for bits in rng.integers(0x30000000, 0x48000000, 400).tolist():
        found = numbers.reversible_global(bits)
        value = numbers.float_of(found)
        assert found >= bits
        assert np.float32(1) / (np.float32(1) / value) == value
        for skipped in range(bits, found):
            other = numbers.float_of(skipped)
            assert np.float32(1) / (np.float32(1) / other) != other
        moved += found != bits
    assert 20 < moved < 120
    with pytest.raises(ValueError, match="no reversible scale"):
        numbers.reversible_global(0x7F800000)


def test_swapping_the_sense_gives_the_reciprocal() -> None:
    assert numbers.swap_sense(0x3F800000) == (0x3F800000, True)
    assert numbers.swap_sense(0x39C30C31) == (0x45280000, True)  # fl(1/2688) and 2688
    assert numbers.swap_sense(0x00000001) == (0x7F800000, False)
    lossy = next(bits for bits in range(0x3FC00000, 0x3FC01000) if not numbers.swap_sense(bits)[1])
    assert numbers.reversible_global(lossy) > lossy


def test_nonfinite_groups_are_refused() -> None:
    for dtype in DTYPES:
        with pytest.raises(ValueError, match="not those of a finite"):
            tables.build_encode_tables("amax", dtype, reference.INFINITY[dtype])
