"""Compiled loops of the k-quants around the search: groups into lanes, codes under the stored scales, bytes of blocks.

Format facts: ggml 0.25.3 ``ggml-common.h`` (``block_q4_K``, ``block_q5_K``, ``block_q6_K``) and ``ggml-quants.c``
(``quantize_row_*_K_ref``). ``values`` are groups [groups, elements]; ``found`` float32 [4, groups] takes, for each, its
scale, its offset, and the inverse scale and offset that the search's own codes came from.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

from convertkit.grids.compiled import compiled, read, write
from convertkit.grids.ggml.kernels_search import (
    LANES,
    LOWEST,
    SCALE,
    STATE_ROWS,
    TAKEN,
    TAKEN_FROM,
    search_q4_k,
    search_q5_k,
    search_q6_k,
)
from convertkit.grids.vectors import vector

_GROUPS, _FOUND = read(types.float32, 2), write(types.float32, 2)
_CODES = write(types.uint8, 2)


def _nearest(lowest: int, highest: int) -> Any:
    """ggml's ``nearest_int`` of an FP32 number within bounds, counted from the lowest, as a byte."""

    @vector
    def code(context: Any, value: Any) -> Any:
        def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
            word = ir.IntType(32)
            moved = builder.fadd(args[0], ir.Constant(ir.FloatType(), 12582912.0))
            bits = builder.and_(builder.bitcast(moved, word), ir.Constant(word, 0x007FFFFF))
            number = builder.sub(bits, ir.Constant(word, 0x00400000))
            low, high = ir.Constant(word, lowest), ir.Constant(word, highest)
            number = builder.select(builder.icmp_signed("<", number, high), number, high)
            number = builder.select(builder.icmp_signed(">", number, low), number, low)
            return builder.trunc(builder.sub(number, low), ir.IntType(8))

        return types.uint8(value), generate

    return code


_code_15, _code_31, _code_signed = _nearest(0, 15), _nearest(0, 31), _nearest(-32, 31)


@compiled(types.void, _GROUPS, types.int64, _FOUND)
def _into_lanes(values: Any, first: Any, x: Any) -> None:
    """16 groups from ``first`` on side by side; lanes past the end hold zeros."""
    for lane in range(LANES):
        if first + lane < values.shape[0]:
            for i in range(x.shape[0]):
                x[i, lane] = values[first + lane, i]
        else:
            for i in range(x.shape[0]):
                x[i, lane] = np.float32(0.0)


@compiled(types.void, _FOUND, types.int64, _FOUND)
def _out_of_lanes(state: Any, first: Any, found: Any) -> None:
    for lane in range(min(LANES, found.shape[1] - first)):
        found[0, first + lane] = state[SCALE, lane]
        found[1, first + lane] = state[LOWEST, lane]
        found[2, first + lane] = state[TAKEN, lane]
        found[3, first + lane] = state[TAKEN_FROM, lane]


@compiled(types.void, _GROUPS, types.boolean, _FOUND)
def find_ranged(values: Any, five_bits: Any, found: Any) -> None:
    """Search every group of 32 for Q4_K, or with ``five_bits`` for Q5_K."""
    x, w = np.empty((32, LANES), np.float32), np.empty((32, LANES), np.float32)
    state = np.empty((STATE_ROWS, LANES), np.float32)
    for first in range(0, values.shape[0], LANES):
        _into_lanes(values, first, x)
        if five_bits:
            search_q5_k(x, w, state)
        else:
            search_q4_k(x, w, state)
        _out_of_lanes(state, first, found)


@compiled(types.void, _GROUPS, _FOUND)
def find_signed(values: Any, found: Any) -> None:
    """Search every group of 16 for Q6_K."""
    x, state = np.empty((16, LANES), np.float32), np.empty((STATE_ROWS, LANES), np.float32)
    for first in range(0, values.shape[0], LANES):
        _into_lanes(values, first, x)
        search_q6_k(x, state)
        _out_of_lanes(state, first, found)


@compiled(types.void, _GROUPS, _GROUPS, read(types.float32, 1), read(types.float32, 1), types.boolean, _CODES)
def ranged_codes(values: Any, found: Any, scales: Any, offsets: Any, five_bits: Any, codes: Any) -> None:
    """Codes [groups, 32] of (x + offset) / scale as stored; where that scale is zero, those of the search stay."""
    for g in range(values.shape[0]):
        scale, offset, inverse, low = scales[g], offsets[g], found[2, g], found[3, g]
        if scale == np.float32(0.0):
            for i in range(32):
                x = inverse * (values[g, i] - low)
                codes[g, i] = _code_31(x) if five_bits else _code_15(x)
        elif five_bits:
            for i in range(32):
                codes[g, i] = _code_31((values[g, i] + offset) / scale)
        else:
            for i in range(32):
                codes[g, i] = _code_15((values[g, i] + offset) / scale)


@compiled(types.void, _GROUPS, _GROUPS, read(types.float32, 1), _CODES)
def signed_codes(values: Any, found: Any, scales: Any, codes: Any) -> None:
    """Codes [groups, 16], counted from -32, of x / scale as stored, likewise."""
    for g in range(values.shape[0]):
        scale, inverse = scales[g], found[2, g]
        if scale == np.float32(0.0) and found[3, g] != np.float32(0.0):
            for i in range(16):
                codes[g, i] = np.uint8(0)
        elif scale == np.float32(0.0):
            for i in range(16):
                codes[g, i] = _code_signed(inverse * values[g, i])
        else:
            for i in range(16):
                codes[g, i] = _code_signed(values[g, i] / scale)


@compiled(types.void, read(types.uint8, 2), types.boolean, _CODES)
def store_ranged(codes: Any, five_bits: Any, out: Any) -> None:
    """Codes [blocks, 256] into blocks of 144 bytes, nibbles from byte 16 on, or of 176: fifth bits from 16, then
    nibbles. The scales before them are left as they are."""
    first = 48 if five_bits else 16
    for b in range(codes.shape[0]):
        if five_bits:
            for j in range(32):
                high = np.uint8(0)
                for part in range(8):
                    high |= np.uint8((codes[b, 32 * part + j] >> np.uint8(4)) << np.uint8(part))
                out[b, 16 + j] = high
        for part in range(4):
            for j in range(32):
                low, high = codes[b, 64 * part + j], codes[b, 64 * part + 32 + j]
                out[b, first + 32 * part + j] = (low & np.uint8(15)) | np.uint8(high << np.uint8(4))


@compiled(types.void, read(types.uint8, 2), _CODES)
def store_signed(codes: Any, out: Any) -> None:
    """Codes [blocks, 256] into blocks of 210 bytes: 128 of low bits, 64 of high ones; the scales are left."""
    for b in range(codes.shape[0]):
        for half in range(2):
            for j in range(32):
                at = 128 * half + j
                one, two, three, four = codes[b, at], codes[b, at + 32], codes[b, at + 64], codes[b, at + 96]
                out[b, 64 * half + j] = (one & np.uint8(15)) | np.uint8(three << np.uint8(4))
                out[b, 64 * half + 32 + j] = (two & np.uint8(15)) | np.uint8(four << np.uint8(4))
                high = (one >> np.uint8(4)) | np.uint8((two >> np.uint8(4)) << np.uint8(2))
                high |= np.uint8((three >> np.uint8(4)) << np.uint8(4)) | np.uint8((four >> np.uint8(4)) << np.uint8(6))
                out[b, 128 + 32 * half + j] = high
