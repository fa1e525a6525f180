"""Decode NVFP4 planes to BF16, F16 or F32 by a table of all 256 block scales times 16 codes.

Three arithmetics: ``exact`` (the real number c*s*g or c*s/G, rounded once), ``modelopt`` and
``compressed-tensors`` (the roundings of those packages' dequantization). Importing this module loads the
compiled kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.grids.dense import float_type, from_float32
from convertkit.grids.nvfp4 import kernels
from convertkit.grids.nvfp4.encode import flat_items
from convertkit.grids.nvfp4.numbers import BLOCK, E2M1, E4M3, float_of, reversible_global, swap_sense

__all__ = ["DECODE_ARITHMETICS", "decode_table", "decode_tile", "paired", "reversible_global", "swap_sense"]

DECODE_ARITHMETICS = ("exact", "modelopt", "compressed-tensors")

_QUIET_NAN = {"BF16": 0x7FC0, "F16": 0x7E00, "F32": 0x7FC00000}
_NAN_ROWS = (0x7F, 0xFF)


def _bf16_of_f64(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    """FP64 values rounded once to BF16 bits: to the nearest multiple of the unit in the last place."""
    _, exponent = np.frexp(values)
    unit = np.maximum(exponent - 8, -133)
    # Scaling by powers of two is exact here, rint ties to even, and the result has at most 8 bits, so the
    # cast to FP32 only moves it (or overflows to infinity, as rounding demands).
    nearest: NDArray[np.float32] = np.ldexp(np.rint(np.ldexp(values, -unit)), unit).astype(np.float32)
    return (nearest.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def _exact(global_bits: int, sense: str, out_dtype: str) -> NDArray[Any]:
    """c*s*g or c*s/G rounded once.

    c*s has at most 6 significant bits and g 24, so the FP64 product is exact. The FP64 quotient q of c*s/G
    is within 2^-53 of the exact one, relatively. A rounding boundary m of a type with p <= 24 bits has p+1
    bits, so an exact quotient that is not m differs from it by at least 1/(m*G) in units of their last bits:
    relatively more than 2^-25 * 2^-24 = 2^-49. So q lies on the same side of every boundary as the exact
    quotient, and on a boundary only if that one does: rounding q rounds the exact quotient once.
    """
    products = E4M3.astype(np.float64)[:, None] * E2M1.astype(np.float64)
    scale = np.float64(float_of(global_bits))
    values = products * scale if sense == "multiplier" else products / scale
    if out_dtype == "BF16":
        return _bf16_of_f64(values)
    if out_dtype == "F16":
        return values.astype(np.float16).view(np.uint16)
    return values.astype(np.float32).view(np.uint32)


def _as_modelopt(global_bits: int, sense: str, out_dtype: str) -> NDArray[Any]:
    """T(fl(c * fl(s*g))), code 8 as +0: ModelOpt 0.47.0 nvfp4_tensor.py:28,385-401 (also vLLM's emulation)."""
    values = E2M1.copy()
    values[8] = 0
    scale = float_of(global_bits if sense == "multiplier" else swap_sense(global_bits)[0])
    return from_float32(values * (E4M3 * scale)[:, None], out_dtype)


def _as_compressed_tensors(global_bits: int, sense: str, out_dtype: str) -> NDArray[Any]:
    """T(fl(c * fl(s/G))), -0 kept: compressed-tensors 0.20.0 quantization/lifecycle/forward_helpers.py:548-571."""
    scale = float_of(global_bits if sense == "divisor" else swap_sense(global_bits)[0])
    return from_float32(E2M1 * (E4M3 / scale)[:, None], out_dtype)


_RULES = dict(zip(DECODE_ARITHMETICS, (_exact, _as_modelopt, _as_compressed_tensors), strict=True))


def decode_table(global_bits: int, sense: str, out_dtype: str, arithmetic: str = "exact") -> NDArray[Any]:
    """Storage bits [256, 16] of ``out_dtype`` by block scale byte and code.

    ``sense`` is ``multiplier`` or ``divisor``. ``modelopt`` reads a divisor G as the multiplier fl(1/G), and
    ``compressed-tensors`` a multiplier g as the divisor fl(1/g): what those tools would find after
    re-labelling. compressed-tensors' ``decompress`` itself writes BF16 only; its F16 and F32 tables are those
    of its ``dequantize`` with that dtype. Rows 0x7f and 0xff are quiet NaN; rows of negative block
    scales are decoded as they stand, refusing them is the caller's work.
    ``ValueError`` for an unknown sense, dtype or arithmetic.
    """
    if sense not in ("multiplier", "divisor"):
        raise ValueError(f"unknown sense {sense}")
    if arithmetic not in _RULES:
        raise ValueError(f"unknown arithmetic {arithmetic}; one of {', '.join(_RULES)}")
    storage = float_type(out_dtype).storage
    with np.errstate(all="ignore"):
        table = np.ascontiguousarray(_RULES[arithmetic](global_bits, sense, out_dtype).astype(storage))
    table[list(_NAN_ROWS)] = _QUIET_NAN[out_dtype]
    return table


def paired(table: NDArray[Any]) -> NDArray[np.uint32]:
    """A 16-bit decode table [256, 16] as one of both elements of a code byte: uint32 [256, 256].

    ``decode_tile`` takes either. The pairs take 0.2 ms to make and decode a third faster: worth it for matrices
    above some hundred thousand elements.
    """
    if table.shape != (256, 16) or table.dtype.itemsize != 2:
        raise ValueError("pairs are made of a 16-bit table [256, 16]")
    byte = np.arange(256)
    wide = table.view(np.uint16).astype(np.uint32)
    return np.ascontiguousarray(wide[:, byte & 15] | (wide[:, byte >> 4] << np.uint32(16)))


def decode_tile(codes: NDArray[np.uint8], scales: NDArray[np.uint8], table: NDArray[Any], out: NDArray[Any]) -> None:
    """Fill ``out`` [rows, in] (storage bits) from ``codes`` uint8 [rows, in/2] and ``scales`` uint8 [rows, in/16].

    ``table`` is of ``decode_table`` with the item size of ``out``, or ``paired`` for 2-byte items. All arrays
    C-contiguous; ``ValueError`` for shapes that do not fit.
    """
    rows, width = out.shape
    if width % BLOCK or codes.shape != (rows, width // 2) or scales.shape != (rows, width // BLOCK):
        raise ValueError(f"shapes {codes.shape}, {scales.shape}, {out.shape} do not fit together")
    size = out.dtype.itemsize
    shapes = {2: (((256, 16), 2), ((256, 256), 4)), 4: (((256, 16), 4),)}
    if (table.shape, table.dtype.itemsize) not in shapes.get(size, ()):
        raise ValueError("the table must be of the output's item size")
    packed = flat_items(codes, 1, "codes").reshape(-1, BLOCK // 2)
    blocks = flat_items(scales, 1, "scales")
    flat = flat_items(out, size, "out")
    bits = flat_items(table, table.dtype.itemsize, "table").reshape(table.shape)
    if size == 4:
        kernels.decode_32(packed, blocks, bits, flat.reshape(-1, BLOCK))
        return
    if flat.ctypes.data % 4:
        raise ValueError("out: memory aligned to 4 bytes is needed")
    kernel = kernels.decode_16 if table.shape[1] == 16 else kernels.decode_pairs_16
    kernel(packed, blocks, bits, flat.view(np.uint32).reshape(-1, BLOCK // 2))
