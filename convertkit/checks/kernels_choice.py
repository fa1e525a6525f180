"""Compiled search for a block scale of less squared error than the recorded one, by plain arithmetic.

Most blocks are settled by FP32 sums of 64 blocks at a time, in units of the global scale: where the recorded scale is
ahead of every other one by more than FP32 could be wrong. The others are summed in float64, element by element.
"""

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
    derive_amax_scales,
    given,
    made,
    round_to_codes,
    widen,
)
from convertkit.checks.slots import CHUNK

I4, I8 = types.int32, types.int64
_MAGIC = np.float64(6755399441055744.0)
"""Adding and taking away 1.5 * 2**52 rounds a small float64 number to an integer, ties to even."""

SLACK = np.float64(1e-5)
"""Relative difference of two errors that is not counted: codes are those of an FP32 quotient, which near the middle
between two codes may be the other one."""

SIDE = 64
"""Blocks that are summed side by side."""

AHEAD, AHEAD_OF_PEAK = np.float32(1.001), np.float32(1e-7)
"""By how much an FP32 sum must be ahead to settle a block. A distance is off by at most d = 4e-7 of the largest
magnitude p, so a sum E by at most 8 d sqrt(E) + 16 d^2, which is less than 1e-4 E + 3e-8 p^2; adding 16 numbers is off
by 1e-6 E. Both sums are."""

_HALVES, _ONES, _TWOS = np.float32(0.5 * 12582912), np.float32(12582912), np.float32(2 * 12582912)
"""Adding and taking away 1.5 * 2**23 units rounds a small FP32 number to a multiple of the unit."""


@compiled(types.float64(made(F8), types.float64, made(F8)))
def error_under(sizes: NDArray[Any], unit: Any, work: NDArray[Any]) -> Any:
    """Sum of the squared distances of 16 magnitudes from the grid of ``unit``, in their order."""
    for j in range(16):
        x = sizes[j] / unit
        low = min(x, 2.0)
        middle = min(max(x, 2.0), 4.0)
        high = min(max(x, 4.0), 6.0)
        value = ((low + low + _MAGIC) - _MAGIC) * 0.5
        value += ((middle + _MAGIC) - _MAGIC) - 2.0
        value += (((high * 0.5 + _MAGIC) - _MAGIC) - 2.0) * 2.0
        gap = sizes[j] - value * unit
        work[j] = gap * gap
    total = 0.0
    for j in range(16):
        total += work[j]
    return total


@compiled(types.boolean(types.Array(F4, 1, "C"), I8, I8, I8, given(F4), given(I8), types.float64, made(F8), made(F8)))
def is_worse(
    block: NDArray[Any],
    mine: int,
    base: int,
    other: int,
    scale_values: NDArray[Any],
    sweep: NDArray[np.int64],
    global_scale: Any,
    sizes: NDArray[Any],
    work: NDArray[Any],
) -> bool:
    """Whether scale byte ``mine`` of 16 values is not tried, or has more error than one that is.

    Tried are the bytes from ``sweep[0]`` below to ``sweep[1]`` above the base, none less than half of it or than
    ``sweep[2]``, and the other byte. ``sizes`` and ``work`` [16] are scratch.
    """
    peak = 0.0
    for j in range(16):
        sizes[j] = abs(np.float64(block[j]))
        peak = max(peak, sizes[j])
    if peak == 0.0:
        return mine != base
    low = max(max(base - sweep[0], (base + 1) // 2), sweep[2])
    high = min(base + sweep[1], 126)
    if not (low <= mine <= high or mine in (base, other)):
        return True
    error = error_under(sizes, scale_values[mine] * global_scale, work)
    least = min(
        error_under(sizes, scale_values[base] * global_scale, work),
        error_under(sizes, scale_values[other] * global_scale, work),
    )
    for byte in range(low, high + 1):
        least = min(least, error_under(sizes, scale_values[byte] * global_scale, work))
    return bool(error > least * (1.0 + SLACK))


@compiled(types.void(made(F4), made(F4), made(F4), made(F4)))
def errors_beside(sizes: NDArray[Any], units: NDArray[Any], inverses: NDArray[Any], out: NDArray[Any]) -> None:
    """FP32 errors [64] of blocks whose elements j are ``sizes[64 * j : 64 * j + 64]``, each under its own unit."""
    two, four, six = np.float32(2.0), np.float32(4.0), np.float32(6.0)
    for b in range(SIDE):
        out[b] = np.float32(0.0)
    for j in range(16):
        row = sizes[SIDE * j : SIDE * j + SIDE]
        for b in range(SIDE):
            x = row[b] * inverses[b]
            magic = _HALVES if x < two else _ONES
            magic = _TWOS if x >= four else magic
            value = (x + magic) - magic
            value = six if value > six else value
            gap = row[b] - value * units[b]
            out[b] += gap * gap


@compiled(types.void(made(I4), given(F4), made(F4), made(F4)))
def units_under(bytes_: NDArray[np.int32], grid: NDArray[Any], units: NDArray[Any], inverses: NDArray[Any]) -> None:
    """Unit and inverse of scale bytes; ``grid`` [256] are their values, then their inverses from 128 on."""
    for b in range(SIDE):
        units[b] = grid[bytes_[b] & 127]
        inverses[b] = grid[(bytes_[b] & 127) + 128]


@compiled(types.void(made(I4), made(F4), made(I4), made(F4)))
def keep_least(bytes_: NDArray[np.int32], errors: NDArray[Any], mine: NDArray[np.int32], least: NDArray[Any]) -> None:
    """The least error of each block under another byte than its own."""
    for b in range(SIDE):
        error = np.float32(np.inf) if bytes_[b] == mine[b] else errors[b]
        least[b] = error if error < least[b] else least[b]


@compiled(types.void(made(F4), I8, I8, F4, made(F4), made(F4)))
def lay_beside(values: NDArray[Any], start: int, count: int, inverse: Any, out: NDArray[Any], peaks: Any) -> None:
    """Magnitudes of blocks from ``start`` on, times ``inverse``, element by element; and the largest of each block."""
    out[:] = np.float32(0.0)
    peaks[:] = np.float32(0.0)
    for b in range(count):
        for j in range(16):
            out[SIDE * j + b] = abs(values[16 * (start + b) + j]) * np.float32(inverse)
    for j in range(16):
        row = out[SIDE * j : SIDE * j + SIDE]
        for b in range(SIDE):
            peaks[b] = row[b] if row[b] > peaks[b] else peaks[b]


@compiled(I8(made(F4), given(U1), given(U1), given(U1), given(F4), given(I8), types.float64))
def count_worse(
    values: NDArray[Any],
    scales: NDArray[np.uint8],
    bases: NDArray[np.uint8],
    others: NDArray[np.uint8],
    scale_values: NDArray[Any],
    sweep: NDArray[np.int64],
    global_scale: Any,
) -> Any:
    """Blocks whose recorded scale ``is_worse``. ``scale_values`` [256] are the magnitudes of the scale bytes."""
    wrong = 0
    beside, peaks, grid = np.empty(16 * SIDE, np.float32), np.empty(SIDE, np.float32), np.empty(256, np.float32)
    units, inverses = np.empty(SIDE, np.float32), np.empty(SIDE, np.float32)
    error, tried, least = np.empty(SIDE, np.float32), np.empty(SIDE, np.float32), np.empty(SIDE, np.float32)
    mine, base, other = np.zeros(SIDE, np.int32), np.zeros(SIDE, np.int32), np.zeros(SIDE, np.int32)
    low, high, byte = np.zeros(SIDE, np.int32), np.zeros(SIDE, np.int32), np.zeros(SIDE, np.int32)
    sizes, work, block = np.empty(16), np.empty(16), np.empty(16, np.float32)
    inverse = np.float32(1.0 / global_scale)
    for b in range(128):
        grid[b], grid[b + 128] = scale_values[b], np.float32(1.0) / scale_values[b]
    for start in range(0, scales.size, SIDE):
        count = min(SIDE, scales.size - start)
        lay_beside(values, start, count, inverse, beside, peaks)
        apart = False
        for b in range(count):
            mine[b], base[b], other[b] = scales[start + b], bases[start + b], others[start + b]
            low[b] = max(max(base[b] - sweep[0], (base[b] + 1) // 2), sweep[2])
            high[b] = min(base[b] + sweep[1], 126)
            apart |= other[b] != base[b]
        units_under(mine, grid, units, inverses)
        errors_beside(beside, units, inverses, error)
        least[:] = np.float32(np.inf)
        if apart:
            units_under(other, grid, units, inverses)
            errors_beside(beside, units, inverses, tried)
            keep_least(other, tried, mine, least)
        for step in range(-sweep[0], sweep[1] + 1):
            for b in range(SIDE):
                byte[b] = min(max(base[b] + np.int32(step), low[b]), high[b])
            units_under(byte, grid, units, inverses)
            errors_beside(beside, units, inverses, tried)
            keep_least(byte, tried, mine, least)
        for b in range(count):
            known = low[b] <= mine[b] <= high[b] or mine[b] == other[b]
            if known and error[b] * AHEAD + peaks[b] * peaks[b] * AHEAD_OF_PEAK < least[b]:
                continue
            block[:] = values[16 * (start + b) : 16 * (start + b) + 16]
            wrong += is_worse(block, mine[b], base[b], other[b], scale_values, sweep, global_scale, sizes, work)
    return wrong


@compiled(types.void(made(F4), F4, types.uint8, made(F4), made(U1)))
def scales_by(peaks: NDArray[Any], encoder: Any, least: Any, work: NDArray[Any], out: NDArray[np.uint8]) -> None:
    """Block scales by the largest magnitudes, none below the byte ``least``."""
    derive_amax_scales(peaks, np.float32(6.0) * np.float32(encoder), work, out)
    for b in range(out.size):
        out[b] = max(out[b], np.uint8(least))


@compiled(types.void(made(F4), made(U1), given(F4), F4, made(U1), made(F4), made(U1)))
def codes_by(
    values: NDArray[Any],
    scales: NDArray[np.uint8],
    scale_values: NDArray[Any],
    encoder: Any,
    codes: NDArray[np.uint8],
    divisors: NDArray[Any],
    work: NDArray[np.uint8],
) -> None:
    """Packed codes of values under their block scales."""
    tops = np.full(scales.size, np.float32(np.inf))
    for b in range(scales.size):
        divisors[b] = scale_values[scales[b]] * np.float32(encoder)
    round_to_codes(values, divisors[: scales.size], tops, work[: values.size])
    for i in range(codes.size):
        codes[i] = (work[2 * i] & np.uint8(15)) | np.uint8(work[2 * i + 1] << np.uint8(4))


def _signature(bits: Any) -> Any:
    return I8(given(bits), U4, given(U1), given(F4), given(I8), F4, F4, F4, made(U1), made(U1))


@compiled(_signature(U2), _signature(U4))
def check_chosen(
    bits: NDArray[Any],
    shift: int,
    scales: NDArray[np.uint8],
    scale_values: NDArray[Any],
    sweep: NDArray[np.int64],
    encoder: Any,
    stretch: Any,
    plain: Any,
    plain_codes: NDArray[np.uint8],
    plain_scales: NDArray[np.uint8],
) -> Any:
    """Blocks of flat BF16 or FP32 ``bits`` whose scale under ``encoder`` ``is_worse``; the other byte is that of
    ``stretch`` times the largest magnitude. Fills the planes that amax gives under the global scale ``plain``."""
    size, wrong = 16 * CHUNK, 0
    words, one, two = np.empty(size, np.uint32), np.empty(size, np.uint32), np.empty(size, np.uint32)
    peaks, work, longer = (
        np.empty(size // 16, np.uint32),
        np.empty(size // 16, np.float32),
        np.empty(size // 16, np.float32),
    )
    bases, others, codes = np.empty(size // 16, np.uint8), np.empty(size // 16, np.uint8), np.empty(size, np.uint8)
    floats, largest, least = words.view(np.float32), peaks.view(np.float32), np.uint8(sweep[2])
    for first in range(0, bits.size, size):
        count = min(size, bits.size - first)
        n, block = count // 16, first // 16
        widen(bits[first : first + count], shift, words)
        block_peaks(words, one, two, peaks)
        for b in range(n):
            longer[b] = largest[b] * np.float32(stretch)
        scales_by(largest, encoder, least, work, bases)
        scales_by(longer[:n], encoder, least, work[:n], others[:n])
        some = scales[block : block + n]
        wrong += count_worse(floats[:count], some, bases[:n], others[:n], scale_values, sweep, np.float64(encoder))
        scales_by(largest, plain, np.uint8(1), work, bases)
        plain_scales[block : block + n] = bases[:n]
        some_codes = plain_codes[8 * block : 8 * (block + n)]
        codes_by(floats[:count], bases[:n], scale_values, plain, some_codes, work, codes)
    return wrong
