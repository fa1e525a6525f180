"""The checker's sums on an NVIDIA GPU: the same order of additions, so the same bits as its compiled kernels.

Dense tiles against planes and against dense tiles; whatever else is compared stays on the processor.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from convertkit.backends import cuda as gpu
from convertkit.checks import slots
from convertkit.checks.arrays import tally_of
from convertkit.checks.fidelity import Tally
from convertkit.checks.reference import PlaneTables
from convertkit.checks.tiles import LANES

PROGRAM = gpu.Program("convertkit.checks", "measure.cu")
CHANGED, NONFINITE, FLUSHED, SATURATED, DIFFERENT_BITS = range(5)
COUNTS = 5
"""Positions in the counts of ``measure.cu``, and their number."""


@lru_cache(maxsize=64)
def _tables(tables: PlaneTables) -> tuple[torch.Tensor, ...]:
    """Values, tops and starts on the device."""
    return gpu.keep([tables.values, tables.tops, tables.starts])


def _results() -> tuple[torch.Tensor, torch.Tensor]:
    return gpu.scratch(8 * slots.SUMS * LANES), gpu.zeros(COUNTS, torch.int64)


def _fetch(lanes: torch.Tensor, counts: torch.Tensor) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Lanes, and counts as ``tally_of`` takes them; the count of different bits comes last."""
    sums, found = np.empty(slots.SUMS * LANES), np.empty(COUNTS, np.int64)
    gpu.download([(lanes, sums), (counts.view(torch.uint8), found)])
    placed = np.zeros(slots.COUNTS + 1, np.int64)
    placed[[slots.CHANGED, slots.NONFINITE, slots.FLUSHED, slots.SATURATED, slots.COUNTS]] = found
    return sums, placed


def measure_planes(
    words: NDArray[Any], codes: NDArray[np.uint8], scales: NDArray[np.uint8], tables: PlaneTables
) -> Tally:
    """The tally of flat BF16 or FP32 bits against flat planes, a multiple of 16 elements."""
    values, tops, starts = _tables(tables)
    size = 8 * words.dtype.itemsize
    with gpu.stream():
        source, nibbles, bytes_ = gpu.upload(words, "source"), gpu.upload(codes, "codes"), gpu.upload(scales, "scales")
        lanes, counts = _results()
        PROGRAM.launch(f"measure_planes_{size}", LANES, source, nibbles, bytes_, values, lanes, counts, words.size)
        PROGRAM.launch(f"count_planes_{size}", scales.size, source, nibbles, bytes_, tops, starts, counts, scales.size)
        sums, found = _fetch(lanes, counts)
    return tally_of(words.size, sums, found, np.bincount(scales, minlength=256))


def measure_dense(mine: NDArray[Any], yours: NDArray[Any], count_bits: bool) -> Tally:
    """The tally of flat BF16 or FP32 bits against others of the same kind; ``count_bits`` counts those that differ."""
    size = 8 * mine.dtype.itemsize
    with gpu.stream():
        left, right = gpu.upload(mine, "source"), gpu.upload(yours, "other")
        lanes, counts = _results()
        PROGRAM.launch(f"measure_dense_{size}", LANES, left, right, lanes, counts, mine.size)
        PROGRAM.launch(f"differ_{size}", mine.size if count_bits else 0, left, right, counts, mine.size)
        sums, found = _fetch(lanes, counts)
    return tally_of(mine.size, sums, found, None, int(found[slots.COUNTS]) if count_bits else None)
