"""Compiled loops that choose block scales by squared error, exactly.

With codes q (in halves) the squared error of a block under d = s * g is, up to a constant, d^2/4 * sum(q^2) -
d * sum(a * q). Both sums are integers: magnitudes a are multiples of a power of two that depends on the block's
largest exponent only, since elements too small for that round to code 0 under every scale that is tried. What remains,
s * (d/4 * sum(q^2) - unit * sum(a * q)), has at most 50 significant bits, so float64 holds it exactly, and the
smallest is the smallest on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils

from convertkit.grids.compiled import compiled, read, write
from convertkit.grids.nvfp4.kernels import block_amax, load_block, store_codes
from convertkit.grids.vectors import load_row, splat, vector

ROOM = 7
"""Bits below the last one of the largest element's significand that magnitudes keep."""

_STEPS = (1, 1, 1, 1, 2, 2, 4)
"""Halves that each code adds to the one before."""


@vector
def _sums(context: Any, values: Any, index: Any, bounds: Any, scale: Any, aligned: Any) -> Any:
    """``sum(a * q) << 12 | sum(q * q)`` of block ``index`` under row ``scale`` of ``bounds``; a is in ``aligned``."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = load_block(target, builder, signature, args)
        bits = block.type.element.width
        magnitude = builder.and_(block, splat(block.type, (1 << bits - 1) - 1))
        row = load_row(target, builder, signature.args[2], args[2], builder.zext(args[3], args[1].type), 8)
        halves = splat(block.type, 0)
        for column, step in enumerate(_STEPS):
            lanes = ir.Constant(ir.VectorType(ir.IntType(32), 16), [column] * 16)
            bound = builder.shuffle_vector(row, ir.Constant(row.type, ir.Undefined), lanes)
            past = builder.sext(builder.icmp_signed(">", magnitude, bound), block.type)
            halves = builder.add(halves, builder.and_(past, splat(block.type, step)))
        items = load_row(target, builder, signature.args[4], args[4], ir.Constant(args[1].type, 0), 16)
        wide = ir.VectorType(ir.IntType(2 * bits), 16)
        narrow = items.type.element.width == bits
        products = builder.mul(builder.sext(items, wide) if narrow else items, builder.zext(halves, wide))
        return builder.or_(
            builder.shl(_total(builder, products), ir.Constant(ir.IntType(64), 12)),
            _total(builder, builder.mul(halves, halves)),
        )

    return types.int64(values, index, bounds, scale, aligned), generate


@vector
def _align(context: Any, values: Any, index: Any, top: Any, aligned: Any) -> Any:
    """Fill ``aligned`` [1, 16]: magnitudes of block ``index`` (BF16 or FP32) as integers, in units that are ``ROOM``
    bits below the last bit of a number with exponent field ``top``."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = load_block(target, builder, signature, args)
        bits = block.type.element.width
        item = target.get_data_type(signature.args[3].dtype)
        lanes = ir.VectorType(item if item.width > 32 else ir.IntType(32), 16)
        stored = {16: 7, 32: 23}[bits]
        magnitude = builder.zext(builder.and_(block, splat(block.type, (1 << bits - 1) - 1)), lanes)
        field = builder.lshr(magnitude, splat(lanes, stored))
        zero, one = splat(lanes, 0), splat(lanes, 1)
        normal = builder.icmp_unsigned("!=", field, zero)
        hidden = builder.select(normal, splat(lanes, 1 << stored), zero)
        significand = builder.or_(builder.and_(magnitude, splat(lanes, (1 << stored) - 1)), hidden)
        start = builder.insert_element(
            ir.Constant(lanes, ir.Undefined),
            builder.trunc(args[2], lanes.element) if lanes.element.width < 64 else args[2],
            ir.Constant(ir.IntType(32), 0),
        )
        first = ir.Constant(ir.VectorType(ir.IntType(32), 16), [0] * 16)
        spread = builder.shuffle_vector(start, ir.Constant(lanes, ir.Undefined), first)
        drop = builder.sub(spread, builder.select(normal, field, one))
        most = splat(lanes, 31)
        drop = builder.select(builder.icmp_unsigned("<", drop, most), drop, most)
        moved = builder.lshr(builder.shl(significand, splat(lanes, ROOM)), drop)
        vector_ = ir.VectorType(item, 16)
        result = builder.trunc(moved, vector_) if item.width < lanes.element.width else moved
        data = target.make_array(signature.args[3])(target, builder, args[3]).data
        store = builder.store(result, builder.bitcast(data, vector_.as_pointer()))
        store.align = 2
        return target.get_dummy_value()

    return types.void(values, index, top, aligned), generate


def _total(builder: Any, lanes: Any) -> Any:
    """Sum of the lanes as a 64-bit integer."""
    item = lanes.type.element
    insert: Callable[..., Any] = cgutils.get_or_insert_function
    kind = ir.FunctionType(item, [lanes.type])
    total = builder.call(insert(builder.module, kind, f"llvm.vector.reduce.add.v16i{item.width}"), [lanes])
    return total if item.width == 64 else builder.zext(total, ir.IntType(64))


def _signature(bits: Any, signed: Any, *more: Any) -> Any:
    return (
        types.void,
        read(bits, 2),
        read(types.uint8, 1),
        read(types.uint8, 1),
        *more,
        read(types.int64, 1),
        read(signed, 2),
        read(types.float64, 1),
        read(types.float64, 1),
        types.float64,
        write(types.uint8, 2),
        write(types.uint8, 1),
    )


@compiled(*_signature(types.uint16, types.int16))
def choose_16(
    values: Any,
    scale_bytes: Any,
    others: Any,
    sweep: Any,
    bounds: Any,
    grid: Any,
    units: Any,
    scale: Any,
    codes: Any,
    scales: Any,
) -> None:
    """Blocks [n, 16] of BF16 to codes [n, 8] and the block scales [n] of least squared error.

    Tried are the byte of ``scale_bytes`` by the block's amax, that of ``others``, and those from ``sweep[0]`` below to
    ``sweep[1]`` above the first one, none less than ``sweep[2]``. The first one wins a tie, then the smallest. ``grid``
    float64 [128] are the values of the bytes, ``units`` [256] of the last bit kept by exponent field, ``scale`` is the
    global multiplier.
    """
    aligned = np.zeros((1, 16), np.int16)
    for block in range(values.shape[0]):
        largest: Any = block_amax(values, block)
        base = scale_bytes[largest]
        best = base
        if largest != 0:
            top = max(np.int64(largest) >> 7, 1)
            _align(values, block, top, aligned)
            unit = units[top]
            packed = _sums(values, block, bounds, base, aligned)
            least = grid[base] * (
                grid[base] * scale * 0.25 * np.float64(packed & 4095) - np.float64(packed >> 12) * unit
            )
            low = max(max(np.int64(base) - sweep[0], (np.int64(base) + 1) // 2), sweep[2])
            high = min(np.int64(base) + sweep[1], 126)
            for byte in range(low, high + 2):
                tried = np.uint8(byte) if byte <= high else others[largest]
                if tried == base:
                    continue
                packed = _sums(values, block, bounds, tried, aligned)
                rest = grid[tried] * scale * 0.25 * np.float64(packed & 4095) - np.float64(packed >> 12) * unit
                if grid[tried] * rest < least:
                    least = grid[tried] * rest
                    best = tried
        scales[block] = best
        store_codes(values, block, bounds, best, codes)


@compiled(*_signature(types.uint32, types.int32, read(types.uint32, 1), read(types.uint32, 1), types.uint8))
def choose_32(
    values: Any,
    scale_bytes: Any,
    other_bytes: Any,
    scale_bounds: Any,
    other_bounds: Any,
    zero_byte: Any,
    sweep: Any,
    bounds: Any,
    grid: Any,
    units: Any,
    scale: Any,
    codes: Any,
    scales: Any,
) -> None:
    """As ``choose_16`` for FP32. The tables by amax go by its upper half and are put right by the bounds."""
    aligned = np.zeros((1, 16), np.int64)
    for block in range(values.shape[0]):
        largest: Any = block_amax(values, block)
        base = scale_bytes[largest >> np.uint32(16)]
        while largest >= scale_bounds[base + 1]:
            base = np.uint8(base + 1)
        other = other_bytes[largest >> np.uint32(16)]
        while largest >= other_bounds[other + 1]:
            other = np.uint8(other + 1)
        if base == 0:
            base = zero_byte
        if other == 0:
            other = zero_byte
        best = base
        if largest != 0:
            top = max(np.int64(largest) >> 23, 1)
            _align(values, block, top, aligned)
            unit = units[top]
            packed = _sums(values, block, bounds, base, aligned)
            least = grid[base] * (
                grid[base] * scale * 0.25 * np.float64(packed & 4095) - np.float64(packed >> 12) * unit
            )
            low = max(max(np.int64(base) - sweep[0], (np.int64(base) + 1) // 2), sweep[2])
            high = min(np.int64(base) + sweep[1], 126)
            for byte in range(low, high + 2):
                tried = np.uint8(byte) if byte <= high else other
                if tried == base:
                    continue
                packed = _sums(values, block, bounds, tried, aligned)
                rest = grid[tried] * scale * 0.25 * np.float64(packed & 4095) - np.float64(packed >> 12) * unit
                if grid[tried] * rest < least:
                    least = grid[tried] * rest
                    best = tried
        scales[block] = best
        store_codes(values, block, bounds, best, codes)
