"""Compiled kernels for values against values, and for an expanded tile against its planes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from convertkit.checks.kernels import (
    F4,
    F8,
    U1,
    U2,
    U4,
    compiled,
    decode,
    drop_nonfinite,
    given,
    largest_codes,
    made,
    measure,
    widen,
)
from convertkit.checks.slots import (
    CHANGED,
    CHUNK,
    DIFFERING,
    EMPTIED,
    FLUSHED,
    LOST,
    LOST_ZERO_SIGNS,
    MINUS_CODES,
    NEGATIVE_ZEROS,
    NONFINITE,
    SATURATED,
    ZERO_SIGNS,
)

I8 = types.int64


@compiled(types.void(given(F8), given(F8), made(F8), made(I8)))
def measure_values(
    reference: NDArray[np.float64],
    candidate: NDArray[np.float64],
    lanes: NDArray[np.float64],
    counts: NDArray[np.int64],
) -> None:
    """Add a flat tile of values against values to ``lanes`` and to ``counts`` (as ``measure_planes``)."""
    left, right = np.zeros(CHUNK, np.float64), np.zeros(CHUNK, np.float64)
    for first in range(0, reference.size, CHUNK):
        size = min(CHUNK, reference.size - first)
        for i in range(size):
            left[i], right[i] = reference[first + i], candidate[first + i]
        for i in range(size, CHUNK):
            left[i], right[i] = 0.0, 0.0
        counts[NONFINITE] += drop_nonfinite(left, right)
        counts[CHANGED] += measure(left, right, lanes)


@compiled(types.void(given(F8), given(F8), given(U1), given(F8), made(I8)))
def count_value_blocks(
    reference: NDArray[np.float64],
    candidate: NDArray[np.float64],
    scales: NDArray[np.uint8],
    tops: NDArray[np.float64],
    counts: NDArray[np.int64],
) -> None:
    """Count blocks of 16 that are zero in the candidate only, and values beyond ``tops`` [256 scale bytes]."""
    flushed, beyond = np.int64(0), np.int64(0)
    for b in range(scales.size):
        left, right, top = reference[16 * b : 16 * b + 16], candidate[16 * b : 16 * b + 16], tops[scales[b]]
        before, after, over = np.uint32(0), np.uint32(0), np.uint32(0)
        for j in range(16):
            before += np.uint32(left[j] != 0.0)
            after += np.uint32(right[j] != 0.0)
            over += np.uint32(abs(left[j]) > top)
        flushed += np.int64((before != 0) & (after == 0))
        beyond += np.int64(over)
    counts[FLUSHED] += flushed
    counts[SATURATED] += beyond


@compiled(
    types.void(given(U2), given(U2), U4, made(F8), made(I8)),
    types.void(given(U4), given(U4), U4, made(F8), made(I8)),
)
def measure_dense(
    reference: NDArray[Any], candidate: NDArray[Any], shift: int, lanes: NDArray[np.float64], counts: NDArray[np.int64]
) -> None:
    """The same for BF16 (``shift`` 16) or FP32 (0) storage bits on both sides."""
    words, others = np.empty(CHUNK, np.uint32), np.empty(CHUNK, np.uint32)
    left, right = words.view(np.float32), others.view(np.float32)
    doubles = np.empty(CHUNK, np.float64)
    for first in range(0, reference.size, CHUNK):
        size = min(CHUNK, reference.size - first)
        widen(reference[first : first + size], shift, words)
        widen(candidate[first : first + size], shift, others)
        suspect = np.uint32(0)
        for i in range(CHUNK):
            doubles[i] = right[i]
            special = np.uint32(0x7F800000)
            suspect += np.uint32(((words[i] & special) == special) | ((others[i] & special) == special))
        if suspect:
            counts[NONFINITE] += drop_nonfinite(left, doubles)
        counts[CHANGED] += measure(left, doubles, lanes)


@compiled(types.uint8(F8, F8))
def code_of(value: Any, unit: Any) -> Any:
    """Nearest E2M1 code of a value over its block's unit, ties to even; zero keeps the sign bit of ``value``."""
    if np.isnan(value) or not abs(unit) > 0.0:
        return np.uint8(0)
    size = min(abs(value / unit), 6.0)
    index = np.rint(2.0 * min(size, 2.0)) + np.rint(max(min(size, 4.0), 2.0)) + np.rint(max(size, 4.0) * 0.5) - 4.0
    return np.uint8(np.uint8(index) + (8 if np.signbit(value) != (unit < 0.0) else 0))


def _signature(bits: Any) -> Any:
    tables = (given(bits, 2), given(F8), given(U1), given(F4))
    return types.void(given(bits), given(U1), given(U1), *tables, types.boolean, made(I8))


@compiled(_signature(U2), _signature(U4))
def check_expanded(
    bits: NDArray[Any],
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    table: NDArray[Any],
    units: NDArray[np.float64],
    starts: NDArray[np.uint8],
    floats: NDArray[np.float32],
    careful: bool,
    counts: NDArray[np.int64],
) -> None:
    """Flat written ``bits`` against ``table`` [256, 16] of the bits that each code and block scale should give.

    ``units`` [256] are the values of code 2 (one), ``starts`` [256] the first magnitude index whose entry is not
    zero. ``floats`` are the FP32 values: by bit pattern for two-byte types, by position otherwise. ``careful``
    says that some entry under a positive scale does not give back its code, so that all must be encoded again.
    """
    sign = np.uint32(0x8000) if bits.itemsize == 2 else np.uint32(0x80000000)
    expected = np.empty(CHUNK, bits.dtype)
    plus = table[0, 8] == 0
    one, two, largest = np.empty(CHUNK, np.uint8), np.empty(CHUNK, np.uint8), np.empty(CHUNK // 16, np.uint8)
    for first in range(0, bits.size, CHUNK):
        size = min(CHUNK, bits.size - first)
        written = bits[first : first + size]
        some_codes = codes[first // 2 : (first + size) // 2]
        some_scales = scales[first // 16 : (first + size) // 16]
        decode(some_codes, some_scales, table, expected)
        largest_codes(some_codes, one, two, largest)
        differ, negative, minus = np.uint32(0), np.uint32(0), np.uint32(0)
        for i in range(size):
            differ += np.uint32(written[i] != expected[i])
            negative += np.uint32(written[i] == sign)
        for i in range(some_codes.size):
            minus += np.uint32((some_codes[i] & np.uint8(15)) == 8) + np.uint32((some_codes[i] >> np.uint8(4)) == 8)
        emptied = np.uint32(0)
        for b in range(some_scales.size):
            emptied += np.uint32((largest[b] > 0) & (largest[b] < starts[some_scales[b]]))
        counts[EMPTIED] += np.int64(emptied)
        counts[NEGATIVE_ZEROS] += np.int64(negative)
        counts[MINUS_CODES] += np.int64(minus)
        if not (differ or careful or emptied):
            counts[LOST_ZERO_SIGNS] += np.int64(minus) if plus else 0
        else:
            for i in range(size):
                code = (some_codes[i // 2] >> np.uint8(4 * (i % 2))) & np.uint8(15)
                got, right = np.uint32(written[i]), np.uint32(expected[i])
                if got != right:
                    zeros = ((got | right) & ~sign) == 0
                    counts[ZERO_SIGNS if zeros else DIFFERING] += 1
                if code == 8 and got == 0:
                    counts[LOST_ZERO_SIGNS] += 1
                elif got != right or careful or emptied:
                    value = floats[got] if bits.itemsize == 2 else floats[first + i]
                    again = code_of(np.float64(value), units[some_scales[i // 16]])
                    counts[LOST] += np.int64(again != code and not (code & 7 == 0 and again & 7 == 0))
