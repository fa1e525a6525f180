"""LLVM vectors inside compiled loops, for steps that a compiler does not find in a plain loop or must not reorder.

The functions run while a loop is compiled: ``target`` and ``builder`` are those of Numba's code generation, arrays and
indices LLVM values. Arrays are C-contiguous; nothing is assumed of their alignment beyond that of an element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.extending import intrinsic


def vector(function: Callable[..., Any]) -> Any:
    """``numba.extending.intrinsic``: the function gives a signature and the LLVM instructions of a call."""
    return intrinsic(function)


def splat(type_: Any, value: int) -> Any:
    """A constant of a vector type with the same integer in every lane."""
    return ir.Constant(type_, [value] * type_.count)


def row_address(target: Any, builder: Any, array_type: Any, array: Any, index: Any, width: int) -> Any:
    """Where row ``index`` of an array [n, width] begins."""
    data = target.make_array(array_type)(target, builder, array).data
    return builder.gep(data, [builder.mul(index, ir.Constant(index.type, width))])


def load_row(target: Any, builder: Any, array_type: Any, array: Any, index: Any, width: int) -> Any:
    """Row ``index`` of an array [n, width] as one vector."""
    address = row_address(target, builder, array_type, array, index, width)
    lane = target.get_data_type(array_type.dtype)
    row = builder.load(builder.bitcast(address, ir.VectorType(lane, width).as_pointer()))
    row.align = lane.width // 8
    return row
