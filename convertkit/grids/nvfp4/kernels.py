"""Compiled loops of the NVFP4 encoder and decoder: integers only, one thread, the GIL released.

Signatures are explicit, so importing this module compiles (or loads from Numba's cache) everything once;
callers split the rows over threads. Arrays are C-contiguous and viewed as blocks of 16 elements. Codes of
even elements sit in the low nibble (little-endian views are used to pair them).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba import types

_F = TypeVar("_F", bound=Callable[..., Any])


def _compiled(result: Any, *arguments: Any) -> Callable[[_F], _F]:
    """``numba.njit`` with an explicit signature, cached on disk, without the GIL, never parallel."""
    return cast("Callable[[_F], _F]", numba.njit(result(*arguments), cache=True, nogil=True))


def _read(item: Any, dimensions: int) -> Any:
    return types.Array(item, dimensions, "C", readonly=True)


def _write(item: Any, dimensions: int) -> Any:
    return types.Array(item, dimensions, "C")


@_compiled(types.uint64, _read(types.uint16, 1))
def amax_16(values: Any) -> Any:
    """Largest magnitude bits of 16-bit floats."""
    largest = np.uint16(0)
    for i in range(values.size):
        largest = max(largest, np.uint16(values[i] & np.uint16(0x7FFF)))
    return largest


@_compiled(types.uint64, _read(types.uint32, 1))
def amax_32(values: Any) -> Any:
    """Largest magnitude bits of 32-bit floats."""
    largest = np.uint32(0)
    for i in range(values.size):
        largest = max(largest, np.uint32(values[i] & np.uint32(0x7FFFFFFF)))
    return largest


@_compiled(
    types.void,
    _read(types.uint16, 2),
    _read(types.uint8, 1),
    _read(types.int16, 2),
    _write(types.uint8, 2),
    _write(types.uint8, 1),
)
def encode_16(values: Any, scale_bytes: Any, bounds: Any, codes: Any, scales: Any) -> None:
    """Blocks [n, 16] of 16-bit floats to packed codes [n, 8] and block scales [n]."""
    magnitude = np.uint16(0x7FFF)
    wide = np.empty(16, np.uint16)
    pairs = wide.view(np.uint32)
    for b in range(values.shape[0]):
        largest = np.uint16(0)
        for j in range(16):
            largest = max(largest, np.uint16(values[b, j] & magnitude))
        s = scale_bytes[largest]
        scales[b] = s
        b1, b2, b3, b4 = bounds[s, 0], bounds[s, 1], bounds[s, 2], bounds[s, 3]
        b5, b6, b7, signed = bounds[s, 4], bounds[s, 5], bounds[s, 6], bounds[s, 7]
        # Sums of comparisons, not a search: the compiler turns them into vector compares.
        for j in range(16):
            x = values[b, j]
            a = np.int16(x & magnitude)
            low = np.uint16(a > b1) + np.uint16(a > b2) + np.uint16(a > b3) + np.uint16(a > b4)
            code = np.uint16(low + np.uint16(a > b5) + np.uint16(a > b6) + np.uint16(a > b7))
            sign = np.uint16(np.uint16(x >> np.uint16(12)) & np.uint16(8))
            wide[j] = np.uint16(code | np.uint16(sign * np.uint16(a > signed)))
        for j in range(8):
            pair = pairs[j]
            codes[b, j] = np.uint8(pair | (pair >> np.uint32(12)))


@_compiled(
    types.void,
    _read(types.uint32, 2),
    _read(types.uint8, 1),
    _read(types.uint32, 1),
    types.uint8,
    _read(types.int32, 2),
    _write(types.uint8, 2),
    _write(types.uint8, 1),
)
def encode_32(
    values: Any, scale_bytes: Any, scale_bounds: Any, zero_byte: Any, bounds: Any, codes: Any, scales: Any
) -> None:
    """Blocks [n, 16] of 32-bit floats to packed codes [n, 8] and block scales [n]."""
    magnitude = np.uint32(0x7FFFFFFF)
    wide = np.empty(16, np.uint32)
    pairs = wide.view(np.uint64)
    for b in range(values.shape[0]):
        largest = np.uint32(0)
        for j in range(16):
            largest = max(largest, np.uint32(values[b, j] & magnitude))
        # The upper half of the amax bits gives the byte or, rarely, one below it.
        s = scale_bytes[largest >> np.uint32(16)]
        while largest >= scale_bounds[s + 1]:
            s += np.uint8(1)
        if s == 0:
            s = zero_byte
        scales[b] = s
        b1, b2, b3, b4 = bounds[s, 0], bounds[s, 1], bounds[s, 2], bounds[s, 3]
        b5, b6, b7, signed = bounds[s, 4], bounds[s, 5], bounds[s, 6], bounds[s, 7]
        for j in range(16):
            x = values[b, j]
            a = np.int32(x & magnitude)
            low = np.uint32(a > b1) + np.uint32(a > b2) + np.uint32(a > b3) + np.uint32(a > b4)
            code = np.uint32(low + np.uint32(a > b5) + np.uint32(a > b6) + np.uint32(a > b7))
            sign = np.uint32(np.uint32(x >> np.uint32(28)) & np.uint32(8))
            wide[j] = np.uint32(code | np.uint32(sign * np.uint32(a > signed)))
        for j in range(8):
            pair = pairs[j]
            codes[b, j] = np.uint8(pair | (pair >> np.uint64(28)))


@_compiled(types.void, _read(types.uint8, 2), _read(types.uint8, 1), _read(types.uint16, 2), _write(types.uint32, 2))
def decode_16(codes: Any, scales: Any, table: Any, out: Any) -> None:
    """Packed codes [n, 8] and block scales [n] to pairs [n, 8] of 16-bit floats, by a table [256, 16]."""
    for b in range(codes.shape[0]):
        s = scales[b]
        for j in range(8):
            pair = codes[b, j]
            low = np.uint32(table[s, pair & np.uint8(15)])
            out[b, j] = low | (np.uint32(table[s, pair >> np.uint8(4)]) << np.uint32(16))


@_compiled(types.void, _read(types.uint8, 2), _read(types.uint8, 1), _read(types.uint32, 2), _write(types.uint32, 2))
def decode_32(codes: Any, scales: Any, table: Any, out: Any) -> None:
    """Packed codes [n, 8] and block scales [n] to 32-bit floats [n, 16], by a table [256, 16]."""
    for b in range(codes.shape[0]):
        s = scales[b]
        for j in range(8):
            pair = codes[b, j]
            out[b, 2 * j] = table[s, pair & np.uint8(15)]
            out[b, 2 * j + 1] = table[s, pair >> np.uint8(4)]
