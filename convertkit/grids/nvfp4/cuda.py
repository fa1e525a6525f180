"""NVFP4 on an NVIDIA GPU: the tile functions of ``encode``, ``decode``, ``choice`` and ``on_grid`` with the same bytes.

All take and give NumPy arrays, so a caller swaps one module for the other (see ``devices``). The kernels compare
integers and, where they choose scales, do float64 arithmetic that is exact; there is nothing that a GPU could round
otherwise. Tables stay on the device while their group is worked on.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from convertkit.backends import cuda as gpu
from convertkit.grids.dense import cast
from convertkit.grids.nvfp4.choice import ChoiceTables, error_units
from convertkit.grids.nvfp4.numbers import BLOCK, E4M3, float_of
from convertkit.grids.nvfp4.on_grid import NO_TABLES, GridTables
from convertkit.grids.nvfp4.tables import EncodeTables

require_cuda = gpu.require_cuda
PROGRAM = gpu.Program("convertkit.grids.nvfp4", "kernels.cu")
AMAX_THREADS = 1 << 17
LARGEST_BOUND = 0x7FFD
"""Bounds of 16-bit floats are stored plus 2, which must stay positive; only rows that are never used are larger."""


def packed_bounds(bounds: NDArray[np.int16]) -> NDArray[np.uint16]:
    """Bounds [128, 8] of 16-bit floats as the kernels take them."""
    return (np.minimum(bounds, LARGEST_BOUND) + 2).astype(np.uint16)


def split_rows(table: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """A decode table [256, 16] as [256, 32]: low bytes of a row, then its high bytes."""
    return np.ascontiguousarray(np.concatenate([table & 0xFF, table >> 8], axis=1).astype(np.uint8))


Held = tuple[torch.Tensor, ...]


@lru_cache(maxsize=64)
def _encoding(tables: EncodeTables) -> Held:
    """Scale bytes, their bounds, bounds of codes."""
    narrow = tables.dtype != "F32"
    bounds = packed_bounds(tables.code_bounds) if narrow else tables.code_bounds
    return gpu.keep([tables.scale_bytes, tables.scale_bounds, bounds])


@lru_cache(maxsize=64)
def _choosing(tables: ChoiceTables) -> Held:
    """The sweep, bounds of codes, values of the scale bytes, units of sums."""
    units = error_units(7 if tables.dtype == "BF16" else 23)
    bounds = tables.first.code_bounds.astype(np.int32)
    return gpu.keep([tables.sweep, bounds, E4M3[:128].astype(np.float64), units])


@lru_cache(maxsize=64)
def _grid(tables: GridTables) -> Held:
    return gpu.keep([tables.first, tables.starts, tables.tries, tables.doubled])


def _fits(values: NDArray[Any], codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> int:
    """Number of blocks; ``ValueError`` for shapes that do not fit together."""
    rows, width = values.shape
    if width % BLOCK or codes.shape != (rows, width // 2) or scales.shape != (rows, width // BLOCK):
        raise ValueError(f"shapes {values.shape}, {codes.shape}, {scales.shape} do not fit together")
    return values.size // BLOCK


def amax_of_tile(values: NDArray[Any]) -> int:
    """As ``encode.amax_of_tile``, for a multiple of 16 elements."""
    largest = np.zeros(1, np.uint32)
    if not values.size:
        return 0
    with gpu.stream():
        source, top = gpu.upload(values, "source"), gpu.zeros(1, torch.int32)
        narrow = values.dtype.itemsize == 2
        count = values.size // BLOCK if narrow else values.size
        PROGRAM.launch("amax_16" if narrow else "amax_32", min(count, AMAX_THREADS), source, top, count)
        gpu.download([(top.view(torch.uint8), largest)])
    return int(largest[0])


def encode_tile(
    values: NDArray[Any], tables: EncodeTables, codes_out: NDArray[np.uint8], scales_out: NDArray[np.uint8]
) -> None:
    """As ``encode.encode_tile``."""
    blocks = _fits(values, codes_out, scales_out)
    bytes_, limits, bounds = _encoding(tables)
    with gpu.stream():
        source, codes, scales = gpu.upload(values, "source"), gpu.scratch(codes_out.size), gpu.scratch(scales_out.size)
        if tables.dtype != "F32":
            PROGRAM.launch("encode_16", blocks, source, bytes_, bounds, codes, scales, blocks)
        else:
            PROGRAM.launch(
                "encode_32", blocks, source, bytes_, limits, bounds, codes, scales, tables.zero_byte, blocks
            )  # fmt: skip
        gpu.download([(codes, codes_out), (scales, scales_out)])


def choose_tile(
    values: NDArray[Any], tables: ChoiceTables, codes_out: NDArray[np.uint8], scales_out: NDArray[np.uint8]
) -> None:
    """As ``choice.choose_tile``."""
    blocks = _fits(values, codes_out, scales_out)
    (bytes_, limits, bounds), (others, other_limits, _) = _encoding(tables.first), _encoding(tables.other)
    sweep, wide_bounds, grid, units = _choosing(tables)
    scale = float(float_of(tables.first.global_bits))
    wide = cast(values, "F16", "F32") if tables.dtype == "F16" else values
    with gpu.stream():
        source, codes, scales = gpu.upload(wide, "source"), gpu.scratch(codes_out.size), gpu.scratch(scales_out.size)
        planes = (grid, units, codes, scales, scale)
        if tables.dtype == "BF16":
            PROGRAM.launch(
                "choose_16", blocks, source, bytes_, others, sweep, wide_bounds, bounds, *planes, blocks
            )  # fmt: skip
        else:
            PROGRAM.launch(
                "choose_32", blocks, source, bytes_, others, limits, other_limits, sweep, wide_bounds, *planes,
                tables.first.zero_byte, blocks,
            )  # fmt: skip
        gpu.download([(codes, codes_out), (scales, scales_out)])


@lru_cache(maxsize=64)
def _decoding(table: bytes, narrow: bool) -> torch.Tensor:
    if not narrow:
        return gpu.keep([np.frombuffer(table, np.uint32)])[0]
    return gpu.keep([split_rows(np.frombuffer(table, np.uint16).reshape(256, 16))])[0]


def decode_tile(codes: NDArray[np.uint8], scales: NDArray[np.uint8], table: NDArray[Any], out: NDArray[Any]) -> None:
    """As ``decode.decode_tile``, by a table [256, 16]."""
    _fits(out, codes, scales)
    narrow = out.dtype.itemsize == 2
    held = _decoding(table.tobytes(), narrow)
    with gpu.stream():
        nibbles, bytes_, made = gpu.upload(codes, "codes"), gpu.upload(scales, "scales"), gpu.scratch(out.nbytes)
        threads = out.size // (8 if narrow else 4)
        PROGRAM.launch("decode_16" if narrow else "decode_32", threads, nibbles, bytes_, held, made, threads)
        gpu.download([(made, out)])


def count_tile(values: NDArray[np.uint16], counts: NDArray[np.int64], scales: NDArray[np.uint8] | None = None) -> None:
    """As ``on_grid.count_tile``."""
    blocks, found = values.size // BLOCK, np.zeros(counts.shape[1], np.uint32)
    with gpu.stream():
        source, made = gpu.upload(values, "source"), gpu.zeros(found.size, torch.int32)
        chosen = source if scales is None else gpu.upload(scales, "scales")
        PROGRAM.launch("count_magnitudes", blocks, source, chosen, made, int(scales is not None), blocks)
        gpu.download([(made.view(torch.uint8), found)])
    counts[0] += found


def match_tile(values: NDArray[np.uint16], tables: GridTables) -> tuple[int, int]:
    """As ``on_grid.match_tile``."""
    blocks, held = values.size // BLOCK, _grid(tables)
    found = np.zeros(2, np.int64)
    with gpu.stream():
        source, flags = gpu.upload(values, "source"), gpu.scratch(blocks)
        PROGRAM.launch("match", blocks, source, *held, flags, blocks)
        counts = torch.stack([(flags == 1).sum(), (flags != 2).sum()])
        gpu.download([(counts.view(torch.uint8), found)])
    return int(found[0]), int(found[1])


def scales_of_tile(values: NDArray[np.uint16], tables: GridTables) -> NDArray[np.uint8]:
    """As ``on_grid.scales_of_tile``."""
    scales = np.empty((*values.shape[:-1], values.shape[-1] // BLOCK), np.uint8)
    held = _grid(tables)
    with gpu.stream():
        source, made = gpu.upload(values, "source"), gpu.scratch(scales.size)
        PROGRAM.launch("scales_of", scales.size, source, *held, made, scales.size)
        gpu.download([(made, scales)])
    return scales


def solve_tile(
    values: NDArray[np.uint16],
    tables: GridTables,
    otherwise: EncodeTables | None,
    codes_out: NDArray[np.uint8],
    scales_out: NDArray[np.uint8],
) -> None:
    """As ``on_grid.solve_tile``."""
    blocks = _fits(values, codes_out, scales_out)
    held, (bytes_, _, bounds) = _grid(tables), _encoding(NO_TABLES if otherwise is None else otherwise)
    with gpu.stream():
        source, codes, scales = gpu.upload(values, "source"), gpu.scratch(codes_out.size), gpu.scratch(scales_out.size)
        PROGRAM.launch("solve", blocks, source, *held, bytes_, bounds, codes, scales, blocks)
        gpu.download([(codes, codes_out), (scales, scales_out)])
