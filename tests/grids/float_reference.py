"""NVFP4 in plain float arithmetic: whole arrays, no thresholds, nothing shared with the encoder.

Written from the formulas of ModelOpt 0.47.0 (nvfp4_tensor.py) and compressed-tensors 0.20.0 (helpers.py).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

CODE_VALUES = (0, Fraction(1, 2), 1, Fraction(3, 2), 2, 3, 4, 6)
MASK = {"BF16": 0x7FFF, "F16": 0x7FFF, "F32": 0x7FFFFFFF}
INFINITY = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}
STORAGE: dict[str, Any] = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32}


def scale_value(byte: int) -> Fraction:
    """The E4M3 byte as an exact number (NaN bytes have none)."""
    exponent, fraction = (byte >> 3) & 15, byte & 7
    size = Fraction(fraction, 512) if exponent == 0 else Fraction(8 + fraction, 8) * Fraction(2) ** (exponent - 7)
    return -size if byte & 0x80 else size


def floats(bits: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    if dtype == "BF16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16).astype(np.float32) if dtype == "F16" else bits.view(np.float32)


def in_dtype(values: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """FP32 values rounded to ``dtype`` by float operations."""
    if dtype == "F32":
        return values
    if dtype == "F16":
        return values.astype(np.float16).astype(np.float32)
    wide = values.astype(np.float64)
    unit = np.exp2(np.maximum(np.floor(np.log2(np.abs(wide), where=wide != 0, out=np.full_like(wide, -200))), -126) - 7)
    return np.where(np.isfinite(wide), np.rint(wide / unit) * unit, wide).astype(np.float32)


def e4m3(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Values in [0, 448] rounded to nearest even on the E4M3 grid."""
    wide = values.astype(np.float64)
    unit = np.exp2(np.maximum(np.floor(np.log2(np.maximum(wide, 2.0**-20))), -6) - 3)
    rounded: NDArray[np.float64] = np.rint(wide / unit) * unit
    return rounded


def e4m3_bytes(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    table = np.array([float(scale_value(byte)) for byte in range(127)])
    found = np.searchsorted(table, values)
    assert (table[found] == values).all()
    return found.astype(np.uint8)


def global_scale(arithmetic: str, dtype: str, amax: np.float32) -> np.float32:
    if arithmetic == "amax":
        if amax == 0:
            return np.float32(1)
        return max(amax / np.float32(2688), np.float32(2.0**-126))
    least = np.float32(2.0**-14 if dtype == "F16" else 2.0**-126)
    reciprocal = in_dtype(np.float32(1) / np.maximum(np.array([amax]), least), dtype)
    value = in_dtype(reciprocal * np.float32(2688), dtype)[0]
    return np.float32(value) if np.isfinite(value) else np.float32(1)


def encode(
    arithmetic: str, dtype: str, bits: NDArray[Any], amax_bits: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], np.float32]:
    """Unpacked codes [rows, in], block scale bytes [rows, in/16] and the global scale."""
    with np.errstate(all="ignore"):
        amax = floats(np.array([amax_bits], STORAGE[dtype]), dtype)[0]
        scale = global_scale(arithmetic, dtype, amax)
        weights = floats(bits, dtype).reshape(*bits.shape[:-1], bits.shape[-1] // 16, 16)
        amaxes = np.abs(weights).max(-1)
        if arithmetic == "amax":
            quotient = amaxes / (np.float32(6) * scale)
            block = e4m3(np.clip(np.where(quotient == 0, np.float32(1), quotient), 2.0**-9, 448).astype(np.float32))
            unit = block.astype(np.float32) * scale
        else:
            quotient = scale * in_dtype(amaxes / np.float32(6), dtype)
            block = e4m3(np.minimum(quotient, np.float32(448)))
            block = np.where(block == 0, 0.125, block)
            unit = block.astype(np.float32) / scale
        ratio = (weights / unit[..., None]).astype(np.float32)
        size = np.abs(ratio).astype(np.float64)
        steps = [np.rint(2 * size), np.rint(size) + 2, np.rint(size / 2) + 4, np.full_like(size, 7)]
        codes = np.minimum.reduce(steps).astype(np.uint8) | ((ratio < 0).astype(np.uint8) << 3)
    return codes.reshape(bits.shape), e4m3_bytes(block), scale


def pack(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)


def rounded_once(value: Fraction, dtype: str) -> int:
    """Bits of a non-negative exact number rounded to nearest even, in integers."""
    fraction_bits, least_exponent, infinity = {
        "BF16": (7, -126, 0x7F80),
        "F16": (10, -14, 0x7C00),
        "F32": (23, -126, 0x7F800000),
    }[dtype]
    if value == 0:
        return 0
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if value < Fraction(2) ** exponent:
        exponent -= 1
    exponent = max(exponent, least_exponent)
    units = round(value / Fraction(2) ** (exponent - fraction_bits))  # Python rounds ties to even
    # Bits of a float, read as an integer, count units: a subnormal has no leading one to take away.
    bits = units + ((exponent - least_exponent) << fraction_bits)
    return min(bits, infinity)
