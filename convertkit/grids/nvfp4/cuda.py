"""NVFP4 on an NVIDIA GPU: the same integer tables, the same bytes, as torch operations.

The three functions take and give NumPy arrays of the shapes of ``encode`` and ``decode``, so a caller swaps one
module for the other. Each thread has its own stream and pinned buffers: while one thread's tile is computed, those
of others are on their way. Nothing here is arithmetic on floats, so there is nothing that a GPU could round otherwise.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from convertkit.errors import refusal
from convertkit.grids.nvfp4.tables import BLOCK, EncodeTables

STORED = {2: (torch.int16, 0x7FFF), 4: (torch.int32, 0x7FFFFFFF)}
"""Signed torch type of a storage size, and the mask of the magnitude: the sign bit is the sign of the integer."""


class Lane(threading.local):
    """What one thread uses on the device: a stream and pinned host buffers by use, kept between tiles."""

    def __init__(self) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.pinned: dict[str, torch.Tensor] = {}


_LANE = Lane()


def require_cuda() -> None:
    """``E_DEVICE`` (status 2) unless torch can use a CUDA device."""
    if not torch.cuda.is_available():
        raise refusal(
            "E_DEVICE",
            "torch finds no CUDA device",
            fix="use --device cpu, or install a CUDA build of torch and its driver",
        )


def _pinned(use: str, size_bytes: int) -> torch.Tensor:
    held = _LANE.pinned.get(use)
    if held is None or held.numel() < size_bytes:
        held = _LANE.pinned[use] = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
    return held[:size_bytes]


def _to_device(array: NDArray[Any], use: str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The bytes of a contiguous array on the device, seen as ``dtype`` in one dimension."""
    raw = torch.from_numpy(array.reshape(-1).view(np.uint8))
    if device.type == "cpu":
        return raw.view(dtype)
    pinned = _pinned(use, raw.numel())
    pinned.copy_(raw)
    return pinned.to(device, non_blocking=True).view(dtype)


def _to_host(tensors: list[tuple[torch.Tensor, NDArray[Any]]], device: torch.device) -> None:
    """Copy results into NumPy arrays of the same number of bytes and wait for all of them."""
    flat = [
        (tensor.contiguous().view(torch.uint8).reshape(-1), out.reshape(-1).view(np.uint8)) for tensor, out in tensors
    ]
    if device.type == "cpu":
        for tensor, out in flat:
            out[:] = tensor.numpy()
        return
    waiting = []
    for number, (tensor, out) in enumerate(flat):
        pinned = _pinned(f"result {number}", tensor.numel())
        pinned.copy_(tensor, non_blocking=True)
        waiting.append((pinned, out))
    assert _LANE.stream is not None
    _LANE.stream.synchronize()
    for pinned, out in waiting:
        out[:] = pinned.numpy()


def _stream(device: torch.device) -> Any:
    """This thread's stream as a context; none is needed on the CPU."""
    if device.type == "cpu":
        return torch.inference_mode()
    if _LANE.stream is None:
        _LANE.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return torch.cuda.stream(_LANE.stream)


def _magnitudes(values: torch.Tensor, mask: int) -> torch.Tensor:
    return (values & mask).to(torch.int32)


def amax_of_tile(values: NDArray[Any], device: str = "cuda") -> int:
    """Largest magnitude bits of a tile, as ``encode.amax_of_tile``."""
    dtype, mask = STORED[values.dtype.itemsize]
    place = torch.device(device)
    with _stream(place):
        largest = _magnitudes(_to_device(values, "source", dtype, place), mask).amax()
        return int(largest.item())


def encode_tile(
    values: NDArray[Any],
    tables: EncodeTables,
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    device: str = "cuda",
) -> None:
    """Fill ``codes`` [rows, in/2] and ``scales`` [rows, in/16] of a tile [rows, in], as ``encode.encode_tile``."""
    dtype, mask = STORED[values.dtype.itemsize]
    place = torch.device(device)
    with _stream(place):
        raw = _to_device(values, "source", dtype, place).view(-1, BLOCK)
        sizes = _magnitudes(raw, mask)
        scale = _block_scales(sizes.amax(1), tables, place)
        bounds = torch.from_numpy(tables.code_bounds.astype(np.int32)).to(place)[scale.to(torch.int64)]
        index = torch.zeros_like(sizes)
        for column in range(7):
            index += sizes > bounds[:, column, None]
        index += ((raw < 0) & (sizes > bounds[:, 7, None])).to(torch.int32) << 3
        pairs = index.view(-1, 2)
        packed = (pairs[:, 0] | (pairs[:, 1] << 4)).to(torch.uint8)
        _to_host([(packed, codes), (scale.to(torch.uint8), scales)], place)


def _block_scales(peaks: torch.Tensor, tables: EncodeTables, device: torch.device) -> torch.Tensor:
    """Scale byte of each block by its largest magnitude: a table of 32,768 bytes, or a search in the bounds (F32)."""
    if tables.dtype != "F32":
        table = torch.from_numpy(tables.scale_bytes.astype(np.int32)).to(device)
        return table[peaks.to(torch.int64)]
    bounds = torch.from_numpy(tables.scale_bounds[1:127].astype(np.int64)).to(device)
    found = torch.searchsorted(bounds, peaks.to(torch.int64), right=True).to(torch.int32)
    return torch.where(found == 0, tables.zero_byte, found)


def decode_tile(
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    table: NDArray[Any],
    out: NDArray[Any],
    device: str = "cuda",
) -> None:
    """Fill ``out`` [rows, in] from codes and scales by a table [256, 16], as ``decode.decode_tile``."""
    dtype, _ = STORED[out.dtype.itemsize]
    place = torch.device(device)
    with _stream(place):
        entries = _to_device(np.ascontiguousarray(table), "table", dtype, place)
        nibbles = _to_device(codes, "codes", torch.uint8, place).view(-1, BLOCK // 2)
        rows = _to_device(scales, "scales", torch.uint8, place).to(torch.int64)[:, None] * 16
        both = torch.stack(((nibbles & 15).to(torch.int64) + rows, (nibbles >> 4).to(torch.int64) + rows), -1)
        _to_host([(entries[both.reshape(-1)], out)], place)
