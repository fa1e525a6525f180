"""Compiled loops of the ggml encoders. Each gives the bytes of ggml's own reference quantizer.

Format facts: ggml 0.25.3 ``ggml-quants.c`` (``quantize_row_*_ref``) and ``ggml-common.h`` (block layouts); the same
arithmetic is in gguf 0.19.0 ``quants.py``. Every step is in FP32 in the order of those functions. ``values`` are
blocks [blocks, 32], ``out`` the bytes of each block. FP16 scales are left to the caller, who rounds ``scales``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from convertkit.grids.compiled import compiled, read, write

_HALF = np.float32(0.5)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


@compiled(types.void, read(types.uint16, 1), write(types.uint32, 1))
def widen_bf16(bits: Any, out: Any) -> None:
    """FP32 bits of BF16 bits."""
    for i in range(bits.size):
        out[i] = np.uint32(bits[i]) << np.uint32(16)


@compiled(types.void, read(types.uint32, 1), write(types.uint16, 1))
def narrow_to_bf16(bits: Any, out: Any) -> None:
    """BF16 bits of FP32 bits, rounded to nearest, ties to even; NaN stays NaN, made quiet."""
    for i in range(bits.size):
        word = bits[i]
        rounded = (word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        nan = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        out[i] = np.uint16((word >> np.uint32(16)) | np.uint32(0x40)) if nan else np.uint16(rounded)


@compiled(types.void, read(types.float32, 2), write(types.float32, 1), write(types.uint8, 2))
def q8_0(values: Any, scales: Any, out: Any) -> None:
    """Scale amax/127; codes rounded half away from zero, at bytes 2 to 33."""
    for b in range(values.shape[0]):
        largest = _ZERO
        for j in range(32):
            largest = max(largest, abs(values[b, j]))
        d = largest / np.float32(127.0)
        inverse = _ONE / d if d != _ZERO else _ZERO
        scales[b] = d
        for j in range(32):
            x = values[b, j] * inverse
            whole = np.float32(np.trunc(x))
            if abs(x - whole) >= _HALF:
                whole += _ONE if x > _ZERO else -_ONE
            out[b, 2 + j] = np.uint8(np.int32(whole) & 255)


@compiled(types.int32, types.float32)
def _low_byte(value: Any) -> Any:
    """Truncated to an integer of 8 bits. Blocks of subnormal scale have an infinite inverse; there C, as compilers
    for x86 and Arm spell it, keeps the low byte of the lowest integer, zero."""
    return np.int32(np.int8(np.int32(value)))


@compiled(types.void, read(types.float32, 2), write(types.float32, 1), write(types.uint8, 2), types.int64)
def symmetric(values: Any, scales: Any, out: Any, levels: Any) -> None:
    """Q4_0 (16 levels) and Q5_0 (32): the value of largest magnitude becomes the lowest code."""
    first = 2 if levels == 16 else 6
    offset = np.float32(levels // 2) + _HALF
    for b in range(values.shape[0]):
        largest = _ZERO
        extreme = _ZERO
        for j in range(32):
            if largest < abs(values[b, j]):
                largest = abs(values[b, j])
                extreme = values[b, j]
        d = extreme / np.float32(-(levels // 2))
        inverse = _ONE / d if d != _ZERO else _ZERO
        scales[b] = d
        high = np.uint32(0)
        for j in range(16):
            low_code = min(np.int32(levels - 1), _low_byte(values[b, j] * inverse + offset))
            high_code = min(np.int32(levels - 1), _low_byte(values[b, j + 16] * inverse + offset))
            out[b, first + j] = np.uint8((low_code & 15) | ((high_code & 15) << 4))
            high |= np.uint32(low_code >> 4) << np.uint32(j)
            high |= np.uint32(high_code >> 4) << np.uint32(j + 16)
        if levels == 32:
            for k in range(4):
                out[b, 2 + k] = np.uint8((high >> np.uint32(8 * k)) & np.uint32(255))


@compiled(types.void, read(types.float32, 2), write(types.float32, 1), write(types.float32, 1), write(types.uint8, 2),
          types.int64)  # fmt: skip
def ranged(values: Any, scales: Any, minima: Any, out: Any, levels: Any) -> None:
    """Q4_1 (16 levels) and Q5_1 (32): codes count from the minimum of the block."""
    first = 4 if levels == 16 else 8
    for b in range(values.shape[0]):
        lowest = values[b, 0]
        highest = values[b, 0]
        for j in range(32):
            lowest = min(lowest, values[b, j])
            highest = max(highest, values[b, j])
        d = (highest - lowest) / np.float32(levels - 1)
        inverse = _ONE / d if d != _ZERO else _ZERO
        scales[b] = d
        minima[b] = lowest
        high = np.uint32(0)
        for j in range(16):
            low_code = min(np.int32(levels - 1), _low_byte((values[b, j] - lowest) * inverse + _HALF))
            high_code = min(np.int32(levels - 1), _low_byte((values[b, j + 16] - lowest) * inverse + _HALF))
            out[b, first + j] = np.uint8((low_code & 15) | ((high_code & 15) << 4))
            high |= np.uint32(low_code >> 4) << np.uint32(j)
            high |= np.uint32(high_code >> 4) << np.uint32(j + 16)
        if levels == 32:
            for k in range(4):
                out[b, 4 + k] = np.uint8((high >> np.uint32(8 * k)) & np.uint32(255))


@compiled(types.void, read(types.float32, 2), read(types.float32, 1), read(types.float32, 1), write(types.uint8, 2))
def mxfp4(values: Any, halved: Any, levels: Any, out: Any) -> None:
    """Codes nearest to each value, the first of equals; ``halved`` is half of each block's scale, ``levels`` the 16
    doubled E2M1 values. Nibbles at bytes 1 to 16."""
    for b in range(values.shape[0]):
        d = halved[b]
        for j in range(16):
            pair = np.uint8(0)
            for part in range(2):
                x = values[b, j + 16 * part]
                best = 0
                least = abs(levels[0] * d - x)
                for k in range(1, 16):
                    error = abs(levels[k] * d - x)
                    if error < least:
                        least = error
                        best = k
                pair |= np.uint8(best << (4 * part))
            out[b, 1 + j] = pair


@compiled(types.uint64, types.uint64)
def _spread(half: Any) -> Any:
    """Eight nibbles at the low ends of eight bytes."""
    x = half
    x = (x | (x << np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    x = (x | (x << np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    return (x | (x << np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)


@compiled(types.uint64, types.uint64)
def _gather(spread: Any) -> Any:
    """The inverse of ``_spread``."""
    x = spread & np.uint64(0x0F0F0F0F0F0F0F0F)
    x = (x | (x >> np.uint64(4))) & np.uint64(0x00FF00FF00FF00FF)
    x = (x | (x >> np.uint64(8))) & np.uint64(0x0000FFFF0000FFFF)
    return (x | (x >> np.uint64(16))) & np.uint64(0x00000000FFFFFFFF)


@compiled(types.void, read(types.uint64, 1), read(types.uint8, 1), write(types.uint8, 2))
def join_nvfp4(codes: Any, scales: Any, out: Any) -> None:
    """Groups of 16 codes (neighbours in a byte) and their scales to blocks of 36 bytes: 4 scales, then 4 times 8
    bytes that hold element j low and j+8 high."""
    for b in range(out.shape[0]):
        for g in range(4):
            group = codes[4 * b + g]
            out[b, g] = scales[4 * b + g]
            mixed = _spread(group & np.uint64(0xFFFFFFFF)) | (_spread(group >> np.uint64(32)) << np.uint64(4))
            for k in range(8):
                out[b, 4 + 8 * g + k] = np.uint8((mixed >> np.uint64(8 * k)) & np.uint64(255))


@compiled(types.void, read(types.uint8, 2), write(types.uint64, 1), write(types.uint8, 1))
def split_nvfp4(blocks: Any, codes: Any, scales: Any) -> None:
    """The inverse of ``join_nvfp4``."""
    for b in range(blocks.shape[0]):
        for g in range(4):
            mixed = np.uint64(0)
            for k in range(8):
                mixed |= np.uint64(blocks[b, 4 + 8 * g + k]) << np.uint64(8 * k)
            codes[4 * b + g] = _gather(mixed) | (_gather(mixed >> np.uint64(4)) << np.uint64(32))
            scales[4 * b + g] = blocks[b, g]
