"""Tiles: the fixed pieces in which weights are worked on and summed, and sums that do not depend on anything else.

A sum in a report must be the same on every machine. So a tensor is cut into tiles of a size that is a constant
(never a function of memory or workers); inside a tile the element at flat position i is added to lane i mod
``LANES`` in order; the lanes are folded in halves; tiles are added in tile order with a compensated sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TILE_ELEMENTS = 1 << 20
"""Elements of a tile, at most, unless one row is longer. Changing it changes the last digits of reports."""

LANES = 512
"""Partial sums of a tile: few enough to stay in the first cache, many enough for any vector width."""


def tile_rows(in_features: int) -> int:
    """Rows of a tile of a matrix with ``in_features`` columns: as many as fit ``TILE_ELEMENTS``, at least one."""
    return max(1, TILE_ELEMENTS // max(1, in_features))


def row_tiles(rows: int, in_features: int) -> Iterator[tuple[int, int]]:
    """``(first row, number of rows)`` of each tile of a matrix, in order."""
    step = tile_rows(in_features)
    for first in range(0, rows, step):
        yield first, min(step, rows - first)


def flat_tiles(elements: int) -> Iterator[tuple[int, int]]:
    """``(first element, number of elements)`` of each tile of a tensor that is not treated as a matrix."""
    for first in range(0, elements, TILE_ELEMENTS):
        yield first, min(TILE_ELEMENTS, elements - first)


@dataclass(frozen=True, slots=True)
class Sum:
    """A float64 sum and the rounding error that it left out."""

    value: float = 0.0
    rest: float = 0.0

    @property
    def total(self) -> float:
        return self.value + self.rest

    def __add__(self, other: Sum) -> Sum:
        """Knuth's two-sum of the values; the errors are added up beside it."""
        value = self.value + other.value
        shadow = value - self.value
        error = (self.value - (value - shadow)) + (other.value - shadow)
        return Sum(value, self.rest + other.rest + error)


NOTHING = Sum()
"""The sum of no numbers."""


def fold(lanes: NDArray[np.float64]) -> float:
    """Sum of ``LANES`` partial sums: the upper half is added to the lower one until one number is left."""
    while lanes.size > 1:
        half = lanes.size // 2
        lanes = lanes[:half] + lanes[half:]
    return float(lanes[0])
