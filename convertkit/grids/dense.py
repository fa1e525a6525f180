"""Casts between the dense float types, by bits: F32, F16 and BF16 storage, round to nearest, ties to even.

Arrays hold storage bits: ``uint32`` for F32, ``uint16`` for F16 and BF16 (``float32`` and ``float16``
arrays are taken too and read as their bits). Every cast rounds at most once; infinities stay infinities,
NaN stays NaN (made quiet, sign and leading payload bits kept), overflow gives infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[Any]
"""Storage bits of a dense tensor: ``uint16`` or ``uint32``, any shape."""


@dataclass(frozen=True, slots=True)
class FloatType:
    """Bits of a dense float type. ``magnitude`` masks the sign away; ``infinity`` are the bits of +inf."""

    storage: str
    magnitude: int
    infinity: int
    smallest_normal: float


FLOAT_TYPES: dict[str, FloatType] = {
    "BF16": FloatType("<u2", 0x7FFF, 0x7F80, 2.0**-126),
    "F16": FloatType("<u2", 0x7FFF, 0x7C00, 2.0**-14),
    "F32": FloatType("<u4", 0x7FFFFFFF, 0x7F800000, 2.0**-126),
}

_QUIET = np.uint16(0x0040)
_QUIET_F32 = np.uint32(0x00400000)


def float_type(dtype: str) -> FloatType:
    """The row of ``FLOAT_TYPES``; ``ValueError`` for any other dtype."""
    if dtype not in FLOAT_TYPES:
        raise ValueError(f"{dtype} is not one of {', '.join(FLOAT_TYPES)}")
    return FLOAT_TYPES[dtype]


def _storage_bits(values: Bits, dtype: str) -> Bits:
    """The same memory as unsigned storage bits of ``dtype``; ``ValueError`` if the item size differs."""
    storage = np.dtype(float_type(dtype).storage)
    if values.dtype == storage:
        return values
    if values.dtype.itemsize != storage.itemsize:
        raise ValueError(f"{values.dtype} does not hold the bits of {dtype}")
    return values.view(storage)


def to_float32(values: Bits, dtype: str) -> NDArray[np.float32]:
    """The values of storage bits as ``float32``: exact for all three types."""
    bits = _storage_bits(values, dtype)
    if dtype == "BF16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == "F16":
        return bits.view(np.float16).astype(np.float32)
    return bits.view(np.float32)


def from_float32(values: NDArray[np.float32], dtype: str) -> Bits:
    """Storage bits of ``values`` rounded once to ``dtype``."""
    if float_type(dtype).storage == "<u4":
        return values.view(np.uint32)
    if dtype == "F16":
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return values.astype(np.float16).view(np.uint16)
    return _bf16_of_f32(values.view(np.uint32))


def _bf16_of_f32(bits: NDArray[np.uint32]) -> NDArray[np.uint16]:
    # Adding half a unit, less one when the kept part is even, carries exactly when rounding goes up. It
    # cannot wrap for finite values and infinities; NaN is put right afterwards.
    high = (bits >> np.uint32(16)).astype(np.uint16)
    rounded = bits + (np.uint32(0x7FFF) + (high & np.uint16(1)))
    rounded >>= np.uint32(16)
    out = rounded.astype(np.uint16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    if nan.any():
        out[nan] = high[nan] | _QUIET
    return out


def cast(values: Bits, from_dtype: str, to_dtype: str) -> Bits:
    """Storage bits of ``to_dtype`` for storage bits of ``from_dtype``, same shape, rounded at most once.

    A cast to the same type returns the bits unchanged. F32 holds every BF16 and F16 value, so going
    through it adds no rounding.
    """
    if from_dtype == to_dtype:
        return _storage_bits(values, from_dtype)
    wide = to_float32(np.ascontiguousarray(values), from_dtype)
    if to_dtype == "F32":
        bits = wide.view(np.uint32)
        nan = np.isnan(wide)
        return np.where(nan, bits | _QUIET_F32, bits) if nan.any() else bits
    return from_float32(wide, to_dtype)
