"""Encode rows of floats as ggml blocks, byte for byte as ggml's reference quantizer does.

K-quants come from ``k_quants``, everything else from the loops of ``kernels``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.dtypes import BLOCK_TYPES
from convertkit.grids.dense import cast, to_float32
from convertkit.grids.ggml.types import K_TYPES

FEW = 1 << 16
"""Elements below which no compiled loop is loaded for a cast."""

E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""ggml 0.25.3 ``kvalues_mxfp4``: twice the E2M1 values, with scales halved."""


def encode_rows(values: NDArray[Any], from_dtype: str, to_dtype: str) -> NDArray[np.uint8]:
    """Storage bits [rows, width] of BF16, F16 or F32 as the bytes of type ``to_dtype``, [rows, bytes of a row].

    Dense targets are rounded once, to nearest, ties to even. Width must be a multiple of the block. Values that are
    not finite give bytes without meaning; callers refuse them first.
    """
    rows = values.shape[0]
    if to_dtype not in BLOCK_TYPES:
        return np.ascontiguousarray(_dense(values, from_dtype, to_dtype)).view(np.uint8).reshape(rows, -1)
    floats = _float32_rows(values, from_dtype)
    if to_dtype in K_TYPES:
        from convertkit.grids.ggml.k_quants import encode_k

        return encode_k(floats.reshape(-1, BLOCK_TYPES[to_dtype].block), to_dtype).reshape(rows, -1)
    block = BLOCK_TYPES[to_dtype]
    blocks = floats.reshape(-1, block.block)
    out = np.empty((blocks.shape[0], block.bits // 8), np.uint8)
    _encode_blocks(blocks, to_dtype, out)
    return out.reshape(rows, -1)


def _dense(values: NDArray[Any], from_dtype: str, to_dtype: str) -> NDArray[Any]:
    """``grids.dense.cast``, by a compiled loop where that is worth loading."""
    if (from_dtype, to_dtype) != ("F32", "BF16") or values.size < FEW:
        return cast(values, from_dtype, to_dtype)
    from convertkit.grids.ggml import kernels

    out = np.empty(values.shape, np.uint16)
    kernels.narrow_to_bf16(np.ascontiguousarray(values).reshape(-1).view(np.uint32), out.reshape(-1))
    return out


def _float32_rows(values: NDArray[Any], from_dtype: str) -> NDArray[np.float32]:
    """The values as FP32, exactly, C-contiguous."""
    if from_dtype != "BF16":
        return np.ascontiguousarray(to_float32(values, from_dtype))
    from convertkit.grids.ggml import kernels

    out = np.empty(values.shape, np.uint32)
    kernels.widen_bf16(np.ascontiguousarray(values).reshape(-1), out.reshape(-1))
    return out.view(np.float32)


def _encode_blocks(blocks: NDArray[np.float32], dtype: str, out: NDArray[np.uint8]) -> None:
    from convertkit.grids.ggml import kernels

    if dtype == "MXFP4":
        _encode_mxfp4(blocks, out)
        return
    scales = np.empty(blocks.shape[0], np.float32)
    if dtype == "Q8_0":
        kernels.q8_0(blocks, scales, out)
    elif dtype in ("Q4_0", "Q5_0"):
        kernels.symmetric(blocks, scales, out, 16 if dtype == "Q4_0" else 32)
    else:
        minima = np.empty(blocks.shape[0], np.float32)
        kernels.ranged(blocks, scales, minima, out, 16 if dtype == "Q4_1" else 32)
        out[:, 2:4] = _halves(minima)
    out[:, :2] = _halves(scales)


def _halves(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """FP16 bytes [n, 2], rounded to nearest even; too large ones are infinite, as in ggml."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16).view(np.uint8).reshape(-1, 2)


def _encode_mxfp4(blocks: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
    """The scale's exponent is that of the largest magnitude less 2 (ggml 0.25.3 ``quantize_row_mxfp4_ref``)."""
    from convertkit.grids.ggml import kernels

    largest = np.abs(blocks).max(axis=1)
    with np.errstate(divide="ignore"):
        exponents = np.where(largest > 0, np.floor(np.log2(largest)) + np.float32(125), 0).astype(np.uint8)
    out[:, 0] = exponents
    kernels.mxfp4(blocks, halved_e8m0(exponents), E2M1_DOUBLED, out)


def halved_e8m0(exponents: NDArray[np.uint8]) -> NDArray[np.float32]:
    """2^(e-128), also where that is subnormal in FP32 (ggml 0.25.3 ``ggml_e8m0_to_fp32_half``)."""
    wide = exponents.astype(np.uint32)
    small = np.uint32(0x00200000) << np.minimum(wide, 1)
    return np.where(wide < 2, small, (np.maximum(wide, 1) - np.uint32(1)) << np.uint32(23)).view(np.float32)
