"""The checker's sums on an NVIDIA GPU: the same order of additions, so the same bits as its compiled kernels.

Dense tiles against planes and against dense tiles; whatever else is compared stays on the processor.
"""

from __future__ import annotations

from collections.abc import Iterator
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


def _results(tiles: int) -> tuple[torch.Tensor, torch.Tensor]:
    return gpu.scratch(8 * tiles * slots.SUMS * LANES), gpu.zeros(tiles * COUNTS, torch.int64)


def _fetch(lanes: torch.Tensor, counts: torch.Tensor) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """For each tile its lanes, and counts as ``tally_of`` takes them; the count of different bits comes last."""
    tiles = counts.numel() // COUNTS
    sums, found = np.empty((tiles, slots.SUMS * LANES)), np.empty((tiles, COUNTS), np.int64)
    gpu.download([(lanes, sums), (counts.view(torch.uint8), found)])
    placed = np.zeros((tiles, slots.COUNTS + 1), np.int64)
    placed[:, [slots.CHANGED, slots.NONFINITE, slots.FLUSHED, slots.SATURATED, slots.COUNTS]] = found
    return zip(sums, placed, strict=True)


def _pieces(elements: int, per: int) -> list[slice]:
    return [slice(first, min(first + per, elements)) for first in range(0, elements, per)]


def measure_planes(
    words: NDArray[Any], codes: NDArray[np.uint8], scales: NDArray[np.uint8], tables: PlaneTables, per: int
) -> list[Tally]:
    """Tallies of flat BF16 or FP32 bits against flat planes, one for each tile of ``per`` elements (times of 16)."""
    values, tops, starts = _tables(tables)
    size, pieces = 8 * words.dtype.itemsize, _pieces(words.size, per)
    with gpu.stream():
        source, nibbles, bytes_ = gpu.upload(words, "source"), gpu.upload(codes, "codes"), gpu.upload(scales, "scales")
        lanes, counts = _results(len(pieces))
        PROGRAM.launch(
            f"measure_planes_{size}", LANES * len(pieces), source, nibbles, bytes_, values, lanes, counts, per,
            words.size,
        )  # fmt: skip
        PROGRAM.launch(
            f"count_planes_{size}", scales.size, source, nibbles, bytes_, tops, starts, counts, per, scales.size
        )
        made = _fetch(lanes, counts)
    return [
        tally_of(
            piece.stop - piece.start,
            sums,
            found,
            np.bincount(scales[piece.start // 16 : piece.stop // 16], minlength=256),
        )
        for piece, (sums, found) in zip(pieces, made, strict=True)
    ]


def measure_dense(mine: NDArray[Any], yours: NDArray[Any], count_bits: bool, per: int) -> list[Tally]:
    """Tallies of flat BF16 or FP32 bits against others of the same kind, one for each tile of ``per`` elements;
    ``count_bits`` counts those that differ."""
    size, pieces = 8 * mine.dtype.itemsize, _pieces(mine.size, per)
    with gpu.stream():
        left, right = gpu.upload(mine, "source"), gpu.upload(yours, "other")
        lanes, counts = _results(len(pieces))
        PROGRAM.launch(f"measure_dense_{size}", LANES * len(pieces), left, right, lanes, counts, per, mine.size)
        PROGRAM.launch(f"differ_{size}", mine.size if count_bits else 0, left, right, counts, per, mine.size)
        made = _fetch(lanes, counts)
    return [
        tally_of(piece.stop - piece.start, sums, found, None, int(found[slots.COUNTS]) if count_bits else None)
        for piece, (sums, found) in zip(pieces, made, strict=True)
    ]
