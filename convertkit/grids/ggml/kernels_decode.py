"""Compiled loops of the ggml decoders, value for value as ggml's reference (``dequantize_row_*``, ggml 0.25.3).

``blocks`` are the bytes of each block, ``scales`` (and ``minima``) its FP16 numbers widened to FP32 by the caller.
Every step is in FP32 in the order of those functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from convertkit.grids.compiled import compiled, read, write

_BLOCKS = read(types.uint8, 2)
_SCALES = read(types.float32, 1)
_OUT = write(types.float32, 2)


@compiled(types.void, _BLOCKS, _SCALES, _OUT)
def q8_0(blocks: Any, scales: Any, out: Any) -> None:
    for b in range(blocks.shape[0]):
        d = scales[b]
        for j in range(32):
            out[b, j] = np.float32(np.int8(blocks[b, 2 + j])) * d


@compiled(types.void, _BLOCKS, _SCALES, _OUT, types.int64, types.int64, types.int32)
def symmetric(blocks: Any, scales: Any, out: Any, first: Any, fifth: Any, offset: Any) -> None:
    """Q4_0 and Q5_0: codes less ``offset`` times the scale; ``fifth`` is the place of the fifth bits, 0 for none."""
    for b in range(blocks.shape[0]):
        d = scales[b]
        for j in range(16):
            low = np.int32(blocks[b, first + j] & 15)
            high = np.int32(blocks[b, first + j] >> 4)
            if fifth:
                low |= ((np.int32(blocks[b, fifth + j // 8]) >> np.int32(j % 8)) & np.int32(1)) << np.int32(4)
                high |= ((np.int32(blocks[b, fifth + 2 + j // 8]) >> np.int32(j % 8)) & np.int32(1)) << np.int32(4)
            out[b, j] = np.float32(low - offset) * d
            out[b, j + 16] = np.float32(high - offset) * d


@compiled(types.void, _BLOCKS, _SCALES, _SCALES, _OUT, types.int64, types.int64)
def ranged(blocks: Any, scales: Any, minima: Any, out: Any, first: Any, fifth: Any) -> None:
    """Q4_1 and Q5_1: codes times the scale plus the minimum."""
    for b in range(blocks.shape[0]):
        d = scales[b]
        m = minima[b]
        for j in range(16):
            low = np.int32(blocks[b, first + j] & 15)
            high = np.int32(blocks[b, first + j] >> 4)
            if fifth:
                low |= ((np.int32(blocks[b, fifth + j // 8]) >> np.int32(j % 8)) & np.int32(1)) << np.int32(4)
                high |= ((np.int32(blocks[b, fifth + 2 + j // 8]) >> np.int32(j % 8)) & np.int32(1)) << np.int32(4)
            out[b, j] = np.float32(low) * d + m
            out[b, j + 16] = np.float32(high) * d + m


@compiled(types.void, _BLOCKS, _SCALES, _SCALES, _OUT)
def mxfp4(blocks: Any, halved: Any, levels: Any, out: Any) -> None:
    for b in range(blocks.shape[0]):
        d = halved[b]
        for j in range(16):
            out[b, j] = levels[blocks[b, 1 + j] & 15] * d
            out[b, j + 16] = levels[blocks[b, 1 + j] >> 4] * d


@compiled(types.void, _BLOCKS, _SCALES, _SCALES, _OUT, types.boolean)
def k_ranged(blocks: Any, scales: Any, minima: Any, out: Any, five: Any) -> None:
    """Q4_K, and with ``five`` Q5_K: eight runs of 32 codes with 6-bit scales and minima (``get_scale_min_k4``)."""
    codes = 48 if five else 16
    for b in range(blocks.shape[0]):
        for run in range(8):
            if run < 4:
                scale = blocks[b, 4 + run] & 63
                minimum = blocks[b, 8 + run] & 63
            else:
                scale = (blocks[b, 8 + run] & 15) | ((blocks[b, run] >> 6) << 4)
                minimum = (blocks[b, 8 + run] >> 4) | ((blocks[b, 4 + run] >> 6) << 4)
            d = scales[b] * np.float32(scale)
            m = minima[b] * np.float32(minimum)
            for j in range(32):
                pair = blocks[b, codes + 32 * (run // 2) + j]
                code = np.int32(pair >> 4) if run % 2 else np.int32(pair & 15)
                if five:
                    code |= ((np.int32(blocks[b, 16 + j]) >> np.int32(run)) & np.int32(1)) << np.int32(4)
                out[b, 32 * run + j] = d * np.float32(code) - m


@compiled(types.void, _BLOCKS, _SCALES, _OUT)
def q6_k(blocks: Any, scales: Any, out: Any) -> None:
    """Two halves of 128: low nibbles in 64 bytes, two high bits in 32, sixteen signed scales."""
    for b in range(blocks.shape[0]):
        for half in range(2):
            for part in range(4):
                for j in range(32):
                    nibbles = blocks[b, 64 * half + 32 * (part % 2) + j]
                    low = np.int32(nibbles >> 4) if part >= 2 else np.int32(nibbles & 15)
                    high = (np.int32(blocks[b, 128 + 32 * half + j]) >> np.int32(2 * part)) & np.int32(3)
                    place = 128 * half + 32 * part + j
                    scale = np.float32(np.int8(blocks[b, 192 + place // 16]))
                    out[b, place] = (scales[b] * scale) * np.float32((low | (high << np.int32(4))) - np.int32(32))
