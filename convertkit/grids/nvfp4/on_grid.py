"""Encode BF16 weights under a given grid: exactly where a block lies on it. Importing loads the compiled kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.grids.dense import FLOAT_TYPES
from convertkit.grids.nvfp4 import kernels_recover as kernels
from convertkit.grids.nvfp4.decode import decode_table
from convertkit.grids.nvfp4.encode import flat_items
from convertkit.grids.nvfp4.numbers import BLOCK, LARGEST_SCALE, Sense, swap_sense
from convertkit.grids.nvfp4.tables import EncodeTables, tables_under

MAGNITUDES = 1 << 15
INFINITY = FLOAT_TYPES["BF16"].infinity
NO_TABLES = EncodeTables(
    "none",
    "BF16",
    0,
    "multiplier",
    0,
    np.zeros(MAGNITUDES, np.uint8),
    np.zeros(128, np.uint32),
    np.zeros((128, 8), np.int16),
)
"""Gives every block scale 0, which no check lets pass."""


@dataclass(frozen=True, slots=True, eq=False)
class GridTables:
    """One global scale as ``kernels_recover`` needs it.

    ``rows`` uint16 [128, 8]: BF16 magnitudes by scale byte and magnitude index. ``tries`` uint8 [882]: scale bytes to
    try for a block whose largest magnitude is m, from ``starts[m]`` to ``starts[m + 1]`` (uint16 [32769]); ``first``
    uint8 [32768]: the first of them, 0 if there is none, ``first[0]`` the block scale of zeros. ``doubled`` uint32
    [1024]: each entry of ``rows`` in both halves.
    """

    global_bits: int
    sense: Sense
    rows: NDArray[np.uint16]
    first: NDArray[np.uint8]
    starts: NDArray[np.uint16]
    tries: NDArray[np.uint8]
    doubled: NDArray[np.uint32]


def build_grid_tables(
    global_bits: int, sense: Sense, *, zero_byte: int = 0x38, least_scale: int = 1, arithmetic: str = "exact"
) -> GridTables:
    """Tables for a global scale given as it will be stored, and expanded by ``arithmetic`` (as ``decode_table``).

    A block whose largest code could be one of several is given the largest code that fits, as packers by amax do;
    with ``least_scale`` above 1 those with a block scale of at least that byte are tried before the others.
    """
    table = decode_table(global_bits, sense, "BF16", arithmetic)[:128, :8].astype(np.uint16)
    table[0] = 0  # byte 0 means that no scale was found
    scales, indexes = (axis.reshape(-1) for axis in np.indices((LARGEST_SCALE, 7)) + 1)
    amaxes = table[scales, indexes]
    order = np.lexsort((scales, -indexes, scales < least_scale, amaxes))
    order = order[(amaxes[order] > 0) & (amaxes[order] < INFINITY)]
    starts = np.searchsorted(amaxes[order], np.arange(MAGNITUDES + 1)).astype(np.uint16)
    tries = scales[order].astype(np.uint8)
    first = np.zeros(MAGNITUDES, np.uint8)
    some = np.flatnonzero(np.diff(starts.astype(np.int64)))
    first[some] = tries[starts[some]]
    first[0] = zero_byte
    doubled = table.reshape(-1).astype(np.uint32) * np.uint32(0x10001)
    return GridTables(global_bits, sense, np.ascontiguousarray(table), first, starts, tries, doubled)


def holds_all(counts: NDArray[np.int64], global_bits: int, sense: Sense, arithmetic: str = "exact") -> bool:
    """Whether each magnitude that occurs, by ``counts`` [32768], is that of some code and block scale."""
    image = np.zeros(MAGNITUDES, bool)
    image[decode_table(global_bits, sense, "BF16", arithmetic)[: LARGEST_SCALE + 1, :8]] = True
    return not counts[~image].any()


def _grid(values: NDArray[np.uint16], tables: GridTables) -> tuple[Any, Any, Any, Any, Any]:
    """What the kernels take first."""
    blocks = flat_items(values, 2, "values").reshape(-1, BLOCK)
    return blocks, tables.first, tables.starts, tables.tries, tables.doubled


def count_tile(values: NDArray[np.uint16], counts: NDArray[np.int64], scales: NDArray[np.uint8] | None = None) -> None:
    """Add how often each magnitude of BF16 bits occurs to ``counts`` [2, 32768], in one row or the other. With
    ``scales``, only those in blocks whose scale is 0."""
    flat = flat_items(values, 2, "values")
    if scales is None:
        kernels.count_magnitudes(flat, counts)
    else:
        kernels.count_left_magnitudes(flat.reshape(-1, BLOCK), flat_items(scales, 1, "scales"), counts)


def match_tile(values: NDArray[np.uint16], tables: GridTables) -> tuple[int, int]:
    """How many blocks of BF16 bits [rows, in] that are not all zero lie on the grid, and how many are not all zero."""
    counts = np.zeros(2, np.int64)
    kernels.match(*_grid(values, tables), counts)
    return int(counts[0]), values.size // BLOCK - int(counts[1])


def scales_of_tile(values: NDArray[np.uint16], tables: GridTables) -> NDArray[np.uint8]:
    """Block scales uint8 [rows, in/16] that reproduce a tile [rows, in]; 0 for blocks that are not on the grid."""
    scales = np.empty((*values.shape[:-1], values.shape[-1] // BLOCK), np.uint8)
    kernels.scales_of(*_grid(values, tables), scales.reshape(-1))
    return scales


def solve_tile(
    values: NDArray[np.uint16],
    tables: GridTables,
    otherwise: EncodeTables | None,
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint8],
) -> None:
    """Encode a tile of BF16 bits [rows, in]: exactly where a block is on the grid, by ``otherwise`` where it is not.

    Without ``otherwise`` such a block gets those of ``NO_TABLES``. Fills ``codes`` uint8 [rows, in/2]
    and ``scales`` uint8 [rows, in/16].
    """
    other = NO_TABLES if otherwise is None else otherwise
    kernels.solve(
        *_grid(values, tables),
        other.scale_bytes,
        other.code_bounds,
        flat_items(codes, 1, "codes").reshape(-1, BLOCK // 2),
        flat_items(scales, 1, "scales"),
    )


def otherwise_tables(global_bits: int, sense: Sense, least_scale: int = 1) -> EncodeTables:
    """ModelOpt's amax arithmetic under a recovered global scale, for blocks that are not on its grid."""
    multiplier = global_bits if sense == "multiplier" else swap_sense(global_bits)[0]
    return tables_under("amax", "BF16", multiplier, least_scale=least_scale)
