"""Encode row tiles of BF16, F16 or F32 weights to NVFP4 codes and block scales.

Two passes: ``amax_of_tile`` over all tiles of a fused group, ``tables.build_encode_tables`` once, then
``encode_tile`` over all tiles. Results do not depend on how rows are cut into tiles. Importing this module
loads the compiled kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.grids.dense import float_type
from convertkit.grids.nvfp4 import kernels
from convertkit.grids.nvfp4.numbers import BLOCK
from convertkit.grids.nvfp4.tables import EncodeTables


def flat_items(array: NDArray[Any], itemsize_bytes: int, what: str) -> NDArray[Any]:
    """``array`` flat as unsigned integers of that size, sharing its memory; ``ValueError`` if it can't."""
    if array.dtype.itemsize != itemsize_bytes or not array.flags.c_contiguous or not array.flags.aligned:
        raise ValueError(f"{what}: a C-contiguous aligned array of {itemsize_bytes}-byte items is needed")
    return array.reshape(-1).view(f"=u{itemsize_bytes}")


def amax_of_tile(values: NDArray[Any]) -> int:
    """Largest magnitude bits among storage bits of any shape, 0 if empty.

    ``values`` are 2-byte (BF16, F16) or 4-byte (F32) items, C-contiguous. A result of at least infinity's bits
    (``FLOAT_TYPES[dtype].infinity``) means that the tile holds infinity or NaN.
    """
    wide = values.dtype.itemsize == 4
    flat = flat_items(values, 4 if wide else 2, "values")
    return int(kernels.amax_32(flat) if wide else kernels.amax_16(flat))


def encode_tile(
    values: NDArray[Any], tables: EncodeTables, codes_out: NDArray[np.uint8], scales_out: NDArray[np.uint8]
) -> None:
    """Encode ``values`` [rows, in], storage bits of ``tables.dtype``, ``in`` a multiple of 16.

    Fills ``codes_out`` uint8 [rows, in/2] (even inputs in the low nibble) and ``scales_out`` uint8
    [rows, in/16] (E4M3 bytes). All arrays C-contiguous. No magnitude may exceed the group's amax given to the
    tables by a factor that matters: larger ones saturate at 6 * 448 * global scale. Weights must be finite.
    ``ValueError`` for shapes that do not fit.
    """
    rows, width = values.shape
    if width % BLOCK or codes_out.shape != (rows, width // 2) or scales_out.shape != (rows, width // BLOCK):
        raise ValueError(f"shapes {values.shape}, {codes_out.shape}, {scales_out.shape} do not fit together")
    itemsize = np.dtype(float_type(tables.dtype).storage).itemsize
    blocks = flat_items(values, itemsize, "values").reshape(-1, BLOCK)
    codes = flat_items(codes_out, 1, "codes").reshape(-1, BLOCK // 2)
    scales = flat_items(scales_out, 1, "scales")
    if itemsize == 2:
        kernels.encode_16(blocks, tables.scale_bytes, tables.code_bounds, codes, scales)
    else:
        kernels.encode_32(
            blocks, tables.scale_bytes, tables.scale_bounds, tables.zero_byte, tables.code_bounds, codes, scales
        )
