"""Compiled search for a block scale of less squared error than the recorded one, by plain float64 arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from convertkit.checks.kernels import F4, F8, U1, compiled, given, made

I8 = types.int64
_MAGIC = np.float64(6755399441055744.0)
"""Adding and taking away 1.5 * 2**52 rounds a small float64 number to an integer, ties to even."""

SLACK = np.float64(1e-5)
"""Relative difference of two errors that is not counted: codes are those of an FP32 quotient, which near the middle
between two codes may be the other one."""


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


@compiled(I8(made(F4), given(U1), made(U1), made(U1), given(F4), given(I8), types.float64))
def count_worse(
    values: NDArray[Any],
    scales: NDArray[np.uint8],
    bases: NDArray[np.uint8],
    others: NDArray[np.uint8],
    scale_values: NDArray[Any],
    sweep: NDArray[np.int64],
    global_scale: Any,
) -> Any:
    """Blocks whose recorded scale is not tried, or has more error than one that is.

    Tried are the bytes from ``sweep[0]`` below to ``sweep[1]`` above the base, none less than half of it or than
    ``sweep[2]``, and the other byte.
    """
    wrong = 0
    sizes, work = np.empty(16), np.empty(16)
    for b in range(scales.size):
        peak = 0.0
        for j in range(16):
            sizes[j] = abs(np.float64(values[16 * b + j]))
            peak = max(peak, sizes[j])
        base, mine, other = np.int64(bases[b]), np.int64(scales[b]), np.int64(others[b])
        if peak == 0.0:
            wrong += mine != base
            continue
        low = max(max(base - sweep[0], (base + 1) // 2), sweep[2])
        high = min(base + sweep[1], 126)
        if not (low <= mine <= high or mine in (base, other)):
            wrong += 1
            continue
        error = error_under(sizes, scale_values[mine] * global_scale, work)
        least = min(
            error_under(sizes, scale_values[base] * global_scale, work),
            error_under(sizes, scale_values[other] * global_scale, work),
        )
        for byte in range(low, high + 1):
            least = min(least, error_under(sizes, scale_values[byte] * global_scale, work))
        wrong += error > least * (1.0 + SLACK)
    return wrong
