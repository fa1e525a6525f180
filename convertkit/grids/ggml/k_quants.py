"""Encode FP32 rows as ggml's k-quants, byte for byte as its reference quantizer does (ggml 0.25.3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from convertkit.grids.ggml import kernels_k as kernels

SUPER_BLOCK = 256
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_MAGIC = np.float32(12582912)
_TINY = np.float32(1e-15)


def encode_k(blocks: Floats, dtype: str) -> Bytes:
    """Blocks [n, 256] of finite values as Q4_K, Q5_K or Q6_K: bytes [n, bytes of a block]."""
    return _encode_signed(blocks) if dtype == "Q6_K" else _encode_ranged(blocks, dtype == "Q5_K")


def _encode_ranged(blocks: Floats, five_bits: bool) -> Bytes:
    """Blocks [n, 256] as Q4_K [n, 144] or Q5_K [n, 176]: eight groups with scales and minima of six bits each."""
    values = blocks.reshape(-1, 32)
    found = np.empty((4, values.shape[0]), np.float32)
    kernels.find_ranged(values, five_bits, found)
    scales, minima = found[0].reshape(-1, 8), -found[1].reshape(-1, 8)
    out = np.empty((blocks.shape[0], 176 if five_bits else 144), np.uint8)
    products = []
    sixths: list[Bytes] = []
    for column, parts in ((0, scales), (2, minima)):
        largest = np.fmax.reduce(parts, axis=1, initial=np.float32(0))
        sixths.append(_six_bits(parts, largest))
        stored = _half(largest / np.float32(63))
        out[:, column : column + 2] = stored.view(np.uint8).reshape(-1, 2)
        with np.errstate(invalid="ignore"):
            products.append((stored.astype(np.float32)[:, None] * sixths[-1].astype(np.float32)).reshape(-1))
    _store_sixths(sixths[0], sixths[1], out[:, 4:16])
    codes = np.empty((values.shape[0], 32), np.uint8)
    kernels.ranged_codes(values, found, products[0], products[1], five_bits, codes)
    kernels.store_ranged(codes.reshape(-1, SUPER_BLOCK), five_bits, out)
    return out


def _encode_signed(blocks: Floats) -> Bytes:
    """Blocks [n, 256] as Q6_K [n, 210]: sixteen groups with signed scales of eight bits."""
    values = blocks.reshape(-1, 16)
    found = np.empty((4, values.shape[0]), np.float32)
    kernels.find_signed(values, found)
    scales = found[0].reshape(-1, 16)
    places = np.nan_to_num(np.abs(scales), nan=0, posinf=np.inf).argmax(axis=1)  # the first of equals; NaN never
    extreme = scales[np.arange(scales.shape[0]), places]
    empty = ~(np.abs(extreme) >= _TINY)
    out = np.empty((blocks.shape[0], 210), np.uint8)
    with np.errstate(all="ignore"):
        inverse = np.float32(-128) / extreme
        stored = np.where(empty, np.float16(0), _half(np.float32(1) / inverse))
        eighths = np.minimum(_nearest(inverse[:, None] * scales), 127).astype(np.int8)
        products = (stored.astype(np.float32)[:, None] * eighths.astype(np.float32)).reshape(-1)
    codes = np.empty((values.shape[0], 16), np.uint8)
    kernels.signed_codes(values, found, products, codes)
    kernels.store_signed(codes.reshape(-1, SUPER_BLOCK), out)
    out[:, 192:208] = eighths.view(np.uint8)
    out[:, 208:210] = stored.astype(np.float16).view(np.uint8).reshape(-1, 2)
    out[empty] = 0
    return out


def _nearest(values: Floats) -> NDArray[np.int32]:
    """ggml's ``nearest_int``: to the nearest integer, ties to even, by the low bits of value + 1.5 * 2^23."""
    moved = np.ascontiguousarray(values + _MAGIC).view(np.int32)
    return (moved & np.int32(0x007FFFFF)) - np.int32(0x00400000)


def _half(values: Floats) -> NDArray[np.float16]:
    """Rounded to nearest even; too large ones are infinite, as in ggml."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16)


def _six_bits(parts: Floats, largest: Floats) -> Bytes:
    """Each part of 63 by the largest; a negative one wraps to a byte above 63, as in ggml, and is cut to that."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.where(largest > 0, np.float32(63) / largest, np.float32(0))
        return np.minimum(_nearest(inverse[:, None] * parts).astype(np.uint8), np.uint8(63))


def _store_sixths(scales: Bytes, minima: Bytes, out: Bytes) -> None:
    """Eight scales and eight minima of six bits in twelve bytes: the upper bits of the last four lie in the first."""
    out[:, :4] = scales[:, :4] | (scales[:, 4:] >> 4 << 6)
    out[:, 4:8] = minima[:, :4] | (minima[:, 4:] >> 4 << 6)
    out[:, 8:] = (scales[:, 4:] & 15) | (minima[:, 4:] << 4)
