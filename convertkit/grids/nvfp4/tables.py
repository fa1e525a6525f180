"""The numbers of NVFP4 and the integer tables that let the encoder work without floats.

A weight w of a 16-block is stored as a code c (E2M1, 4 bits), the block's scale s (E4M3) and the group's
global scale: a multiplier g (w = c*s*g, ModelOpt) or a divisor G (w = c*s/G, compressed-tensors).

Each tool computes s and c with a few FP32 operations, and each of them is monotone in the magnitude of its
input. So the result is described exactly by the smallest magnitudes, as bits, at which it changes. These are
found here by bisection on the bits with the tool's own operations; the kernels then only compare integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from convertkit.grids.dense import float_type, from_float32, to_float32

Sense = Literal["multiplier", "divisor"]
Float32s = NDArray[np.float32]

BLOCK = 16
"""Elements under one block scale."""

E2M1: Float32s = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""Values of the codes 0..15: bit 3 is the sign."""


def _e4m3_values() -> Float32s:
    """Values of the 256 E4M3FN bytes: bias 7, subnormals below 2^-6, no infinity, NaN at 0x7f and 0xff."""
    byte = np.arange(128)
    exponent, fraction = byte >> 3, byte & 7
    normal = np.ldexp(1 + fraction / 8, exponent - 7)
    half = np.where(exponent > 0, normal, np.ldexp(fraction / 8, -6)).astype(np.float32)
    half[127] = np.nan
    return np.concatenate([half, -half])


E4M3: Float32s = _e4m3_values()
"""Values of the bytes 0..255."""

LARGEST_SCALE = 126
"""The byte of 448, the largest E4M3 value."""

SMALLEST_GLOBAL = np.float32(2.0**-126)
"""Least multiplier that we write: the smallest normal FP32, whose reciprocal is finite."""


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
    """amax / (6 * 448): ModelOpt 0.47.0 nvfp4_tensor.py:216-218. Zero and subnormal results: ``deviation``."""
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


@dataclass(frozen=True, slots=True, eq=False)
class EncodeTables:
    """All that a kernel needs to encode the weights of one group.

    ``global_bits`` are the FP32 bits to store, with their ``sense``. ``scale_bytes`` uint8 [32768]: the block
    scale by the block's amax bits (by their upper 16 bits for F32, where it is the byte of the least such
    amax, 0 for none). ``scale_bounds`` uint32 [128]: least amax bits for byte 0..126, then a sentinel.
    ``code_bounds`` int16 or int32 [128, 8]: by block scale, the largest magnitude bits *before* code 1..7 and
    before the sign is kept; rows 0 and 127 are never used.
    """

    arithmetic: str
    dtype: str
    global_bits: int
    sense: Sense
    zero_byte: int
    scale_bytes: NDArray[np.uint8]
    scale_bounds: NDArray[np.uint32]
    code_bounds: NDArray[Any]


def bits_of(value: np.float32) -> int:
    """FP32 bits as an integer."""
    return int(np.asarray(value, np.float32).view(np.uint32))


def float_of(bits: int) -> np.float32:
    """The FP32 value of bits."""
    return np.float32(np.uint32(bits).view(np.float32))


def reversible_global(bits: int) -> int:
    """Bits of the least FP32 scale >= the given one whose reciprocal inverts back: fl(1/fl(1/g)) == g.

    ``bits`` must be positive and finite; ``ValueError`` if there is no such scale above it.
    """
    for candidate in range(bits, 0x7F800000):
        if swap_sense(candidate)[1]:
            return candidate
    raise ValueError(f"no reversible scale above bits {bits:#010x}")


def swap_sense(bits: int) -> tuple[int, bool]:
    """Bits of fl(1/g) for the scale's bits, and whether its own reciprocal gives g again.

    The result is infinite (bits 0x7f800000) for g below about 2^-128: such a scale has no other sense.
    """
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        swapped = np.float32(1) / float_of(bits)
        back = np.float32(1) / swapped
    return bits_of(swapped), bits_of(back) == bits


def deviation(arithmetic: str, dtype: str, group_amax_bits: int) -> Literal["", "zero", "tiny"]:
    """Where our global scale differs from the tool's, and why.

    ModelOpt divides by zero for a group of zeros and writes NaN block scales, which no engine loads; we write
    scale 1.0, block scales 1.0 and codes 0 (``"zero"``). For amax below 2688 * 2^-126 (3.2e-35) its
    scale is subnormal or zero: the reciprocal overflows and block scale times global scale can be zero, so
    that zeros get the largest code; we write 2^-126 instead (``"tiny"``). llm-compressor falls
    back to 1.0 by itself in both cases, so its row never deviates.
    """
    if arithmetic != "amax":
        return ""
    if group_amax_bits == 0:
        return "zero"
    amax = _magnitudes(np.array([group_amax_bits]), dtype)[0]
    return "tiny" if amax / np.float32(2688) < SMALLEST_GLOBAL else ""


def _magnitudes(bits: NDArray[Any], dtype: str) -> Float32s:
    return to_float32(bits.astype(float_type(dtype).storage), dtype)


def _first_bits(reached: Callable[[Float32s], NDArray[np.bool_]], shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Least magnitude bits >= 1 for which ``reached`` holds, elementwise; infinity's bits if none does."""
    low = np.ones(shape, np.int64)
    high = np.full(shape, float_type(dtype).infinity, np.int64)
    for _ in range(int(high.flat[0]).bit_length()):
        middle = (low + high) >> 1
        hit = reached(_magnitudes(middle, dtype))
        high = np.where(hit, middle, high)
        low = np.where(hit, low, middle + 1)
    return high


def _scale_bytes(bounds: NDArray[Any], dtype: str, zero_byte: int) -> NDArray[np.uint8]:
    """``EncodeTables.scale_bytes`` from the least amax bits of bytes 1..126."""
    wide = dtype == "F32"
    edges = (bounds + 0xFFFF) >> 16 if wide else bounds
    table = np.repeat(np.arange(LARGEST_SCALE + 1, dtype=np.uint8), np.diff(edges, prepend=0, append=32768))
    if not wide:
        table[: edges[0]] = zero_byte
    return table


@lru_cache(maxsize=256)
def build_encode_tables(
    arithmetic: str, dtype: str, group_amax_bits: int, *, reversible: bool = False, least_scale: int = 1
) -> EncodeTables:
    """Tables for a fused group whose largest magnitude has ``group_amax_bits`` in ``dtype`` storage bits.

    ``arithmetic`` is a row of ``ARITHMETICS`` or ``SEARCHED``, ``dtype`` BF16, F16 or F32. ``reversible`` takes the
    next FP32 global scale up whose reciprocal inverts back exactly, so that the other dialect holds it without loss.
    Block scales below the byte ``least_scale`` become that byte. ``ValueError`` for bits of infinity or NaN: refusing
    such weights is the caller's work.
    """
    bits = global_bits_of(arithmetic, dtype, group_amax_bits)
    bits = reversible_global(bits) if reversible else bits
    return tables_under(arithmetic, dtype, bits, least_scale=least_scale)


def global_bits_of(arithmetic: str, dtype: str, group_amax_bits: int) -> int:
    """FP32 bits of the global scale of a fused group; arguments and errors as for ``build_encode_tables``."""
    if not 0 <= group_amax_bits < float_type(dtype).infinity:
        raise ValueError(f"amax bits {group_amax_bits:#x} are not those of a finite {dtype} magnitude")
    with np.errstate(all="ignore"):
        amax = _magnitudes(np.array([group_amax_bits]), dtype)[0]
        return bits_of(arithmetic_of(arithmetic).global_scale(amax, dtype))


def tables_under(arithmetic: str, dtype: str, global_bits: int, *, least_scale: int = 1) -> EncodeTables:
    """As ``build_encode_tables``, for a global scale that is given, in the sense of ``arithmetic``."""
    row = arithmetic_of(arithmetic)
    scale = float_of(global_bits)
    with np.errstate(all="ignore"):
        scales = _first_bits(
            lambda amaxes: row.block_quotient(amaxes, scale, dtype) >= row.scale_bounds, (LARGEST_SCALE,), dtype
        )
        units = row.unit(E4M3[1 : LARGEST_SCALE + 1], scale)[:, None]
        codes = _first_bits(lambda weights: weights / units >= CODE_BOUNDS, (LARGEST_SCALE, 8), dtype)
    scales[:least_scale] = scales[0]
    code_bounds = np.full((128, 8), float_type(dtype).magnitude, np.int32 if dtype == "F32" else np.int16)
    code_bounds[1 : LARGEST_SCALE + 1] = codes - 1
    return EncodeTables(
        arithmetic,
        dtype,
        global_bits,
        row.sense,
        row.zero_byte,
        _scale_bytes(scales, dtype, row.zero_byte),
        np.concatenate([[0], scales, [0xFFFFFFFF]]).astype(np.uint32),
        code_bounds,
    )
