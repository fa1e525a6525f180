"""Compiled loops of grid recovery: count magnitudes, find each block's scale, store its codes. BF16 only."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

from convertkit.grids.compiled import compiled, read, write
from convertkit.grids.nvfp4.kernels import (
    block_amax,
    load_block,
    store_codes,
    store_nibbles,
)
from convertkit.grids.vectors import row_address, splat, vector


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


def _magnitudes(block: Any, builder: Any) -> Any:
    return builder.and_(block, splat(block.type, 0x7FFF))


def _row_lanes(target: Any, builder: Any, signature: Any, args: Any) -> list[Any]:
    """The 8 magnitudes of row ``args[3]`` of ``rows``, each in 16 lanes: a load spreads a pair of equal items for
    nothing, one item would need a shuffle."""
    pairs = ir.VectorType(ir.IntType(32), 8)
    nothing = ir.Constant(pairs, ir.Undefined)
    first = ir.Constant(ir.VectorType(ir.IntType(32), 8), [0] * 8)
    row = row_address(target, builder, signature.args[2], args[2], builder.zext(args[3], args[1].type), 8)
    lanes = []
    for column in range(8):
        item = builder.load(builder.gep(row, [ir.Constant(args[1].type, column)]))
        one = builder.insert_element(nothing, item, ir.Constant(ir.IntType(32), 0))
        lanes.append(builder.bitcast(builder.shuffle_vector(one, nothing, first), ir.VectorType(ir.IntType(16), 16)))
    return lanes


def _all_among(builder: Any, magnitudes: Any, lanes: list[Any]) -> Any:
    """1 if each magnitude equals one of its lanes: then the least exclusive or of every lane is zero."""
    least = None
    for value in lanes:
        differs = builder.xor(magnitudes, value)
        smaller = differs if least is None else builder.icmp_unsigned("<", differs, least)
        least = differs if least is None else builder.select(smaller, differs, least)
    whole = ir.IntType(256)
    return builder.zext(
        builder.icmp_unsigned("==", builder.bitcast(least, whole), ir.Constant(whole, 0)), ir.IntType(8)
    )


@vector
def _on_row(context: Any, values: Any, index: Any, rows: Any, scale: Any) -> Any:
    """Whether all magnitudes of block ``index`` are among the 8 under ``scale``. ``rows`` uint32 [1024] has each of
    them twice in one item."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        magnitudes = _magnitudes(load_block(target, builder, signature, args), builder)
        return _all_among(builder, magnitudes, _row_lanes(target, builder, signature, args))

    return types.uint8(values, index, rows, scale), generate


@vector
def _encode_on_row(context: Any, values: Any, index: Any, rows: Any, scale: Any, codes: Any) -> Any:
    """As ``_on_row``; stores the block's codes under ``scale`` too, which are right if the answer is 1."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = load_block(target, builder, signature, args)
        magnitudes, lanes = _magnitudes(block, builder), _row_lanes(target, builder, signature, args)
        code = builder.and_(builder.lshr(block, splat(block.type, 12)), splat(block.type, 8))
        # The row ascends: three questions, each of which leaves half of it, end at the only value that can be equal.
        for bit in (4, 2, 1):
            past = builder.icmp_signed(">", magnitudes, lanes[bit - 1])
            code = builder.or_(code, builder.and_(builder.sext(past, block.type), splat(block.type, bit)))
            lanes = [builder.select(past, lanes[bit + i], lanes[i]) for i in range(bit)]
        store_nibbles(target, builder, signature.args[4], args[4], args[1], code)
        return _all_among(builder, magnitudes, lanes)

    return types.uint8(values, index, rows, scale, codes), generate


_GRID = (
    read(types.uint16, 2),
    read(types.uint8, 1),
    read(types.uint16, 1),
    read(types.uint8, 1),
    read(types.uint32, 1),
)


@compiled(types.void, *_GRID, write(types.int64, 1))
def match(values: Any, first: Any, starts: Any, tries: Any, rows: Any, counts: Any) -> None:
    """Count the blocks of ``values`` [n, 16] that lie on a grid.

    ``first[m]`` is the scale byte to try first for a block whose largest magnitude is m (0 for none), and
    ``tries[starts[m]:starts[m + 1]]`` are all of them; ``rows`` are the magnitudes under each scale, as ``_on_row``
    takes them. ``counts`` [2]: blocks on the grid that are not all zero, and blocks of zeros.
    """
    found = zeros = 0
    for block in range(values.shape[0]):
        largest: Any = block_amax(values, block)
        zeros += largest == 0
        if _on_row(values, block, rows, first[largest]):
            found += 1  # zeros too: they are in every row
            continue
        for k in range(starts[largest] + 1, starts[largest + 1]):
            if _on_row(values, block, rows, tries[k]):
                found += 1
                break
    counts[0] = found - zeros
    counts[1] = zeros


@compiled(types.void, *_GRID, write(types.uint8, 1))
def scales_of(values: Any, first: Any, starts: Any, tries: Any, rows: Any, scales: Any) -> None:
    """The scale of each block as ``match`` finds it: ``first[0]`` for zeros, 0 for a block that is not on the grid."""
    for block in range(values.shape[0]):
        largest: Any = block_amax(values, block)
        scale = first[largest]
        if _on_row(values, block, rows, scale) == 0:
            scale = np.uint8(0)
            for k in range(starts[largest] + 1, starts[largest + 1]):
                if _on_row(values, block, rows, tries[k]):
                    scale = tries[k]
                    break
        scales[block] = scale


@compiled(
    types.void,
    *_GRID,
    read(types.uint8, 1),
    read(types.int16, 2),
    write(types.uint8, 2),
    write(types.uint8, 1),
)
def solve(
    values: Any,
    first: Any,
    starts: Any,
    tries: Any,
    rows: Any,
    other_scales: Any,
    other_bounds: Any,
    codes: Any,
    scales: Any,
) -> None:
    """Scales [n] and codes [n, 8]. A block that is not on the grid gets a scale of ``other_scales`` by its largest
    magnitude, and codes by ``other_bounds``."""
    for block in range(values.shape[0]):
        largest: Any = block_amax(values, block)
        scale = first[largest]
        on = _encode_on_row(values, block, rows, scale, codes)
        if on == 0:
            for k in range(starts[largest] + 1, starts[largest + 1]):
                scale = tries[k]
                on = _encode_on_row(values, block, rows, scale, codes)
                if on:
                    break
        if on == 0:
            scale = other_scales[largest]
            store_codes(values, block, other_bounds, scale, codes)
        scales[block] = scale
