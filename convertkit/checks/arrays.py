"""Between arrays of a tile and the kernels: storage bits in, tallies out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.checks import slots
from convertkit.checks.fidelity import Tally
from convertkit.checks.reference import widened
from convertkit.checks.tiles import LANES, Sum, fold


def flat(array: NDArray[Any], storage: str) -> NDArray[Any]:
    """The array as aligned contiguous one-dimensional storage of the type given, copied only if it is not yet so."""
    return np.require(array, requirements=("C", "A")).reshape(-1).view(storage)


def source_words(bits: NDArray[Any], dtype: str) -> tuple[NDArray[Any], int]:
    """Flat BF16 bits and 16, or FP32 bits and 0: what the kernels widen."""
    if dtype == "BF16":
        return flat(bits, "<u2"), 16
    if dtype == "F16":
        return widened(flat(bits, "<u2"), dtype).view(np.uint32), 0
    return flat(bits, "<u4"), 0


def tally_of(
    elements: int,
    lanes: NDArray[np.float64],
    counts: NDArray[np.int64],
    histogram: NDArray[np.int64] | None = None,
    bit_differences: int | None = None,
) -> Tally:
    """The tally of one tile from what a kernel filled in."""
    reference, candidate, error, peaks = lanes.reshape(slots.SUMS, LANES)
    return Tally(
        elements=elements,
        changed=int(counts[slots.CHANGED]),
        nonfinite=int(counts[slots.NONFINITE]),
        bit_differences=bit_differences,
        square_reference=Sum(fold(reference)),
        square_candidate=Sum(fold(candidate)),
        square_error=Sum(fold(error)),
        max_abs_error=float(peaks.max()),
        blocks=0 if histogram is None else int(histogram.sum()),
        flushed_blocks=int(counts[slots.FLUSHED]),
        saturated=int(counts[slots.SATURATED]),
        scale_histogram=() if histogram is None else tuple(histogram.tolist()),
    )
