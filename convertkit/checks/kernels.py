"""Compiled kernels of the checker. Plain NumPy twins in the tests give the same bits, sums included.

Each pass is a simple loop over a chunk that stays in the first cache, so any compiler and any vector width does
the same IEEE operations in the same order: no fast-math, no fused multiply-add, no reduction of floats except the
explicit lanes of ``tiles.py``. Rounding to a grid is written ``(x + MAGIC) - MAGIC``: adding 1.5 * 2**23 to a small
FP32 number rounds it to an integer, ties to even.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from convertkit.checks.slots import SATURATED, TO_BF16, TO_F16, WRONG_CODES
from convertkit.checks.tiles import LANES

F = TypeVar("F", bound=Callable[..., Any])
U1, U2, U4, F4, F8 = types.uint8, types.uint16, types.uint32, types.float32, types.float64

_MAGIC = np.float32(12582912.0)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_INFINITY = np.uint32(0x7F800000)
_SMALLEST_SCALE = np.float32(2.0**-9)
_SMALLEST_NORMAL_SCALE = np.float32(2.0**-6)
_LARGEST_SCALE = np.float32(448.0)


def given(dtype: Any, rank: int = 1) -> Any:
    """Type of a contiguous input array, which may be read-only."""
    return types.Array(dtype, rank, "C", readonly=True)


def made(dtype: Any) -> Any:
    """Type of a contiguous array that the kernel writes."""
    return types.Array(dtype, 1, "C")


def compiled(*signatures: Any) -> Callable[[F], F]:
    """Compile for these argument types at import, cached on disk, without the interpreter lock."""

    def decorate(function: F) -> F:
        options: Any = {"nogil": True, "error_model": "numpy", "boundscheck": False}
        try:
            return cast(F, njit(list(signatures), cache=True, **options)(function))
        except RuntimeError:  # no folder for the cache can be written: compile in each process
            return cast(F, njit(list(signatures), **options)(function))

    return decorate


@compiled(types.void(given(U2), U4, made(U4)), types.void(given(U4), U4, made(U4)))
def widen(bits: NDArray[Any], shift: int, words: NDArray[np.uint32]) -> None:
    """FP32 bits of BF16 (``shift`` 16) or FP32 (0) bits; a short chunk is filled up with zeros."""
    for i in range(bits.size):
        words[i] = np.uint32(bits[i]) << np.uint32(shift)
    for i in range(bits.size, words.size):
        words[i] = np.uint32(0)


@compiled(types.void(made(U4), made(U4), made(U4), made(U4)))
def block_peaks(words: NDArray[np.uint32], one: NDArray[Any], two: NDArray[Any], peaks: NDArray[np.uint32]) -> None:
    """Largest magnitude bits of each 16 words, by four rounds of pairs; ``one``, ``two`` are scratch."""
    for i in range(words.size // 2):
        one[i] = max(words[2 * i] & _MAGNITUDE, words[2 * i + 1] & _MAGNITUDE)
    for i in range(words.size // 4):
        two[i] = max(one[2 * i], one[2 * i + 1])
    for i in range(words.size // 8):
        one[i] = max(two[2 * i], two[2 * i + 1])
    for i in range(peaks.size):
        peaks[i] = max(one[2 * i], one[2 * i + 1])


@compiled(types.void(made(F4), made(U1)))
def round_to_e4m3(scales: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
    """E4M3 bytes of scales in [0, 448], ties to even: on the bits above 2**-6, in units of 2**-9 below."""
    words = scales.view(np.uint32)
    for b in range(scales.size):
        small = np.uint32((scales[b] * np.float32(512.0) + _MAGIC) - _MAGIC)
        even = (words[b] >> np.uint32(20)) & np.uint32(1)
        normal = ((words[b] + np.uint32(0x7FFFF) + even) >> np.uint32(20)) - np.uint32(960)
        out[b] = np.uint8(small if scales[b] < _SMALLEST_NORMAL_SCALE else normal)


@compiled(types.void(made(F4), F4, made(F4), made(U1)))
def derive_amax_scales(peaks: NDArray[Any], sixth: Any, work: NDArray[Any], out: NDArray[np.uint8]) -> None:
    """Block scales of ModelOpt's dynamic amax; ``sixth`` is fl(6 * global scale)."""
    for b in range(peaks.size):
        scale = peaks[b] / np.float32(sixth)
        scale = np.float32(1.0) if scale == np.float32(0.0) else scale
        scale = _SMALLEST_SCALE if scale < _SMALLEST_SCALE else scale
        work[b] = _LARGEST_SCALE if scale > _LARGEST_SCALE else scale
    round_to_e4m3(work, out)


@compiled(types.void(made(F4), F4, types.int64, made(F4), made(U1)))
def derive_llmcompressor_scales(
    peaks: NDArray[Any], divisor: Any, narrow: int, work: NDArray[Any], out: NDArray[np.uint8]
) -> None:
    """Block scales of llm-compressor: amax / 6 rounded to the weight's type, times the divisor, 0.125 for zero."""
    words = work.view(np.uint32)
    for b in range(peaks.size):
        work[b] = peaks[b] / np.float32(6.0)
    if narrow == TO_BF16:
        for b in range(peaks.size):
            even = (words[b] >> np.uint32(16)) & np.uint32(1)
            words[b] = (words[b] + np.uint32(0x7FFF) + even) & np.uint32(0xFFFF0000)
    if narrow == TO_F16:
        for b in range(peaks.size):
            kept = work[b]
            words[b] = max(words[b] & _INFINITY, np.uint32(0x38800000))  # power of two below, at least 2**-14
            unit = work[b] * np.float32(2.0**-10) * _MAGIC
            work[b] = (kept + unit) - unit
    for b in range(peaks.size):
        scale = np.float32(divisor) * work[b]
        work[b] = _LARGEST_SCALE if scale > _LARGEST_SCALE else scale
    round_to_e4m3(work, out)
    for b in range(peaks.size):
        out[b] = np.uint8(0x20) if out[b] == np.uint8(0) else out[b]


@compiled(types.void(made(F4), made(F4), made(F4), made(U1)))
def round_to_codes(values: NDArray[Any], divisors: NDArray[Any], tops: NDArray[Any], out: NDArray[np.uint8]) -> None:
    """Code of each value over its block's divisor in bits 0-3, and in bit 4 whether it lies beyond the grid's top.

    The magnitude index is a sum of three rounded pieces: halves up to 2, ones from 2 to 4, twos from 4 to 6.
    """
    two, four, six, half = np.float32(2.0), np.float32(4.0), np.float32(6.0), np.float32(0.5)
    zero = np.float32(0.0)
    for b in range(divisors.size):
        divisor, top = divisors[b], tops[b]
        block, codes = values[16 * b : 16 * b + 16], out[16 * b : 16 * b + 16]
        for j in range(16):
            x = block[j] / divisor
            size = abs(x)
            size = six if size > six else size
            size = size if size >= zero else zero  # 0 / 0, and NaN
            low = two if size > two else size
            middle = four if size > four else size
            middle = two if middle < two else middle
            high = four if size < four else size
            index = (low + low + _MAGIC) - _MAGIC
            index += (middle + _MAGIC) - _MAGIC
            index += (high * half + _MAGIC) - _MAGIC
            flags = np.int32(8) if x < np.float32(0.0) else np.int32(0)
            flags += np.int32(16) if abs(block[j]) > top else np.int32(0)
            codes[j] = np.uint8(np.int32(index) - np.int32(4) + flags)


@compiled(types.void(given(U1), made(U1), made(types.int64)))
def count_codes(codes: NDArray[np.uint8], expected: NDArray[np.uint8], counts: NDArray[np.int64]) -> None:
    """Count stored nibbles that differ from the expected codes, and expected entries beyond the grid's top."""
    wrong, beyond = np.uint32(0), np.uint32(0)
    for i in range(codes.size):
        low, high = expected[2 * i], expected[2 * i + 1]
        wrong += np.uint32(((low ^ codes[i]) & np.uint8(15)) != 0)
        wrong += np.uint32(((high & np.uint8(15)) ^ (codes[i] >> np.uint8(4))) != 0)
        beyond += np.uint32(low >> np.uint8(4)) + np.uint32(high >> np.uint8(4))
    counts[WRONG_CODES] += np.int64(wrong)
    counts[SATURATED] += np.int64(beyond)


@compiled(
    types.void(given(U1), given(U1), given(F8, 2), made(F8)),
    types.void(given(U1), given(U1), given(U2, 2), made(U2)),
    types.void(given(U1), given(U1), given(U4, 2), made(U4)),
)
def decode(codes: NDArray[np.uint8], scales: NDArray[np.uint8], values: NDArray[Any], out: NDArray[Any]) -> None:
    """Entry of ``values`` [256 scale bytes, 16 codes] for each code; the rest of ``out`` is set to zero."""
    for b in range(scales.size):
        row = values[scales[b]]
        block, made_ = codes[8 * b : 8 * b + 8], out[16 * b : 16 * b + 16]
        for j in range(8):
            made_[2 * j] = row[block[j] & 15]
            made_[2 * j + 1] = row[block[j] >> 4]
    for i in range(16 * scales.size, out.size):
        out[i] = 0


@compiled(types.void(given(U1), made(U1), made(U1), made(U1)))
def largest_codes(codes: NDArray[np.uint8], one: NDArray[Any], two: NDArray[Any], out: NDArray[np.uint8]) -> None:
    """Largest magnitude index of each block of eight code bytes; ``one``, ``two`` are scratch."""
    for i in range(codes.size):
        one[i] = max(codes[i] & np.uint8(7), (codes[i] >> np.uint8(4)) & np.uint8(7))
    for i in range(codes.size // 2):
        two[i] = max(one[2 * i], one[2 * i + 1])
    for i in range(codes.size // 4):
        one[i] = max(two[2 * i], two[2 * i + 1])
    for i in range(codes.size // 8):
        out[i] = max(one[2 * i], one[2 * i + 1])


@compiled(types.int64(made(F4), made(F8), made(F8)), types.int64(made(F8), made(F8), made(F8)))
def measure(reference: NDArray[Any], candidate: NDArray[Any], lanes: NDArray[np.float64]) -> Any:
    """Add a full chunk of finite values to the lanes; return how many values differ."""
    changed = np.uint32(0)
    left, right = reference[:LANES], reference[LANES:]
    mine, yours = candidate[:LANES], candidate[LANES:]
    for i in range(LANES):
        r, s = np.float64(left[i]), np.float64(right[i])
        v, w = mine[i], yours[i]
        e, f = abs(r - v), abs(s - w)
        lanes[i] += r * r + s * s
        lanes[LANES + i] += v * v + w * w
        lanes[2 * LANES + i] += e * e + f * f
        larger = e if e > f else f
        peak = lanes[3 * LANES + i]
        lanes[3 * LANES + i] = larger if larger > peak else peak
        changed += np.uint32(e != 0.0) + np.uint32(f != 0.0)
    return np.int64(changed)


@compiled(types.int64(made(F4), made(F8)), types.int64(made(F8), made(F8)))
def drop_nonfinite(reference: NDArray[Any], candidate: NDArray[Any]) -> int:
    """Set pairs in which either value is NaN or infinite to zero, so that sums leave them out; return how many."""
    dropped = 0
    for i in range(reference.size):
        if not (np.isfinite(reference[i]) and np.isfinite(candidate[i])):
            reference[i] = 0.0
            candidate[i] = 0.0
            dropped += 1
    return dropped
