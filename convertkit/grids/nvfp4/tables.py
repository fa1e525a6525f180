"""Integer tables that let the encoder of NVFP4 work without floats.

Each tool computes block scales and codes with a few FP32 operations (``arithmetics``), and each of them is monotone in
the magnitude of its input. So the result is described exactly by the smallest magnitudes, as bits, at which it
changes. These are found here by bisection on the bits with the tool's own operations; the kernels then only compare
integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.grids.dense import float_type, to_float32
from convertkit.grids.nvfp4.arithmetics import CODE_BOUNDS, arithmetic_of
from convertkit.grids.nvfp4.numbers import E4M3, LARGEST_SCALE, Float32s, Sense, bits_of, float_of, reversible_global


@dataclass(frozen=True, slots=True, eq=False)
class EncodeTables:
    """All that a kernel needs to encode the weights of one group.

    ``global_bits`` are the FP32 bits to store, with their ``sense``. ``scale_bytes`` uint8 [32768]: the block
    scale by the block's amax bits (by their upper 16 bits for F32, where it is the byte of the least such
    amax, 0 for none). ``scale_bounds`` uint32 [128]: least amax bits for byte 0..126, then a sentinel.
    ``code_bounds`` int16 or int32 [128, 8]: by block scale, the largest magnitude bits *before* code 1..7 and
    before the sign is kept; rows 0 and 127 are never used.
    """

    arithmetic: str
    dtype: str
    global_bits: int
    sense: Sense
    zero_byte: int
    scale_bytes: NDArray[np.uint8]
    scale_bounds: NDArray[np.uint32]
    code_bounds: NDArray[Any]


@lru_cache(maxsize=256)
def build_encode_tables(
    arithmetic: str, dtype: str, group_amax_bits: int, *, reversible: bool = False, least_scale: int = 1
) -> EncodeTables:
    """Tables for a fused group whose largest magnitude has ``group_amax_bits`` in ``dtype`` storage bits.

    ``arithmetic`` is a row of ``ARITHMETICS`` or ``SEARCHED``, ``dtype`` BF16, F16 or F32. ``reversible`` takes the
    next FP32 global scale up whose reciprocal inverts back exactly, so that the other dialect holds it without loss.
    Block scales below the byte ``least_scale`` become that byte. ``ValueError`` for bits of infinity or NaN: refusing
    such weights is the caller's work.
    """
    bits = global_bits_of(arithmetic, dtype, group_amax_bits)
    bits = reversible_global(bits) if reversible else bits
    return tables_under(arithmetic, dtype, bits, least_scale=least_scale)


def global_bits_of(arithmetic: str, dtype: str, group_amax_bits: int) -> int:
    """FP32 bits of the global scale of a fused group; arguments and errors as for ``build_encode_tables``."""
    if not 0 <= group_amax_bits < float_type(dtype).infinity:
        raise ValueError(f"amax bits {group_amax_bits:#x} are not those of a finite {dtype} magnitude")
    with np.errstate(all="ignore"):
        amax = _magnitudes(np.array([group_amax_bits]), dtype)[0]
        return bits_of(arithmetic_of(arithmetic).global_scale(amax, dtype))


def tables_under(arithmetic: str, dtype: str, global_bits: int, *, least_scale: int = 1) -> EncodeTables:
    """As ``build_encode_tables``, for a global scale that is given, in the sense of ``arithmetic``."""
    row = arithmetic_of(arithmetic)
    scale = float_of(global_bits)
    with np.errstate(all="ignore"):
        scales = _first_bits(
            lambda amaxes: row.block_quotient(amaxes, scale, dtype) >= row.scale_bounds, (LARGEST_SCALE,), dtype
        )
        units = row.unit(E4M3[1 : LARGEST_SCALE + 1], scale)[:, None]
        codes = _first_bits(lambda weights: weights / units >= CODE_BOUNDS, (LARGEST_SCALE, 8), dtype)
    scales[:least_scale] = scales[0]
    code_bounds = np.full((128, 8), float_type(dtype).magnitude, np.int32 if dtype == "F32" else np.int16)
    code_bounds[1 : LARGEST_SCALE + 1] = codes - 1
    return EncodeTables(
        arithmetic,
        dtype,
        global_bits,
        row.sense,
        row.zero_byte,
        _scale_bytes(scales, dtype, row.zero_byte),
        np.concatenate([[0], scales, [0xFFFFFFFF]]).astype(np.uint32),
        code_bounds,
    )


def _magnitudes(bits: NDArray[Any], dtype: str) -> Float32s:
    return to_float32(bits.astype(float_type(dtype).storage), dtype)


def _first_bits(reached: Callable[[Float32s], NDArray[np.bool_]], shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Least magnitude bits >= 1 for which ``reached`` holds, elementwise; infinity's bits if none does."""
    low = np.ones(shape, np.int64)
    high = np.full(shape, float_type(dtype).infinity, np.int64)
    for _ in range(int(high.flat[0]).bit_length()):
        middle = (low + high) >> 1
        hit = reached(_magnitudes(middle, dtype))
        high = np.where(hit, middle, high)
        low = np.where(hit, low, middle + 1)
    return high


def _scale_bytes(bounds: NDArray[Any], dtype: str, zero_byte: int) -> NDArray[np.uint8]:
    """``EncodeTables.scale_bytes`` from the least amax bits of bytes 1..126."""
    wide = dtype == "F32"
    edges = (bounds + 0xFFFF) >> 16 if wide else bounds
    table = np.repeat(np.arange(LARGEST_SCALE + 1, dtype=np.uint8), np.diff(edges, prepend=0, append=32768))
    if not wide:
        table[: edges[0]] = zero_byte
    return table
