"""Compiled search for the scales of k-quants, 16 groups side by side; every lane is ggml's own loop over one group.

Format facts: ggml 0.25.3 ``ggml-quants.c`` ``make_qkx2_quants`` and ``make_qx_quants`` as ``quantize_row_q4_K_ref``,
``q5_K_ref`` and ``q6_K_ref`` call them. Sums run over a group in order, in FP32 without fused operations, so the bits
are those of that code. Groups are spelled as LLVM vectors, since a compiler must not reorder the sums of one group.

``x`` are values [elements of a group, 16 groups], ``state`` rows of 16 as named below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils

from convertkit.grids.compiled import compiled, read, write
from convertkit.grids.vectors import row_address, splat, vector

LANES = 16
HIGHEST, LOWEST, SCALE, BEST, TAKEN, TAKEN_FROM, WEIGHT, MOMENT = range(8)
STATE_ROWS = 8
"""Rows of ``state``: largest value and offset of each group, its scale and least error so far, the inverse scale and
the offset that gave its codes, sums of weights and of weighted values. ``signed`` uses ``HIGHEST`` for the value of
largest magnitude."""

FLOATS = ir.VectorType(ir.FloatType(), LANES)
INTS = ir.VectorType(ir.IntType(32), LANES)
_MAGIC = 12582912.0
_TINY = float(np.float32(1e-15))


def _floats(value: float) -> Any:
    return ir.Constant(FLOATS, [value] * LANES)


class _Lanes:
    """Writes the instructions of one call: arrays by their place among its arguments."""

    def __init__(self, target: Any, builder: Any, signature: Any, args: Any) -> None:
        self.target, self.builder, self.signature, self.args = target, builder, signature, args

    def _at(self, array: int, row: int) -> Any:
        index = ir.Constant(ir.IntType(64), row)
        address = row_address(self.target, self.builder, self.signature.args[array], self.args[array], index, LANES)
        return self.builder.bitcast(address, FLOATS.as_pointer())

    def load(self, array: int, row: int) -> Any:
        values = self.builder.load(self._at(array, row))
        values.align = 4
        return values

    def store(self, array: int, row: int, values: Any) -> None:
        self.builder.store(values, self._at(array, row)).align = 4

    def all(self, scalar: Any) -> Any:
        """A scalar argument in every lane."""
        builder, zero = self.builder, ir.Constant(ir.IntType(32), 0)
        one = builder.insert_element(ir.Constant(FLOATS, ir.Undefined), scalar, zero)
        return builder.shuffle_vector(one, ir.Constant(FLOATS, ir.Undefined), ir.Constant(INTS, [0] * LANES))

    def root(self, value: Any) -> Any:
        return self._call("llvm.sqrt.v16f32", value)

    def magnitude(self, value: Any) -> Any:
        return self._call("llvm.fabs.v16f32", value)

    def _call(self, name: str, value: Any) -> Any:
        function: Callable[..., Any] = cgutils.get_or_insert_function
        return self.builder.call(function(self.builder.module, ir.FunctionType(FLOATS, [FLOATS]), name), [value])

    def code(self, value: Any, lowest: int, highest: Any) -> Any:
        """ggml's ``nearest_int``, by adding 1.5 * 2**23 and reading the low bits, within bounds; as FP32."""
        builder = self.builder
        bits = builder.bitcast(builder.fadd(value, _floats(_MAGIC)), INTS)
        code = builder.sub(builder.and_(bits, splat(INTS, 0x007FFFFF)), splat(INTS, 0x00400000))
        low, high = splat(INTS, lowest), splat(INTS, highest)
        code = builder.select(builder.icmp_signed("<", code, high), code, high)
        return builder.sitofp(builder.select(builder.icmp_signed(">", code, low), code, low), FLOATS)


def _weights(it: _Lanes, elements: list[Any]) -> list[Any]:
    """Root mean square of the group plus each magnitude."""
    builder = it.builder
    squares = _floats(0.0)
    for x in elements:
        squares = builder.fadd(squares, builder.fmul(x, x))
    mean = it.root(builder.fdiv(squares, _floats(float(len(elements)))))
    return [builder.fadd(mean, it.magnitude(x)) for x in elements]


def _error(it: _Lanes, rows: list[tuple[Any, Any, Any]], scale: Any, offset: Any) -> Any:
    """Weighted sum of squares of scale * code + offset - x over (x, weight, code)."""
    builder = it.builder
    total = _floats(0.0)
    for x, weight, code in rows:
        gap = builder.fsub(builder.fadd(builder.fmul(scale, code), offset), x)
        total = builder.fadd(total, builder.fmul(weight, builder.fmul(gap, gap)))
    return total


def _ranged(levels: int) -> tuple[Any, Any]:
    """``start(x, w, state)`` and ``fit(x, w, state, factor)`` for codes from 0 to ``levels - 1``, groups of 32."""
    top = levels - 1

    @vector
    def start(context: Any, x: Any, w: Any, state: Any) -> Any:
        def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
            it = _Lanes(target, builder, signature, args)
            elements = [it.load(0, i) for i in range(32)]
            weights = _weights(it, elements)
            low = high = elements[0]
            weight, moment = weights[0], builder.fmul(weights[0], elements[0])
            for one, its in zip(elements[1:], weights[1:], strict=True):
                low = builder.select(builder.fcmp_ordered("<", one, low), one, low)
                high = builder.select(builder.fcmp_ordered(">", one, high), one, high)
                weight = builder.fadd(weight, its)
                moment = builder.fadd(moment, builder.fmul(its, one))
            low = builder.select(builder.fcmp_ordered(">", low, _floats(0.0)), _floats(0.0), low)
            inverse = builder.fdiv(_floats(float(top)), builder.fsub(high, low))
            scale = builder.fdiv(_floats(1.0), inverse)
            codes = [it.code(builder.fmul(inverse, builder.fsub(one, low)), 0, top) for one in elements]
            best = _error(it, list(zip(elements, weights, codes, strict=True)), scale, low)
            found = (high, low, scale, best, inverse, low, weight, moment)
            for row, value in enumerate(found):
                it.store(2, row, value)
            for row, value in enumerate(weights):
                it.store(1, row, value)
            return target.get_dummy_value()

        return types.void(x, w, state), generate

    @vector
    def fit(context: Any, x: Any, w: Any, state: Any, factor: Any) -> Any:
        def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
            it = _Lanes(target, builder, signature, args)
            low = it.load(2, LOWEST)
            inverse = builder.fdiv(it.all(args[3]), builder.fsub(it.load(2, HIGHEST), low))
            codes, squares, products = (_floats(0.0),) * 3
            rows = []
            for i in range(32):
                one, its = it.load(0, i), it.load(1, i)
                code = it.code(builder.fmul(inverse, builder.fsub(one, low)), 0, top)
                part = builder.fmul(its, code)
                codes = builder.fadd(codes, part)
                squares = builder.fadd(squares, builder.fmul(part, code))
                products = builder.fadd(products, builder.fmul(part, one))
                rows.append((one, its, code))
            weight, moment = it.load(2, WEIGHT), it.load(2, MOMENT)
            zero = _floats(0.0)

            def cross(a: Any, b: Any, c: Any, d: Any) -> Any:
                return builder.fsub(builder.fmul(a, b), builder.fmul(c, d))

            divisor = cross(weight, squares, codes, codes)
            scale = builder.fdiv(cross(weight, products, moment, codes), divisor)
            offset = builder.fdiv(cross(squares, moment, codes, products), divisor)
            above = builder.fcmp_ordered(">", offset, zero)
            scale = builder.select(above, builder.fdiv(products, squares), scale)
            offset = builder.select(above, zero, offset)
            error = _error(it, rows, scale, offset)
            better = builder.and_(
                builder.fcmp_ordered(">", divisor, zero), builder.fcmp_ordered("<", error, it.load(2, BEST))
            )
            found = ((SCALE, scale), (BEST, error), (TAKEN, inverse), (TAKEN_FROM, low), (LOWEST, offset))
            for row, value in found:
                it.store(2, row, builder.select(better, value, it.load(2, row)))
            return target.get_dummy_value()

        return types.void(x, w, state, factor), generate

    return start, fit


_start_16, _fit_16 = _ranged(16)
_start_32, _fit_32 = _ranged(32)
_ARRAYS = (read(types.float32, 2), write(types.float32, 2), write(types.float32, 2))


@compiled(types.void, *_ARRAYS)
def search_q4_k(x: Any, w: Any, state: Any) -> None:
    """Groups of 32 [32, 16]: ``SCALE`` and ``LOWEST`` of the least weighted error in 21 tries. ``w`` is scratch."""
    _start_16(x, w, state)
    for step in range(21):
        factor = np.float32(-1.0) + np.float32(0.1) * np.float32(step) + np.float32(15.0)
        _fit_16(x, w, state, factor)


@compiled(types.void, *_ARRAYS)
def search_q5_k(x: Any, w: Any, state: Any) -> None:
    """The same for 32 codes, in 16 tries."""
    _start_32(x, w, state)
    for step in range(16):
        factor = np.float32(-0.5) + np.float32(0.1) * np.float32(step) + np.float32(31.0)
        _fit_32(x, w, state, factor)


@vector
def _signed(context: Any, x: Any, state: Any, factor: Any, first: Any) -> Any:
    """One try of codes from -32 to 31 under the inverse scale factor / extreme; the first one is always taken."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        it = _Lanes(target, builder, signature, args)
        elements = [it.load(0, i) for i in range(16)]
        zero = _floats(0.0)
        inverse = builder.fdiv(it.all(args[2]), it.load(1, HIGHEST))
        products = squares = zero
        for x in elements:
            code = it.code(builder.fmul(inverse, x), -32, 31)
            weight = builder.fmul(x, x)
            products = builder.fadd(products, builder.fmul(builder.fmul(weight, x), code))
            squares = builder.fadd(squares, builder.fmul(builder.fmul(weight, code), code))
        some = builder.fcmp_unordered("!=", squares, zero)
        scale = builder.fdiv(products, squares)
        best = it.load(1, BEST)
        better = builder.and_(
            builder.fcmp_ordered(">", squares, zero),
            builder.fcmp_ordered(">", builder.fmul(products, products), builder.fmul(best, squares)),
        )
        always = builder.insert_element(
            ir.Constant(ir.VectorType(ir.IntType(1), LANES), ir.Undefined), args[3], ir.Constant(ir.IntType(32), 0)
        )
        always = builder.shuffle_vector(always, ir.Constant(always.type, ir.Undefined), ir.Constant(INTS, [0] * LANES))
        scale = builder.select(builder.and_(always, builder.not_(some)), zero, scale)
        better = builder.or_(better, always)
        found = ((SCALE, scale), (BEST, builder.fmul(scale, products)), (TAKEN, inverse))
        for row, value in found:
            it.store(1, row, builder.select(better, value, it.load(1, row)))
        return target.get_dummy_value()

    return types.void(x, state, factor, first), generate


@compiled(types.void, read(types.float32, 2), write(types.float32, 2))
def search_q6_k(x: Any, state: Any) -> None:
    """Groups of 16 [16, 16]: ``SCALE`` of the least error in 19 tries; 0, and ``TAKEN_FROM`` 1, for groups of zeros."""
    for lane in range(LANES):
        extreme, largest = np.float32(0.0), np.float32(0.0)
        for i in range(16):
            if abs(x[i, lane]) > largest:
                extreme, largest = x[i, lane], abs(x[i, lane])
        state[HIGHEST, lane] = extreme
        state[LOWEST, lane] = largest
    _signed(x, state, np.float32(-32.0), True)
    for step in range(-9, 10):
        if step != 0:
            _signed(x, state, -(np.float32(32.0) + np.float32(0.1) * np.float32(step)), False)
    for lane in range(LANES):
        state[TAKEN_FROM, lane] = np.float32(0.0)
        if state[LOWEST, lane] < np.float32(_TINY):
            state[SCALE, lane] = np.float32(0.0)
            state[TAKEN_FROM, lane] = np.float32(1.0)
