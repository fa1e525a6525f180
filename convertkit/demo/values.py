"""Weight values that never change: a counter-based generator in integer arithmetic.

Element ``n`` of a tensor depends on nothing but the tensor's key and ``n``, so any part of any tensor can be
made alone, in any chunk size, on any machine and NumPy version, with the same bits.

*Stream.* The key of a tensor is the first eight bytes (little-endian) of ``sha256("convertkit demo 1\\0" + seed
+ "\\0" + purpose + "\\0" + name)``. Word ``w`` of the stream is the SplitMix64 output for state
``key + (w + 1) * 0x9E3779B97F4A7C15`` (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014). Words are cut into 16-bit lanes, lowest first: lane ``n`` makes element ``n`` (F32: 32-bit lanes,
whose upper half does what a 16-bit lane does and whose lower 12 bits are XORed into the mantissa's lower 12).

*Shape.* A lane indexes ``quantiles()``: 65,536 quantiles of the sum of twelve bytes (mean 1530, deviation
sqrt(65535)), found by exact counting and bent by ``x + x**3 / 64`` to the heavier tails of trained weights.
Table entries become storage bits by one exact rounding to nearest, ties to even. No table comes from a
floating-point function; float64 is used only to find the bit length of integers below 2**53.

*On the grid.* A weight that a quantization-aware training left on the NVFP4 grid is ``code * block scale *
global scale``, rounded once. Codes and block scales have streams of their own; the global scale follows from the
name of the fused group, so that gate and up (or q, k and v) share it. Code 8 (negative zero) is never drawn.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.dtypes import DTYPES

Bits = NDArray[np.unsignedinteger[Any]]
"""Storage bits: U16 for BF16 and F16, U32 for F32."""

LEVELS = 1 << 16
UNIT_BITS = 20
"""``quantiles()`` are in units of 2**-20 standard deviations."""
STD_BITS = 24
"""Standard deviations and means of a tensor are in units of 2**-24."""

# storage type -> (mantissa bits with the hidden one, exponent bias)
_FLOATS = {"BF16": (8, 127), "F16": (11, 15), "F32": (24, 127)}
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
# E2M1 magnitudes in halves, and the midpoints between them in quarters
_CODE_HALVES = (0, 1, 2, 3, 4, 6, 8, 12)
_CODE_MIDPOINTS_QUARTERS = (1, 3, 5, 7, 10, 14, 20)
# spread of a weight in code units (13/5 = 2.6: two blocks of three reach code 6) and of E4M3 bytes around 0x72 (176)
_CODE_SPREAD = (13, 5)
_SCALE_CENTRE, _SCALE_SPREAD = 0x72, (13, 5)
_SCALE_TOP = 0x7E


@dataclass(frozen=True)
class Dense:
    """Values around a mean: ``table`` holds the storage bits of the 65,536 levels."""

    key: int
    dtype: str
    table: Bits


@dataclass(frozen=True)
class OnGrid:
    """Values on the NVFP4 grid: ``table`` holds the storage bits of ``(scale byte << 4) | code``."""

    code_key: int
    scale_key: int
    global_bits: int
    dtype: str
    table: Bits


@dataclass(frozen=True)
class Planes:
    """What ``OnGrid`` values were made of: codes U8 [elements / 2] (even element in the low nibble), block scales
    as E4M3 bytes U8 [elements / 16], and the FP32 bits of the global scale (a multiplier)."""

    codes: NDArray[np.uint8]
    block_scale: NDArray[np.uint8]
    global_bits: int


def key_of(seed: int, purpose: str, name: str) -> int:
    """The 64-bit key of one stream."""
    text = f"convertkit demo 1\0{seed}\0{purpose}\0{name}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def words(key: int, first: int, count: int) -> NDArray[np.uint64]:
    """Words ``first .. first + count`` of a stream, U64 [count]."""
    state = np.arange(first + 1, first + 1 + count, dtype=np.uint64)
    state *= _GOLDEN
    state += np.uint64(key)
    other = np.right_shift(state, np.uint64(30))
    state ^= other
    state *= _MIX1
    np.right_shift(state, np.uint64(27), out=other)
    state ^= other
    state *= _MIX2
    np.right_shift(state, np.uint64(31), out=other)
    state ^= other
    return state


def _lanes(key: int, first: int, count: int, per_word: int) -> Bits:
    start = first // per_word
    stop = -(-(first + count) // per_word)
    lanes: Bits = words(key, start, stop - start).astype("<u8", copy=False).view("<u2" if per_word == 4 else "<u4")
    skip = first - start * per_word
    return lanes[skip : skip + count]


@cache
def quantiles() -> NDArray[np.int64]:
    """The 65,536 levels, ascending and antisymmetric, I64 in units of 2**-20 deviations."""
    ways = [1]  # ways[s]: number of ways in which the bytes drawn so far sum to s
    for _ in range(12):
        totals, window = [], 0
        for total in range(len(ways) + 255):
            window += ways[total] if total < len(ways) else 0
            window -= ways[total - 256] if total >= 256 else 0
            totals.append(window)
        ways = totals
    lower: list[int] = []
    total, below = 0, 0
    for level in range(LEVELS // 2):
        mass = (2 * level + 1) << 79  # (level + 1/2) / 65536 of all 256**12 ways
        while below + ways[total] <= mass:
            below += ways[total]
            total += 1
        # the sum, spread evenly over its unit interval, in 2**-12 steps: 2**-20 deviations of 2**8
        fine = ((mass - below) << 12) // ways[total]
        distance = (1530 << 12) + (1 << 11) - (total << 12) - fine
        lower.append(-(distance + (distance**3 >> (2 * UNIT_BITS + 6))))
    levels = np.array(lower, dtype=np.int64)
    levels = np.concatenate([levels, -levels[::-1]])
    levels.setflags(write=False)
    return levels


def round_bits(numbers: NDArray[np.int64], fraction_bits: int, dtype: str) -> Bits:
    """Storage bits of ``numbers * 2**-fraction_bits``, rounded once to nearest, ties to even.

    ``numbers`` are below 2**53 in magnitude; results above the largest finite value of ``dtype`` are refused
    with ValueError. Subnormals are rounded on their own spacing; zero is positive.
    """
    precision, bias = _FLOATS[dtype]
    magnitude = np.abs(numbers)
    if magnitude.size and int(magnitude.max()) >= 1 << 53:
        raise ValueError("numbers must be below 2**53")
    _, bit_length = np.frexp(magnitude.astype(np.float64))  # exact: the integers fit a float64
    # exponent field of the leading bit; fields below 1 (and zero) are subnormal and share the spacing of field 1
    exponent = np.maximum(bit_length.astype(np.int64) - 1 - fraction_bits + bias, 1)
    exponent[magnitude == 0] = 1
    drop = exponent - bias - precision + 1 + fraction_bits
    kept = np.where(drop > 0, magnitude >> np.clip(drop, 0, 62), magnitude << np.clip(-drop, 0, 62))
    rest = magnitude - (kept << np.clip(drop, 0, 62))
    half = np.int64(1) << np.clip(drop - 1, 0, 62)
    up = (drop > 0) & ((rest > half) | ((rest == half) & (kept & 1 == 1)))
    bits = ((exponent - 1) << (precision - 1)) + kept + up
    bits[drop > 62] = 0
    width = DTYPES[dtype].bits
    if bits.size and int(bits.max()) >= (2 * bias + 1) << (precision - 1):
        raise ValueError(f"a value is too large for {dtype}")
    bits |= np.where((numbers < 0) & (bits > 0), np.int64(1) << (width - 1), np.int64(0))
    narrow: Bits = bits.astype(f"<u{width // 8}")
    return narrow


def _std_of(key: int, std: int) -> int:
    """``std`` (units of 2**-24) times a factor in [0.75, 1.25) that differs from tensor to tensor."""
    return std * (768 + (key >> 32) % 512) >> 10


def fan_in_std(width: int) -> int:
    """1 / sqrt(width) in units of 2**-24."""
    return isqrt((1 << (2 * STD_BITS)) // width)


def dense(seed: int, name: str, dtype: str, *, mean: int, std: int) -> Dense:
    """The stream of one dense tensor; ``mean`` and ``std`` (before ``_std_of``) in units of 2**-24."""
    key = key_of(seed, "values", name)
    numbers = quantiles() * _std_of(key, std) + (mean << UNIT_BITS)
    return Dense(key, dtype, round_bits(numbers, UNIT_BITS + STD_BITS, dtype))


def on_grid(seed: int, name: str, group: str, dtype: str, *, std: int) -> OnGrid:
    """The stream of one tensor on the NVFP4 grid; tensors of one ``group`` and ``std`` share the global scale."""
    group_key = key_of(seed, "global scale", group)
    mantissa, exponent = _global_scale(group_key, _std_of(group_key, std))
    halves = np.array(_CODE_HALVES, dtype=np.int64)
    signed = np.concatenate([halves, -halves])
    # code in halves, scale in 2**-9, mantissa times 2**exponent
    numbers = (_scale_numbers()[:, None] * signed[None, :] * mantissa).reshape(-1)
    table = round_bits(numbers, 1 + 9 - exponent, dtype)
    global_bits = ((exponent + 23 + 127) << 23) | (mantissa & 0x7FFFFF)
    codes, scales = key_of(seed, "codes", name), key_of(seed, "block scales", name)
    return OnGrid(codes, scales, global_bits, dtype, table)


def _global_scale(key: int, std: int) -> tuple[int, int]:
    """24-bit mantissa and exponent of about ``std / (2.6 * 176)``, its lower half taken from the key."""
    wide = (std << 40) * 5 // (13 * 176)
    shift = wide.bit_length() - 24
    return (wide >> shift) & ~0xFFF | (key & 0xFFF), shift - 40 - STD_BITS


def _scale_numbers() -> NDArray[np.int64]:
    """Values of the non-negative E4M3 bytes 0x00..0x7e in units of 2**-9, I64 [127]."""
    byte = np.arange(_SCALE_TOP + 1, dtype=np.int64)
    field, fraction = byte >> 3, byte & 7
    return np.where(field == 0, fraction, (8 + fraction) << np.maximum(field - 1, 0))


@cache
def _code_levels() -> NDArray[np.uint8]:
    """E2M1 code of each level, U8 [65536]."""
    up, down = _CODE_SPREAD
    quarters = np.abs(quantiles()) * (4 * up)
    edges = np.array(_CODE_MIDPOINTS_QUARTERS, dtype=np.int64) * (down << UNIT_BITS)
    index = np.searchsorted(edges, quarters, side="left").astype(np.uint8)
    return np.where((quantiles() < 0) & (index > 0), index | 8, index).astype(np.uint8)


@cache
def _scale_levels() -> NDArray[np.uint8]:
    """E4M3 byte of each level: 0x72 plus 2.6 deviations, floored, at most 448, U8 [65536]."""
    up, down = _SCALE_SPREAD
    steps = quantiles() * up // (down << UNIT_BITS)
    return np.clip(_SCALE_CENTRE + steps, 1, _SCALE_TOP).astype(np.uint8)


def _codes(stream: OnGrid, first: int, count: int) -> NDArray[np.uint8]:
    taken: NDArray[np.uint8] = np.take(_code_levels(), _lanes(stream.code_key, first, count, 4))
    return taken


def _scales(stream: OnGrid, first: int, count: int) -> NDArray[np.uint8]:
    taken: NDArray[np.uint8] = np.take(_scale_levels(), _lanes(stream.scale_key, first, count, 4))
    return taken


def values(stream: Dense | OnGrid, first: int, count: int) -> Bits:
    """Storage bits of elements ``first .. first + count`` in row-major order; U16 or U32 [count]."""
    if isinstance(stream, OnGrid):
        block, last = first // 16, -(-(first + count) // 16)
        index = _codes(stream, block * 16, (last - block) * 16).astype(np.uint16).reshape(-1, 16)
        index |= (_scales(stream, block, last - block).astype(np.uint16) << np.uint16(4))[:, None]
        skip = first - block * 16
        gridded: Bits = np.take(stream.table, index.reshape(-1)[skip : skip + count])
        return gridded
    if DTYPES[stream.dtype].bits == 16:
        narrow: Bits = np.take(stream.table, _lanes(stream.key, first, count, 4))
        return narrow
    lanes = _lanes(stream.key, first, count, 2)
    wide: Bits = np.take(stream.table, lanes >> np.uint32(16)) ^ (lanes & np.uint32(0xFFF))
    return wide


def planes(stream: OnGrid, first: int, count: int) -> Planes:
    """The planes of elements ``first .. first + count``, both multiples of 16."""
    if first % 16 or count % 16:
        raise ValueError("planes come in whole blocks of 16")
    codes = _codes(stream, first, count)
    packed = codes[0::2] | (codes[1::2] << np.uint8(4))
    return Planes(packed, _scales(stream, first // 16, count // 16), stream.global_bits)
