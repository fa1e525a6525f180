"""Row tiles of weights on their way into or out of a GGUF: read, decoded, and with their rows in the wanted order."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.checkpoint import TensorRef
from convertkit.conversion.desk import Desk
from convertkit.conversion.gguf_units import BlockWeight, Order, Source, shape_of
from convertkit.conversion.survey import STORAGE
from convertkit.conversion.tiles import TILE_BYTES
from convertkit.dialects.planes import PackedModule
from convertkit.dtypes import BLOCK_TYPES, STORED_TYPES

ONE_BITS = 0x3F80_0000
"""FP32 bits of 1.0: the scale of an NVFP4 tensor that states none."""

Tile = NDArray[Any]


def reordered(tile: Tile, order: Order, head_rows: int) -> Tile:
    """Rows of whole heads in another order. ``interleave``: row i of a head's first half goes to place 2i, row i of
    its second half to 2i+1 (llama.cpp 0.5.0-dev ``LlamaModel.permute``); ``deinterleave`` undoes it."""
    if order == "keep":
        return tile
    half = head_rows // 2
    split = (-1, 2, half) if order == "interleave" else (-1, half, 2)
    return np.ascontiguousarray(tile.reshape(*split, tile.shape[1]).swapaxes(1, 2)).reshape(tile.shape)


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and width of a tensor of any rank: the last dimension is the width."""
    return prod(shape[:-1]), shape[-1] if shape else 1


def row_ranges(rows: int, width: int, head_rows: int = 1) -> Iterator[tuple[int, int]]:
    """Half-open row ranges of about ``TILE_BYTES`` in FP32, cut only between heads."""
    step = max(1, TILE_BYTES // max(4 * width * head_rows, 1)) * head_rows
    for first in range(0, rows, step):
        yield first, min(rows, first + step)


def head_rows_of(shape: tuple[int, ...], heads: int) -> int:
    """Rows of one head, 1 where the rows are of no heads."""
    return shape[0] // heads if heads else 1


def row_bytes(ref: TensorRef) -> int:
    """Bytes of one row of a stored tensor."""
    _, width = matrix_shape(ref.spec.shape)
    row = STORED_TYPES[ref.spec.dtype]
    return width // row.block * row.bits // 8


def stored_row_bytes(source: Source) -> int:
    """Bytes that one row of a weight takes where it is read from."""
    if isinstance(source, PackedModule):
        return sum(row_bytes(ref) for ref in (source.codes, source.block_scale))
    return row_bytes(source.weight if isinstance(source, BlockWeight) else source)


def read_rows(desk: Desk, ref: TensorRef, first: int, last: int, use: str = "source") -> Tile:
    """Stored rows: storage bits [rows, width], or bytes [rows, bytes of a row] of a block type."""
    length = row_bytes(ref)
    storage = STORAGE.get(ref.spec.dtype, "|u1")
    return desk.rows(use, ref, first, (last - first, length // np.dtype(storage).itemsize), storage)


def planes_rows(desk: Desk, packed: PackedModule, first: int, last: int) -> tuple[Tile, Tile]:
    """Codes [rows, in/2] and block scales [rows, in/16] of a packed linear."""
    return read_rows(desk, packed.codes, first, last, "codes"), read_rows(
        desk, packed.block_scale, first, last, "scales"
    )


def scalar_bits(desk: Desk, ref: TensorRef | None) -> int:
    """FP32 bits of the one value that a reference points at; those of 1 where there is none."""
    return ONE_BITS if ref is None else desk.reader.f32_bits(ref)


def dense_rows(desk: Desk, source: Source, global_bits: int, first: int, last: int, dtype: str) -> tuple[Tile, str]:
    """Rows of a source as storage bits and their type: that of a dense source, else ``dtype`` (or FP32 of blocks)."""
    if isinstance(source, TensorRef):
        tile = read_rows(desk, source, first, last)
        if source.spec.dtype not in BLOCK_TYPES:
            return tile, source.spec.dtype
        from convertkit.grids.ggml.decode import decode_rows

        return decode_rows(tile.view(np.uint8), source.spec.dtype).view(np.uint32), "F32"
    from convertkit.grids.nvfp4.decode import decode_table, decode_tile

    if isinstance(source, PackedModule):
        codes, scales = planes_rows(desk, source, first, last)
        sense = source.spelling.sense
    else:
        codes, scales = block_planes(desk, source, first, last)
        sense = "multiplier"
    dtype = dtype if dtype in STORAGE else "F32"
    out = desk.buffers.take("dense", STORAGE[dtype], (last - first, codes.shape[1] * 2))
    decode_tile(codes, scales, decode_table(global_bits, sense, dtype, "exact"), out)
    return out, dtype


def block_planes(desk: Desk, source: BlockWeight, first: int, last: int) -> tuple[Tile, Tile]:
    """Codes and block scales of rows of an NVFP4 tensor."""
    from convertkit.grids.ggml.nvfp4 import split_planes

    return split_planes(read_rows(desk, source.weight, first, last).view(np.uint8))


def width_of(source: Source) -> int:
    return matrix_shape(shape_of(source))[1]
