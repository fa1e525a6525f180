"""Decode tables against exact fractions and plain FP32, and the decoder's bytes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from convertkit.grids import dense
from convertkit.grids.nvfp4 import decode, encode, numbers, tables
from tests.grids import float_reference as reference

DTYPES = ("BF16", "F16", "F32")
SIGN = {"BF16": 0x8000, "F16": 0x8000, "F32": 0x80000000}
# 1, an ordinary scale, powers of two, long mantissas, subnormal, largest, and one that overflows every type.
GLOBALS = (0x3F800000, 0x39C30C31, 0x00800000, 0x3A7FFFFF, 0x00000001, 0x006ABCDE, 0x7F7FFFFF, 0x3FAAAAAB, 0x1234567)


def exact_rows(global_bits: int, sense: str, dtype: str, bytes_: range) -> NDArray[Any]:
    scale = Fraction(float(numbers.float_of(global_bits)))
    rows = np.zeros((len(bytes_), 16), np.int64)
    for i, byte in enumerate(bytes_):
        for code in range(16):
            product = abs(reference.scale_value(byte)) * reference.CODE_VALUES[code & 7]
            negative = (byte >= 128) != (code >= 8)
            value = product * scale if sense == "multiplier" else product / scale
            rows[i, code] = reference.rounded_once(value, dtype) | (SIGN[dtype] if negative else 0)
    return rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sense", ["multiplier", "divisor"])
@pytest.mark.parametrize("global_bits", GLOBALS)
def test_exact_tables_round_the_real_number_once(global_bits: int, sense: str, dtype: str) -> None:
    table = decode.decode_table(global_bits, sense, dtype, "exact")
    assert table.shape == (256, 16)
    assert np.array_equal(table[:127], exact_rows(global_bits, sense, dtype, range(127)))
    assert np.array_equal(table[128:255:9], exact_rows(global_bits, sense, dtype, range(128, 255, 9)))
    for byte in (0x7F, 0xFF):
        assert np.isnan(dense.to_float32(np.ascontiguousarray(table[byte]), dtype)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_tables_of_divisors_that_make_near_ties(dtype: str) -> None:
    """Divisors chosen so that a quotient lies as near as possible to a rounding boundary."""
    bits_kept = {"BF16": 8, "F16": 11, "F32": 24}[dtype]
    rng = np.random.default_rng(1)
    for _ in range(12):
        product = Fraction(int(rng.choice([27, 39, 45, 33, 15])))
        boundary = 2 * int(rng.integers(2 ** (bits_kept - 1), 2**bits_kept)) + 1
        divisor = np.float32(float(product / boundary) * 2.0**bits_kept)
        global_bits = int(divisor.view(np.uint32)) + int(rng.integers(-1, 2))
        rows = exact_rows(global_bits, "divisor", dtype, range(0x38, 0x48))
        assert np.array_equal(decode.decode_table(global_bits, "divisor", dtype)[0x38:0x48], rows)


def test_one_rounding_and_three_differ_for_a_rare_global_scale() -> None:
    exact = decode.decode_table(0x3B3BDA14, "multiplier", "BF16", "exact")
    package = decode.decode_table(0x3B3BDA14, "multiplier", "BF16", "modelopt")
    assert (exact[0x09, 3], package[0x09, 3]) == (0x389F, 0x389E)
    assert (exact[1:127, :8] != package[1:127, :8]).sum() == 45


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("global_bits", GLOBALS)
def test_package_tables_follow_their_fp32_steps(global_bits: int, dtype: str) -> None:
    scale = numbers.float_of(global_bits)
    magnitude = np.array([float(v) for v in reference.CODE_VALUES], np.float32)
    bytes_ = np.array([float(reference.scale_value(b)) for b in range(127)], np.float32)
    with np.errstate(all="ignore"):
        multiplied = reference.in_dtype(magnitude * (bytes_ * scale)[:, None], dtype)
        divided = reference.in_dtype(magnitude * (bytes_ / scale)[:, None], dtype)
    for sense, arithmetic, values in (
        ("multiplier", "modelopt", multiplied),
        ("divisor", "compressed-tensors", divided),
    ):
        table = decode.decode_table(global_bits, sense, dtype, arithmetic)[:127]
        expected = reference.STORAGE[dtype](0) + dense.from_float32(values, dtype)
        number = ~np.isnan(values)
        assert np.array_equal(table[:, :8][number], expected[number])
        assert np.array_equal(table[:, 9:][number[:, 1:]], (expected | SIGN[dtype])[:, 1:][number[:, 1:]])
        zero = 0 if arithmetic == "modelopt" else SIGN[dtype]
        assert (table[:, 8][number[:, 0]] == zero).all()


def test_a_package_reads_the_other_sense_as_its_reciprocal() -> None:
    swapped, _ = numbers.swap_sense(0x39C30C33)
    for arithmetic, own, other in (
        ("modelopt", "multiplier", "divisor"),
        ("compressed-tensors", "divisor", "multiplier"),
    ):
        assert np.array_equal(
            decode.decode_table(0x39C30C33, other, "BF16", arithmetic),
            decode.decode_table(swapped, own, "BF16", arithmetic),
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_are_decoded_by_the_table(dtype: str) -> None:
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 256, (19, 24), dtype=np.uint8)
    scales = rng.integers(0, 256, (19, 3), dtype=np.uint8)
    codes.flags.writeable = scales.flags.writeable = False
    table = decode.decode_table(0x3A123456, "multiplier", dtype)
    out = np.full((19, 48), 0xAAAA, reference.STORAGE[dtype])
    decode.decode_tile(codes, scales, table, out)
    unpacked = np.stack([codes & 15, codes >> 4], -1).reshape(19, 3, 16)
    assert np.array_equal(out.reshape(19, 3, 16), table[scales[..., None], unpacked])
    if dtype != "F32":
        again = np.full_like(out, 0x5555)
        decode.decode_tile(codes, scales, decode.paired(table), again)
        assert np.array_equal(again, out)


def test_a_block_by_hand() -> None:
    # Scale 0x38 = 1, g = 1: the bytes are the code values. Even elements sit in the low nibbles.
    codes = np.array([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]], np.uint8)
    out = np.zeros((1, 16), np.uint16)
    decode.decode_tile(codes, np.array([[0x38]], np.uint8), decode.decode_table(0x3F800000, "multiplier", "BF16"), out)
    assert out.tobytes().hex() == "0000003f803fc03f004040408040c040008000bf80bfc0bf00c040c080c0c0c0"


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_on_the_grid_survives_encoding(dtype: str) -> None:
    """Blocks with a code 6 and a known global scale: decode and encode give the same planes."""
    rng = np.random.default_rng(9)
    codes = rng.integers(0, 16, (32, 64), dtype=np.uint8)
    codes[codes == 8] = 0
    codes[:, ::16] = 7
    scales = rng.integers(0x20, 0x7E, (32, 4)).astype(np.uint8)
    scales[0, 0] = 0x7E
    out = np.zeros((32, 64), reference.STORAGE[dtype])
    decode.decode_tile(reference.pack(codes), scales, decode.decode_table(0x3F800000, "multiplier", dtype), out)
    built = tables.build_encode_tables("amax", dtype, encode.amax_of_tile(out))
    assert built.global_bits == 0x3F800000
    again, bytes_ = np.zeros((32, 32), np.uint8), np.zeros((32, 4), np.uint8)
    encode.encode_tile(out, built, again, bytes_)
    assert np.array_equal(again, reference.pack(codes))
    assert np.array_equal(bytes_, scales)


def test_arrays_and_words_that_do_not_fit_are_refused() -> None:
    table = decode.decode_table(0x3F800000, "multiplier", "BF16")
    codes, scales, out = np.zeros((2, 16), np.uint8), np.zeros((2, 2), np.uint8), np.zeros((2, 32), np.uint16)
    decode.decode_tile(codes, scales, table, out)
    with pytest.raises(ValueError, match="do not fit together"):
        decode.decode_tile(codes, scales[:, :1].copy(), table, out)
    with pytest.raises(ValueError, match="item size"):
        decode.decode_tile(codes, scales, table, out.astype(np.uint32))
    with pytest.raises(ValueError, match="item size"):
        decode.decode_tile(codes, scales, decode.paired(table).astype(np.uint16), out)
    with pytest.raises(ValueError, match="16-bit table"):
        decode.paired(decode.decode_table(0x3F800000, "multiplier", "F32"))
    with pytest.raises(ValueError, match="out: a C-contiguous"):
        decode.decode_tile(codes, scales, table, np.zeros((2, 64), np.uint16)[:, ::2])
    with pytest.raises(ValueError, match="out: memory aligned"):
        decode.decode_tile(codes, scales, table, np.zeros(66, np.uint16)[1:65].reshape(2, 32))
    for words in (("inverse", "BF16", "exact"), ("divisor", "F64", "exact"), ("divisor", "BF16", "vllm")):
        with pytest.raises(ValueError, match=words[0] if words[0] == "inverse" else words[1 + (words[2] != "exact")]):
            decode.decode_table(0x3F800000, *words)
