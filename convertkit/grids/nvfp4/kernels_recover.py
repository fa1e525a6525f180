"""Compiled loops of grid recovery: count magnitudes, find each block's scale, store its codes. BF16 only."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

from convertkit.grids.compiled import compiled, read, write
from convertkit.grids.nvfp4.kernels import block_amax, load_block, load_row, splat, store_codes, vector


@compiled(types.void, read(types.uint16, 1), write(types.int64, 2))
def count_magnitudes(values: Any, counts: Any) -> None:
    """Add how often each of 32,768 magnitudes occurs to ``counts`` [2, 32768]; neighbours go to different rows, since
    equal neighbours would wait for each other."""
    pairs = values.size // 2
    for i in range(pairs):
        counts[0, values[2 * i] & np.uint16(0x7FFF)] += 1
        counts[1, values[2 * i + 1] & np.uint16(0x7FFF)] += 1
    if values.size & 1:
        counts[0, values[values.size - 1] & np.uint16(0x7FFF)] += 1


@compiled(types.void, read(types.uint16, 2), read(types.uint8, 1), write(types.int64, 2))
def count_left_magnitudes(values: Any, scales: Any, counts: Any) -> None:
    """As ``count_magnitudes``, over the blocks of ``values`` [n, 16] whose scale is 0."""
    for block in range(values.shape[0]):
        if scales[block] == 0:
            for i in range(16):
                counts[i & 1, values[block, i] & np.uint16(0x7FFF)] += 1


@vector
def _on_row(context: Any, values: Any, index: Any, rows: Any, scale: Any) -> Any:
    """Whether all magnitudes of block ``index`` are among the 8 under ``scale``: ``rows`` [1024, 16] has each of them
    16 times, which saves the processor spreading it."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = load_block(target, builder, signature, args)
        magnitude = builder.and_(block, splat(block.type, 0x7FFF))
        start = builder.mul(builder.zext(args[3], args[1].type), ir.Constant(args[1].type, 8))
        hit = None
        for column in range(8):
            place = builder.add(start, ir.Constant(args[1].type, column))
            value = load_row(target, builder, signature.args[2], args[2], place, 16)
            equal = builder.icmp_unsigned("==", magnitude, value)
            hit = equal if hit is None else builder.or_(hit, equal)
        mask = builder.bitcast(hit, ir.IntType(16))
        return builder.zext(builder.icmp_unsigned("==", mask, ir.Constant(ir.IntType(16), 0xFFFF)), ir.IntType(8))

    return types.uint8(values, index, rows, scale), generate


_GRID = (read(types.uint16, 2), read(types.uint16, 1), read(types.uint8, 1), read(types.uint16, 2), types.uint8)


@compiled(types.void, *_GRID, write(types.int64, 1))
def match(values: Any, starts: Any, tries: Any, rows: Any, zero_byte: Any, counts: Any) -> None:
    """Count the blocks of ``values`` [n, 16] that lie on a grid.

    Scale bytes to try for a block whose largest magnitude is m are ``tries[starts[m]:starts[m + 1]]``; ``rows``
    uint16 [1024, 16] are the magnitudes under each scale. ``counts`` [2]: blocks on the grid that are not all zero, and
    blocks of zeros.
    """
    found = zeros = 0
    for block in range(values.shape[0]):
        largest: Any = block_amax(values, block)
        if largest == 0:
            zeros += 1
            continue
        for k in range(starts[largest], starts[largest + 1]):
            if _on_row(values, block, rows, tries[k]):
                found += 1
                break
    counts[0] = found
    counts[1] = zeros


@compiled(types.void, *_GRID, write(types.uint8, 1))
def scales_of(values: Any, starts: Any, tries: Any, rows: Any, zero_byte: Any, scales: Any) -> None:
    """The scale of each block as ``match`` finds it: ``zero_byte`` for zeros, 0 for a block that is not on the grid."""
    for block in range(values.shape[0]):
        largest: Any = block_amax(values, block)
        scale = np.uint8(zero_byte) if largest == 0 else np.uint8(0)
        for k in range(starts[largest], starts[largest + 1]):
            if _on_row(values, block, rows, tries[k]):
                scale = tries[k]
                break
        scales[block] = scale


@compiled(
    types.void,
    *_GRID,
    read(types.int16, 2),
    read(types.uint8, 1),
    read(types.int16, 2),
    write(types.uint8, 2),
    write(types.uint8, 1),
)
def solve(
    values: Any,
    starts: Any,
    tries: Any,
    rows: Any,
    zero_byte: Any,
    bounds: Any,
    other_scales: Any,
    other_bounds: Any,
    codes: Any,
    scales: Any,
) -> None:
    """Scales [n] and codes [n, 8]. A block that is not on the grid gets a scale of ``other_scales`` by its largest
    magnitude, and codes by ``other_bounds``."""
    for block in range(values.shape[0]):
        largest: Any = block_amax(values, block)
        scale = np.uint8(zero_byte) if largest == 0 else np.uint8(0)
        for k in range(starts[largest], starts[largest + 1]):
            if _on_row(values, block, rows, tries[k]):
                scale = tries[k]
                break
        if scale != 0:
            scales[block] = scale
            store_codes(values, block, bounds, scale, codes)
        else:
            scale = other_scales[largest]
            scales[block] = scale
            store_codes(values, block, other_bounds, scale, codes)
