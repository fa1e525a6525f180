"""How each tool computes global scales, block scales and codes, as rows of FP32 operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from convertkit.grids.dense import float_type, from_float32, to_float32
from convertkit.grids.nvfp4.numbers import E4M3, LARGEST_SCALE, SMALLEST_GLOBAL, Float32s, Sense


def _reached(bound: Any, inclusive: Any) -> Float32s:
    """Least FP32 value that counts as past ``bound``: itself where a tie rounds up, else the next one."""
    value = np.asarray(bound, np.float32)
    return np.where(inclusive, value, np.nextafter(value, np.float32(np.inf)))


_TINY = np.float32(2.0**-149)

CODE_BOUNDS: Float32s = np.append(
    # Midpoints of the E2M1 grid: a tie goes to the even code. ModelOpt 0.47.0 nvfp4_tensor.py:27,243-262;
    # compressed-tensors 0.20.0 quantization/utils/fp4_utils.py:87-97.
    _reached([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], [False, True, False, True, False, True, False]),
    # A negative quotient carries its sign if it has not underflowed to -0.0.
    _TINY,
).astype(np.float32)
"""Least quotients at which the code becomes 1..7; then the least one whose sign is kept."""


def _scale_bounds(least: np.float32 | None) -> Float32s:
    """Least quotients that round to at least E4M3 byte 1..126; ``least`` replaces the first."""
    byte = np.arange(1, LARGEST_SCALE + 1)
    middle = (E4M3[byte - 1].astype(np.float64) + E4M3[byte]) / 2
    bounds = _reached(middle, byte % 2 == 0)
    if least is not None:
        bounds[0] = least
    return bounds


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How one tool computes scales and codes. All functions take and give FP32 values.

    ``zero_byte`` is the block scale where the quotient is zero or rounds to zero. ``scale_bounds`` [126] are
    the least quotients for bytes 1..126. ``global_scale(amax, dtype)``; ``block_quotient(amaxes, global,
    dtype)`` is what is rounded to E4M3; ``unit(scales, global)`` is what a weight is divided by.
    """

    tool: str
    sense: Sense
    zero_byte: int
    scale_bounds: Float32s
    global_scale: Callable[[np.float32, str], np.float32]
    block_quotient: Callable[[Float32s, np.float32, str], Float32s]
    unit: Callable[[Float32s, np.float32], Float32s]


def _rounded(values: Float32s, dtype: str) -> Float32s:
    """FP32 values after a trip through ``dtype``."""
    return to_float32(from_float32(values, dtype), dtype)


def _modelopt_global(amax: np.float32, dtype: str) -> np.float32:
    """amax / (6 * 448): ModelOpt 0.47.0 nvfp4_tensor.py:216-218.

    Where its scale is no normal number, ours is another. For a group of zeros ModelOpt divides by zero and writes NaN
    block scales, which no engine loads: we write 1.0, with block scales 1.0 and codes 0. For an amax below
    2688 * 2^-126 (3.2e-35) its reciprocal overflows and block scale times global scale can be zero, so that zeros get
    the largest code: we write 2^-126.
    """
    if amax == 0:
        return np.float32(1)
    return max(np.float32(amax / np.float32(2688)), SMALLEST_GLOBAL)


def _modelopt_quotient(amaxes: Float32s, scale: np.float32, dtype: str) -> Float32s:
    """amax_b / (6 * g) in FP32: ModelOpt 0.47.0 nvfp4_tensor.py:200-206."""
    return amaxes / np.float32(np.float32(6) * scale)


def _llmcompressor_global(amax: np.float32, dtype: str) -> np.float32:
    """2688 / amax, in the weight's dtype and by reciprocal: compressed-tensors 0.19.0, 0.20.0
    quantization/utils/helpers.py:324-361 (``generate_gparam``), where a result that overflows becomes 1."""
    clamped = np.maximum(np.array([amax], np.float32), np.float32(float_type(dtype).smallest_normal))
    reciprocal = _rounded(np.reciprocal(clamped), dtype)
    scale = _rounded(reciprocal * np.float32(2688), dtype)[0]
    return np.float32(scale) if np.isfinite(scale) else np.float32(1)


def _llmcompressor_quotient(amaxes: Float32s, scale: np.float32, dtype: str) -> Float32s:
    """G * (amax_b / 6), the division in the weight's dtype, the product in FP32: compressed-tensors
    0.20.0 quantization/utils/helpers.py:78-104 (``calculate_qparams``)."""
    return _rounded(amaxes / np.float32(6), dtype) * scale


ARITHMETICS: dict[str, Arithmetic] = {
    "amax": Arithmetic(
        "ModelOpt 0.47.0 W4A16_NVFP4, dynamic block scales",
        "multiplier",
        0x38,  # 1.0: nvfp4_tensor.py:208; non-zero quotients are clamped to 2^-9, byte 1: :45
        _scale_bounds(_TINY),
        _modelopt_global,
        _modelopt_quotient,
        lambda scales, scale: scales * scale,
    ),
    "amax-llmcompressor": Arithmetic(
        "llm-compressor 0.14.0 NVFP4A16",
        "divisor",
        0x20,  # 0.125: compressed-tensors 0.20.0 quantization/utils/helpers.py:379-381
        _scale_bounds(None),
        _llmcompressor_global,
        _llmcompressor_quotient,
        lambda scales, scale: scales / scale,
    ),
}
"""Rows by the name used in plans."""


def _six_with_room(amax: np.float32, dtype: str) -> np.float32:
    """amax / (6 * 256): leaves room for block scales 1.5 times as large (ModelOpt 0.47.0 nvfp4_tensor.py:34-46)."""
    if amax == 0:
        return np.float32(1)
    return max(np.float32(amax / np.float32(1536)), SMALLEST_GLOBAL)


def _searched(tool: str, scale: Callable[[np.float32, str], np.float32], stretch: float) -> Arithmetic:
    row = ARITHMETICS["amax"]
    return replace(
        row,
        tool=tool,
        global_scale=scale,
        block_quotient=lambda amaxes, scale, dtype: _modelopt_quotient(amaxes * np.float32(stretch), scale, dtype),
    )


SEARCHED: dict[str, Arithmetic] = {
    "mse": _searched("least squared error", _modelopt_global, 1),
    "four-over-six": _searched("least squared error of two, largest code 6", _six_with_room, 1),
    "four-over-six, largest code 4": _searched("least squared error of two, largest code 4", _six_with_room, 1.5),
}
"""Where the search of ``choice`` starts. Global scales and codes are those of ``amax``, with its room of 448 or 256."""


def arithmetic_of(name: str) -> Arithmetic:
    """The row of ``ARITHMETICS`` or ``SEARCHED``."""
    return ARITHMETICS[name] if name in ARITHMETICS else SEARCHED[name]
