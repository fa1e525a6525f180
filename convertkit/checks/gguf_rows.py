"""Rows of weights as the checks of GGUF units read them: stored, decoded by gguf, taken apart, or in another order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.checkpoint import TensorRef
from convertkit.checks.bench import Bench
from convertkit.checks.reference import exact_rounded_table
from convertkit.checks.tiles import tile_rows
from convertkit.containers.reader import Reader
from convertkit.conversion.gguf_units import BlockWeight, Order, Source
from convertkit.conversion.tiles import bytes_view
from convertkit.dialects.planes import PackedModule
from convertkit.dtypes import BLOCK_TYPES, STORED_TYPES

STORAGE = {"BF16": "<u2", "F16": "<u2", "F32": "<u4"}
ONE = 0x3F80_0000
"""FP32 bits of 1.0: the scale of an NVFP4 tensor that states none."""

Bytes = NDArray[np.uint8]


def width_of(shape: tuple[int, ...]) -> int:
    """Elements of a row; 1 for a scalar."""
    return shape[-1] if shape else 1


def row_bytes(ref: TensorRef) -> int:
    """Bytes of a stored row, in whole blocks for block types."""
    row = STORED_TYPES[ref.spec.dtype]
    return width_of(ref.spec.shape) // row.block * row.bits // 8


def stored_rows(reader: Reader, ref: TensorRef, first: int, count: int) -> Bytes:
    """Bytes of rows of a stored tensor, [rows, bytes of a row]."""
    tile = np.empty((count, row_bytes(ref)), np.uint8)
    reader.read_into(ref, first * tile.shape[1], bytes_view(tile))
    return tile


def order_of(rows: int, order: Order, heads: int) -> NDArray[np.int64]:
    """For each written row, the row of the source it comes from."""
    places = np.arange(rows, dtype=np.int64)
    if order == "keep":
        return places
    size = rows // heads
    head, place = places // size, places % size
    if order == "interleave":
        return head * size + (place % 2) * (size // 2) + place // 2
    return head * size + (place % (size // 2)) * 2 + place // (size // 2)


def gathered(reader: Reader, ref: TensorRef, wanted: NDArray[np.int64]) -> Bytes:
    """The wanted rows of a stored tensor, in that order; they lie close together."""
    first = int(wanted.min())
    rows = stored_rows(reader, ref, first, int(wanted.max()) - first + 1)
    if np.array_equal(wanted, np.arange(first, first + rows.shape[0])):
        return rows
    return rows[wanted - first]


def block_planes(blocks: Bytes) -> tuple[Bytes, Bytes]:
    """NVFP4 blocks [rows, in/64*36] as plane codes [rows, in/2] and block scales [rows, in/16]."""
    from convertkit.checks.kernels_blocks import take_apart

    rows, each = blocks.shape[0], np.ascontiguousarray(blocks).reshape(-1, 36)
    codes, scales = np.empty(32 * each.shape[0], np.uint8), np.empty(4 * each.shape[0], np.uint8)
    take_apart(each, codes, scales)
    return codes.reshape(rows, -1), scales.reshape(rows, -1)


def _plane_rows(bench: Bench, source: PackedModule | BlockWeight, wanted: NDArray[np.int64]) -> tuple[Bytes, Bytes]:
    """Codes and block scales, as planes, of rows of an NVFP4 source."""
    reader = bench.desk.reader
    if isinstance(source, BlockWeight):
        return block_planes(gathered(reader, source.weight, wanted))
    return gathered(reader, source.codes, wanted), gathered(reader, source.block_scale, wanted)


def scalar_bits(reader: Reader, ref: TensorRef | None) -> int:
    """FP32 bits of the one value that a reference points at; those of 1 where there is none."""
    return ONE if ref is None else reader.f32_bits(ref)


def source_values(bench: Bench, source: Source, wanted: NDArray[np.int64], dtype: str) -> tuple[NDArray[Any], str]:
    """Rows of a source as storage bits: as stored, exact products rounded once to ``dtype``, or gguf's FP32."""
    if isinstance(source, TensorRef):
        rows = gathered(bench.desk.reader, source, wanted)
        if source.spec.dtype not in BLOCK_TYPES:
            return rows.view(STORAGE.get(source.spec.dtype, "|u1")), source.spec.dtype
        return dequantized(rows, source.spec.dtype).view(np.uint32), "F32"
    codes, scales = _plane_rows(bench, source, wanted)
    if isinstance(source, PackedModule):
        bits, sense = bench.facts.global_bits[source.module], source.spelling.sense
    else:
        bits, sense = scalar_bits(bench.desk.reader, source.scale), "multiplier"
    dtype = dtype if dtype in STORAGE else "F32"
    table = exact_rounded_table(bits, sense, dtype)
    from convertkit.checks.kernels import decode

    values = np.empty((codes.shape[0], 2 * codes.shape[1]), table.dtype)
    decode(codes.reshape(-1), scales.reshape(-1), table, values.reshape(-1))
    return values, dtype


def dequantized(rows: Bytes, dtype: str) -> NDArray[np.float32]:
    """gguf's own FP32 values [rows, width] of rows of a block type [rows, bytes of a row]."""
    from gguf import GGMLQuantizationType, quants

    with np.errstate(invalid="ignore", over="ignore"):
        return np.ascontiguousarray(quants.dequantize(rows, GGMLQuantizationType[dtype]), dtype=np.float32)


def head_tiles(rows: int, width: int, heads: int) -> Iterator[tuple[int, int]]:
    """(first, count) of row tiles cut between heads."""
    head = rows // heads if heads else 1
    step = max(head, tile_rows(width) // head * head)
    for first in range(0, rows, step):
        yield first, min(step, rows - first)
