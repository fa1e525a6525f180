"""The fused kernel: a dense tile against planes, in one pass over the bytes."""

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
    block_peaks,
    compiled,
    count_codes,
    decode,
    derive_amax_scales,
    derive_llmcompressor_scales,
    drop_nonfinite,
    given,
    largest_codes,
    made,
    measure,
    round_to_codes,
    widen,
)
from convertkit.checks.slots import (
    AMAX_BITS,
    AMAX_RULE,
    CHANGED,
    CHUNK,
    FLUSHED,
    LLMCOMPRESSOR_RULE,
    NONFINITE,
    WRONG_SCALES,
)

_INFINITY = np.uint32(0x7F800000)
I8 = types.int64


@compiled(
    types.void(made(U1), given(U1), given(U1), made(U1), made(U1), made(U4), given(U1), made(I8), made(I8)),
)
def count_blocks(
    derived: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    codes: NDArray[np.uint8],
    work: NDArray[np.uint8],
    largest: NDArray[np.uint8],
    peaks: NDArray[np.uint32],
    starts: NDArray[np.uint8],
    counts: NDArray[np.int64],
    histogram: NDArray[np.int64],
) -> None:
    """Count wrong scales, blocks of non-zero values that decode to zeros, and scale bytes; note the largest value."""
    half = codes.size
    largest_codes(codes, work[:half], work[half : 2 * half], largest)
    wrong, flushed, peak = np.uint32(0), np.uint32(0), np.uint32(0)
    for b in range(scales.size):
        wrong += np.uint32(derived[b] != scales[b])
        peak = max(peak, peaks[b])
    for b in range(scales.size):
        histogram[scales[b]] += 1
        flushed += np.uint32((peaks[b] != 0) & (largest[b] < starts[scales[b]]))
    counts[WRONG_SCALES] += np.int64(wrong)
    counts[FLUSHED] += np.int64(flushed)
    counts[AMAX_BITS] = max(counts[AMAX_BITS], np.int64(peak))


def _signature(bits: Any) -> Any:
    tables = (given(F8, 2), given(F4), given(F4), given(U1))
    return types.void(given(bits), U4, given(U1), given(U1), *tables, I8, I8, F4, made(F8), made(I8), made(I8))


@compiled(_signature(U2), _signature(U4))
def measure_planes(
    bits: NDArray[Any],
    shift: int,
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    values: NDArray[np.float64],
    tops: NDArray[np.float32],
    scale_values: NDArray[np.float32],
    starts: NDArray[np.uint8],
    rule: int,
    narrow: int,
    global_scale: Any,
    lanes: NDArray[np.float64],
    counts: NDArray[np.int64],
    histogram: NDArray[np.int64],
) -> None:
    """A dense tile (flat BF16 or FP32 ``bits``) against its planes: derive them again, decode, measure.

    ``values`` [256, 16] are the decoded values, ``tops`` [256] the largest FP32 number that is not beyond a scale's
    grid, ``starts`` [256] the first magnitude index that does not decode to zero. ``global_scale`` is in the sense
    of ``rule``. Codes are compared with those of the derived scales, so one wrong scale byte counts once.
    """
    one, two, words = np.empty(CHUNK, np.uint32), np.empty(CHUNK, np.uint32), np.empty(CHUNK, np.uint32)
    peaks, derived = np.empty(CHUNK // 16, np.uint32), np.empty(CHUNK // 16, np.uint8)
    largest = np.empty(CHUNK // 16, np.uint8)
    divisors, limits = np.empty(CHUNK // 16, np.float32), np.empty(CHUNK // 16, np.float32)
    expected, decoded = np.empty(CHUNK, np.uint8), np.empty(CHUNK, np.float64)
    floats = words.view(np.float32)
    scale = np.float32(global_scale)
    for first in range(0, bits.size, CHUNK):
        size = min(CHUNK, bits.size - first)
        some_codes = codes[first // 2 : (first + size) // 2]
        some_scales = scales[first // 16 : (first + size) // 16]
        n = some_scales.size
        widen(bits[first : first + size], shift, words)
        block_peaks(words, one, two, peaks)
        if rule == AMAX_RULE:
            derive_amax_scales(peaks.view(np.float32), np.float32(6.0) * scale, divisors, derived)
        elif rule == LLMCOMPRESSOR_RULE:
            derive_llmcompressor_scales(peaks.view(np.float32), scale, narrow, divisors, derived)
        else:
            derived[:n] = some_scales
        suspect = np.uint32(0)
        for b in range(n):
            value = scale_values[derived[b]]
            divisors[b] = value / scale if rule == LLMCOMPRESSOR_RULE else value * scale
            limits[b] = tops[some_scales[b]]
            suspect += np.uint32(peaks[b] >= _INFINITY) + np.uint32(not np.isfinite(limits[b]))
        round_to_codes(floats[:size], divisors[:n], limits[:n], expected)
        count_codes(some_codes, expected, counts)
        count_blocks(derived[:n], some_scales, some_codes, expected, largest, peaks, starts, counts, histogram)
        decode(some_codes, some_scales, values, decoded)
        if suspect:
            counts[NONFINITE] += drop_nonfinite(floats, decoded)
        counts[CHANGED] += measure(floats, decoded, lanes)


@compiled(
    types.void(given(U2), U4, given(U1), given(U1), given(F8, 2), made(F8), made(I8)),
    types.void(given(U4), U4, given(U1), given(U1), given(F8, 2), made(F8), made(I8)),
)
def sum_planes(
    bits: NDArray[Any],
    shift: int,
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    values: NDArray[np.float64],
    lanes: NDArray[np.float64],
    counts: NDArray[np.int64],
) -> None:
    """As ``measure_planes`` for finite values, without looking at blocks and codes."""
    words, decoded = np.empty(CHUNK, np.uint32), np.empty(CHUNK, np.float64)
    floats = words.view(np.float32)
    for first in range(0, bits.size, CHUNK):
        size = min(CHUNK, bits.size - first)
        widen(bits[first : first + size], shift, words)
        decode(codes[first // 2 : (first + size) // 2], scales[first // 16 : (first + size) // 16], values, decoded)
        counts[CHANGED] += measure(floats, decoded, lanes)
