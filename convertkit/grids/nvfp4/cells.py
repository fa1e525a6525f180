"""All mantissas that a global scale can have, cut into cells within which BF16 rounding does not change.

A weight on the grid is ``code * block scale * g`` rounded once to BF16. The mantissas of code times block scale take
only 13 values: n/8 and 1.5 times n/8, n from 8 to 15, as numbers from 1 to 2. So the BF16 mantissas of a tensor on a
grid are at most 13 of 128, and which ones depends on the mantissa of g alone. It changes where a product passes the
middle between two BF16 numbers; between two such *edges* it is constant. Weights below 2^-126 have fewer bits, so
their roundings also change where a product is itself a BF16 number: ``fine`` cells have both kinds of edges.

An edge can be a scale too: there several products are ties at once, and the even neighbour wins. So the cells are
the open intervals between edges and those edges that an FP32 number can hold; together they are every scale there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

PRODUCTS = tuple(
    sorted({n / 8 for n in range(8, 16)} | {m if m < 2 else m / 2 for m in (3 * n / 16 for n in range(8, 16))})
)
"""The 13 mantissas of code times block scale."""

MANTISSAS = 128


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """``scales`` [n]: a mantissa of g in each cell, its middle; ``widths`` [n]: 0 for an edge.

    ``patterns`` float64 [n, 128]: 1.0 at the BF16 mantissas that products have there.
    """

    scales: Doubles
    widths: Doubles
    patterns: Doubles


def _edges(fine: bool) -> Doubles:
    """Where roundings change, ascending from 1 to 2. Equal fractions give equal quotients, so none is listed twice."""
    step = np.arange(257, 512, 1 if fine else 2)  # numbers from 1 to 2 in units of 1/256; odd ones are ties
    bounds = np.concatenate([step, 2 * step])[None, :] / 256
    edges = np.unique(np.concatenate([(bounds / np.array(PRODUCTS)[:, None]).reshape(-1), [1.0, 2.0]]))
    return edges[(edges >= 1) & (edges <= 2)]


def _patterns(scales: Doubles) -> Doubles:
    """Ties are exact: an edge that FP32 holds has at most 24 bits and a product mantissa at most 6."""
    table = np.zeros((scales.size, MANTISSAS))
    rows = np.arange(scales.size)
    for product in PRODUCTS:
        value = scales * product
        units = np.rint(np.where(value >= 2, value / 2, value) * MANTISSAS).astype(np.int64) - MANTISSAS
        table[rows, np.where(units == MANTISSAS, 0, units)] = 1.0
    return table


@cache
def cells(fine: bool = False) -> Cells:
    """The cells, ascending by scale. About 1,600, or twice as many if ``fine``; made once in a few milliseconds."""
    edges = _edges(fine)
    held = edges[(edges < 2) & (edges.astype(np.float32) == edges)]
    scales = np.concatenate([(edges[1:] + edges[:-1]) / 2, held])
    widths = np.concatenate([np.diff(edges), np.zeros(held.size)])
    order = np.argsort(scales, kind="stable")
    made = Cells(scales[order], widths[order], _patterns(scales[order]))
    for array in (made.scales, made.widths, made.patterns):
        array.setflags(write=False)
    return made
