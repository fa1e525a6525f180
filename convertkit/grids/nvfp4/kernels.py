"""Compiled loops of the NVFP4 encoder and decoder: integers only, one thread, the GIL released.

Signatures are explicit, so importing this module compiles (or loads from Numba's cache) everything once;
callers split the rows over threads. Arrays are C-contiguous and viewed as blocks of 16 elements. Codes of
even elements sit in the low nibble (views pair them, so the machine must be little-endian).

The two steps of a block are spelled as LLVM vectors of 16 lanes, since the compiler does not find them in a
plain loop; LLVM lowers them to whatever vectors the machine has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils

from convertkit.grids.compiled import compiled, read, write
from convertkit.grids.vectors import load_row, row_address, splat, vector


@compiled(types.uint64, read(types.uint16, 1))
def amax_16(values: Any) -> Any:
    """Largest magnitude bits of 16-bit floats."""
    largest = np.uint16(0)
    for i in range(values.size):
        largest = max(largest, np.uint16(values[i] & np.uint16(0x7FFF)))
    return largest


@compiled(types.uint64, read(types.uint32, 1))
def amax_32(values: Any) -> Any:
    """Largest magnitude bits of 32-bit floats."""
    largest = np.uint32(0)
    for i in range(values.size):
        largest = max(largest, np.uint32(values[i] & np.uint32(0x7FFFFFFF)))
    return largest


@vector
def block_amax(context: Any, values: Any, index: Any) -> Any:
    """Largest magnitude bits of block ``index`` of ``values`` [n, 16], as one vector reduction."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = load_block(target, builder, signature, args)
        lane = block.type.element
        name = f"llvm.vector.reduce.umax.v16i{lane.width}"
        insert: Callable[..., Any] = cgutils.get_or_insert_function
        reduction = insert(builder.module, ir.FunctionType(lane, [block.type]), name)
        return builder.call(reduction, [builder.and_(block, splat(block.type, (1 << lane.width - 1) - 1))])

    return values.dtype(values, index), generate


@vector
def store_codes(context: Any, values: Any, index: Any, bounds: Any, scale: Any, codes: Any) -> Any:
    """Encode block ``index`` by row ``scale`` of ``bounds`` [128, 8] and store its 8 bytes in ``codes`` [n, 8]."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = load_block(target, builder, signature, args)
        vector, bits = block.type, block.type.element.width
        magnitude = builder.and_(block, splat(vector, (1 << bits - 1) - 1))
        row = load_row(target, builder, signature.args[2], args[2], builder.zext(args[3], args[1].type), 8)

        def past(column: int) -> Any:
            """All ones in the lanes whose magnitude lies past the bound."""
            lanes = ir.Constant(ir.VectorType(ir.IntType(32), 16), [column] * 16)
            bound = builder.shuffle_vector(row, ir.Constant(row.type, ir.Undefined), lanes)
            return builder.sext(builder.icmp_signed(">", magnitude, bound), vector)

        code = splat(vector, 0)
        for column in range(7):
            code = builder.sub(code, past(column))
        sign = builder.and_(builder.lshr(block, splat(vector, bits - 4)), splat(vector, 8))
        code = builder.or_(code, builder.and_(sign, past(7)))
        store_nibbles(target, builder, signature.args[4], args[4], args[1], code)
        return target.get_dummy_value()

    return types.void(values, index, bounds, scale, codes), generate


def store_nibbles(target: Any, builder: Any, array_type: Any, array: Any, index: Any, code: Any) -> None:
    """Store 16 lanes below 16 as the 8 bytes of row ``index`` of an array [n, 8]."""
    bits = code.type.element.width
    # Two neighbouring lanes as one: the even element stays in the low nibble, the odd one comes beside it.
    pairs = builder.bitcast(code, ir.VectorType(ir.IntType(2 * bits), 8))
    pairs = builder.or_(pairs, builder.lshr(pairs, splat(pairs.type, bits - 4)))
    packed = builder.trunc(pairs, ir.VectorType(ir.IntType(8), 8))
    address = row_address(target, builder, array_type, array, index, 8)
    store = builder.store(packed, builder.bitcast(address, packed.type.as_pointer()))
    store.align = 1


def load_block(target: Any, builder: Any, signature: Any, args: Any) -> Any:
    """The block that an intrinsic's first two arguments name: row ``args[1]`` of ``args[0]`` [n, 16]."""
    return load_row(target, builder, signature.args[0], args[0], args[1], 16)


@compiled(
    types.void,
    read(types.uint16, 2),
    read(types.uint8, 1),
    read(types.int16, 2),
    write(types.uint8, 2),
    write(types.uint8, 1),
)
def encode_16(values: Any, scale_bytes: Any, bounds: Any, codes: Any, scales: Any) -> None:
    """Blocks [n, 16] of 16-bit floats to packed codes [n, 8] and block scales [n]."""
    for block in range(values.shape[0]):
        scale = scale_bytes[block_amax(values, block)]
        scales[block] = scale
        store_codes(values, block, bounds, scale, codes)


@compiled(
    types.void,
    read(types.uint32, 2),
    read(types.uint8, 1),
    read(types.uint32, 1),
    types.uint8,
    read(types.int32, 2),
    write(types.uint8, 2),
    write(types.uint8, 1),
)
def encode_32(
    values: Any, scale_bytes: Any, scale_bounds: Any, zero_byte: Any, bounds: Any, codes: Any, scales: Any
) -> None:
    """Blocks [n, 16] of 32-bit floats to packed codes [n, 8] and block scales [n]."""
    for block in range(values.shape[0]):
        largest: Any = block_amax(values, block)
        # The upper half of the amax bits gives the byte or, rarely, one below it.
        scale = scale_bytes[largest >> np.uint32(16)]
        while largest >= scale_bounds[scale + 1]:
            scale = np.uint8(scale + 1)
        if scale == 0:
            scale = zero_byte
        scales[block] = scale
        store_codes(values, block, bounds, scale, codes)


@compiled(types.void, read(types.uint8, 2), read(types.uint8, 1), read(types.uint16, 2), write(types.uint32, 2))
def decode_16(codes: Any, scales: Any, table: Any, out: Any) -> None:
    """Packed codes [n, 8] and block scales [n] to pairs [n, 8] of 16-bit floats, by a table [256, 16]."""
    for b in range(codes.shape[0]):
        s = scales[b]
        for j in range(8):
            pair = codes[b, j]
            low = np.uint32(table[s, pair & np.uint8(15)])
            out[b, j] = low | (np.uint32(table[s, pair >> np.uint8(4)]) << np.uint32(16))


@compiled(types.void, read(types.uint8, 2), read(types.uint8, 1), read(types.uint32, 2), write(types.uint32, 2))
def decode_32(codes: Any, scales: Any, table: Any, out: Any) -> None:
    """Packed codes [n, 8] and block scales [n] to 32-bit floats [n, 16], by a table [256, 16]."""
    for b in range(codes.shape[0]):
        s = scales[b]
        for j in range(8):
            pair = codes[b, j]
            out[b, 2 * j] = table[s, pair & np.uint8(15)]
            out[b, 2 * j + 1] = table[s, pair >> np.uint8(4)]


@compiled(types.void, read(types.uint8, 2), read(types.uint8, 1), read(types.uint32, 2), write(types.uint32, 2))
def decode_pairs_16(codes: Any, scales: Any, pairs: Any, out: Any) -> None:
    """As ``decode_16``, by a table [256, 256] of both elements of a code byte."""
    for b in range(codes.shape[0]):
        s = scales[b]
        for j in range(8):
            out[b, j] = pairs[s, codes[b, j]]
