"""The encoder's bytes: by hand, at every edge, and against plain float arithmetic on anything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from convertkit.grids import dense
from convertkit.grids.nvfp4 import arithmetics, encode, numbers, tables
from tests.grids import float_reference as reference

ARITHMETICS = tuple(arithmetics.ARITHMETICS)
DTYPES = ("BF16", "F16", "F32")
Planes = tuple[NDArray[np.uint8], NDArray[np.uint8], tables.EncodeTables]


def bits(values: Any, dtype: str) -> NDArray[Any]:
    return np.ascontiguousarray(dense.cast(np.asarray(values, np.float32), "F32", dtype))


def encoded(values: NDArray[Any], dtype: str, arithmetic: str, amax_bits: int | None = None) -> Planes:
    built = tables.build_encode_tables(
        arithmetic, dtype, encode.amax_of_tile(values) if amax_bits is None else amax_bits
    )
    # 0xAA: every byte must be written.
    codes = np.full((values.shape[0], values.shape[1] // 2), 0xAA, np.uint8)
    scales = np.full((values.shape[0], values.shape[1] // 16), 0xAA, np.uint8)
    encode.encode_tile(values, built, codes, scales)
    return codes, scales, built


def assert_as_float_arithmetic(values: NDArray[Any], dtype: str, arithmetic: str, amax_bits: int | None = None) -> None:
    group = encode.amax_of_tile(values) if amax_bits is None else amax_bits
    codes, scales, built = encoded(values, dtype, arithmetic, group)
    expected_codes, expected_scales, scale = reference.encode(arithmetic, dtype, values, group)
    assert built.global_bits == int(scale.view(np.uint32))
    assert np.array_equal(scales, expected_scales)
    assert np.array_equal(codes, reference.pack(expected_codes))


# The largest block makes the global scale 1; the block under test has scale 1, so weights are quotients.
LARGEST = [2688.0] + [0.0] * 15
TIES = [6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5.0, -0.0]


# llm-compressor computes its global scale in the weight's dtype; in F16 it can't be 1 for these values.
UNIT_CASES = [(a, d) for a in ARITHMETICS for d in DTYPES if (a, d) != ("amax-llmcompressor", "F16")]


@pytest.mark.parametrize(("arithmetic", "dtype"), UNIT_CASES)
def test_ties_at_every_midpoint_go_to_the_even_code(arithmetic: str, dtype: str) -> None:
    codes, scales, built = encoded(bits([LARGEST + TIES], dtype), dtype, arithmetic)
    assert built.global_bits == 0x3F800000
    assert scales.tobytes() == bytes([0x7E, 0x38])
    # 6 0 | 1 1 -> codes 7 0, 2 2, 4 4, 6 6 and for the negatives 8, a a, c c, e e; -0.0 is code 0.
    assert codes.tobytes().hex() == "0700000000000000" + "07224466a8caec0e"


@pytest.mark.parametrize("dtype", DTYPES)
def test_just_beside_a_tie_the_nearer_code_wins(dtype: str) -> None:
    ties = bits(TIES[1:8], dtype)
    for step, expected in ((1, [1, 2, 3, 4, 5, 6, 7]), (-1, [0, 1, 2, 3, 4, 5, 6])):
        block = np.concatenate(
            [bits([6.0], dtype), ties + ties.dtype.type(step % 2**16 if dtype != "F32" else step % 2**32)]
        )
        row = np.concatenate([bits(LARGEST, dtype), block, bits([0.0] * 8, dtype)])[None]
        codes, _, _ = encoded(np.ascontiguousarray(row), dtype, "amax")
        assert (codes[0, 8:12] & 15).tolist() + (codes[0, 8:12] >> 4).tolist() == [
            7, expected[1], expected[3], expected[5], expected[0], expected[2], expected[4], expected[6],
        ]  # fmt: skip


def test_division_not_reciprocal_decides_ties() -> None:
    # Scale byte 0x07, weight 0.02392577938735485: dividing gives 1.7499999 (code 3), multiplying by the
    # reciprocal 1.75 (code 4).
    block = [0.08203125, 0.02392577938735485] + [0.0] * 14
    weight, unit = np.float32(block[1]), np.float32(0.013671875)
    assert weight / unit < 1.75 == weight * (np.float32(1) / unit)
    codes, scales, built = encoded(bits([LARGEST + block], "F32"), "F32", "amax")
    assert (built.global_bits, scales[0, 1], codes[0, 8]) == (0x3F800000, 0x07, 0x37)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("arithmetic", "byte"), [("amax", 0x38), ("amax-llmcompressor", 0x20)])
def test_blocks_of_zeros(arithmetic: str, byte: int, dtype: str) -> None:
    zeros = bits([[0.0] * 16 + [-0.0] * 16], dtype)
    codes, scales, built = encoded(zeros, dtype, arithmetic)
    assert (codes.tobytes(), scales.tobytes(), built.global_bits) == (bytes(16), bytes([byte] * 2), 0x3F800000)
    codes, scales, _ = encoded(bits([[0.0] * 16 + [1.0] * 16], dtype), dtype, arithmetic)
    assert (codes[0, :8].tobytes(), scales[0, 0]) == (bytes(8), byte)


@pytest.mark.parametrize(("arithmetic", "dtype"), UNIT_CASES)
def test_blocks_too_small_for_any_scale(arithmetic: str, dtype: str) -> None:
    # 2^-8 / 6 is below half of the least scale 2^-9. ModelOpt clamps to it (quotients -0.5 and 2); llm-compressor
    # takes 0.125, and everything rounds to a zero that keeps its sign.
    codes, scales, _ = encoded(bits([[*LARGEST, -(2.0**-10), 2.0**-8] + [0.0] * 14], dtype), dtype, arithmetic)
    assert (scales[0, 1], codes[0, 8]) == {"amax": (0x01, 0x49), "amax-llmcompressor": (0x20, 0x08)}[arithmetic]


def test_a_quotient_that_underflows_loses_its_sign() -> None:
    # -2^-149 divided by 2688 or 5.25 is -0.0 in FP32, which is not below zero; divided by 1.7e-4 it keeps its sign.
    huge = np.float32(2688 * 2688.0)
    values = np.zeros((1, 32), np.uint32)
    values[0, 0] = huge.view(np.uint32)
    values[0, 1] = 0x80000001
    values[0, 16] = np.float32(6).view(np.uint32)
    values[0, 17] = 0x80000001
    codes, scales, built = encoded(values, "F32", "amax")
    assert numbers.float_of(built.global_bits) == 2688
    assert (scales.tolist(), codes[0, 0], codes[0, 8]) == ([[0x7E, 0x01]], 0x07, 0x02)
    codes, _, _ = encoded(values, "F32", "amax", int(np.float32(1e-3).view(np.uint32)))
    assert codes[0, 0] >> 4 == 8


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_outliers_saturation_and_ranges(arithmetic: str, dtype: str) -> None:
    rng = np.random.default_rng(11)
    normal = (rng.standard_normal((64, 128)) * 0.02).astype(np.float32)
    outlier = normal.copy()
    outlier[17, 33] = 2500 * np.abs(normal).max() if dtype != "F16" else 60000
    wide = normal * np.exp2(rng.integers(-18, 5, (64, 128))).astype(np.float32)
    rows = normal * np.exp(2.5 * rng.standard_normal((64, 1))).astype(np.float32)
    holes = np.where(rng.random((64, 8, 1)) < 0.3, 0, normal.reshape(64, 8, 16)).reshape(64, 128).astype(np.float32)
    for values in (normal, outlier, wide, rows, holes, normal * np.float32(1e-36), normal * np.float32(1e30)):
        stored = bits(np.clip(values, -65504, 65504) if dtype == "F16" else values, dtype)
        assert_as_float_arithmetic(stored, dtype, arithmetic)
    # A group amax below the tile's: scales stop at 448 and codes at 6.
    stored = bits(normal * 20, dtype)
    small_group = int(bits([0.05], dtype)[0])
    assert_as_float_arithmetic(stored, dtype, arithmetic, small_group)
    codes, scales, _ = encoded(stored, dtype, arithmetic, small_group)
    assert (scales == 0x7E).any()
    assert (codes & 7 == 7).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_every_threshold_of_every_scale_inside_the_kernel(arithmetic: str, dtype: str) -> None:
    """Blocks whose scale is each byte and whose elements lie on, before and past each of its bounds."""
    group = int(bits([3.7], dtype)[0])
    built = tables.build_encode_tables(arithmetic, dtype, group)
    amaxes = built.scale_bounds[1:127].astype(np.int64)
    rows = []
    for byte in range(1, 127):
        amax = int(amaxes[byte - 1])
        if not 0 < amax <= group or (byte < 126 and amax == int(amaxes[byte])):
            continue
        near = built.code_bounds[byte].astype(np.int64)[:, None] + np.array([0, 1])
        rows.append(np.concatenate([[amax], np.minimum(near.ravel()[1:], amax)]))
    blocks = np.array(rows).astype(reference.STORAGE[dtype])
    assert len(rows) > (60 if dtype == "F16" else 115)
    sign = blocks.dtype.type(reference.MASK[dtype] + 1)
    for values in (blocks, blocks | sign):
        assert_as_float_arithmetic(np.ascontiguousarray(values), dtype, arithmetic, group)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_finite_bits(arithmetic: str, dtype: str, data: st.DataObject) -> None:
    """Uniform bits reach subnormals and extremes that values never do."""
    magnitude = st.integers(0, reference.INFINITY[dtype] - 1)
    near = data.draw(magnitude)
    window = st.integers(max(0, near - 3000), min(reference.INFINITY[dtype] - 1, near + 3000))
    element = st.one_of(magnitude, window, st.just(0))
    drawn = data.draw(st.lists(st.tuples(element, st.booleans()), min_size=32, max_size=32))
    values = np.array([m | (s * (reference.MASK[dtype] + 1)) for m, s in drawn], reference.STORAGE[dtype])
    assert_as_float_arithmetic(values.reshape(2, 16), dtype, arithmetic)


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_bits_in_bulk(dtype: str) -> None:
    rng = np.random.default_rng(5)
    magnitudes = rng.integers(0, reference.INFINITY[dtype], (512, 256))
    values = (magnitudes | (rng.integers(0, 2, magnitudes.shape) * (reference.MASK[dtype] + 1))).astype(
        reference.STORAGE[dtype]
    )
    for arithmetic in ARITHMETICS:
        assert_as_float_arithmetic(values, dtype, arithmetic)


def test_rows_may_be_cut_anywhere_and_inputs_be_read_only() -> None:
    values = bits(np.random.default_rng(2).standard_normal((7, 48)), "BF16")
    values.flags.writeable = False
    codes, scales, built = encoded(values, "BF16", "amax")
    for cut in range(8):
        parts = [np.zeros_like(codes), np.zeros_like(scales)]
        for rows in (slice(0, cut), slice(cut, 7)):
            encode.encode_tile(values[rows], built, parts[0][rows], parts[1][rows])
        assert np.array_equal(parts[0], codes)
        assert np.array_equal(parts[1], scales)
    assert max(encode.amax_of_tile(values[:3]), encode.amax_of_tile(values[3:])) == encode.amax_of_tile(values)


def test_the_amax_shows_nonfinite_weights() -> None:
    assert encode.amax_of_tile(bits([[1.0, -3.0]], "BF16")) == 0x4040
    assert encode.amax_of_tile(np.zeros((0, 16), np.uint16)) == 0
    for dtype in DTYPES:
        for value in (np.inf, -np.inf, np.nan):
            stored = bits([1.0] * 40 + [value] + [2.0] * 7, dtype)
            assert encode.amax_of_tile(stored) >= reference.INFINITY[dtype]
        assert encode.amax_of_tile(bits([-0.0], dtype)) == 0
    assert encode.amax_of_tile(np.array([-1.5], np.float32)) == 0x3FC00000


def test_arrays_that_do_not_fit_are_refused() -> None:
    built = tables.build_encode_tables("amax", "BF16", 0x3F80)
    values, codes, scales = np.zeros((2, 32), np.uint16), np.zeros((2, 16), np.uint8), np.zeros((2, 2), np.uint8)
    encode.encode_tile(values, built, codes, scales)
    with pytest.raises(ValueError, match="do not fit together"):
        encode.encode_tile(values[:, :24].copy(), built, codes, scales)
    with pytest.raises(ValueError, match="do not fit together"):
        encode.encode_tile(values, built, codes[:1], scales)
    with pytest.raises(ValueError, match="values: a C-contiguous"):
        encode.encode_tile(np.zeros((2, 64), np.uint16)[:, ::2], built, codes, scales)
    with pytest.raises(ValueError, match="values: a C-contiguous"):
        encode.encode_tile(values.astype(np.uint32), built, codes, scales)
    with pytest.raises(ValueError, match="codes: a C-contiguous"):
        encode.encode_tile(values, built, np.zeros((2, 32), np.uint8)[:, ::2], scales)
