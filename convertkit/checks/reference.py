"""The checker's own reading of NVFP4: codes, block scales, exact values and the values of each package.

Nothing here comes from ``convertkit.grids``. Exact values are integers times powers of two: a code is a number of
halves, a block scale a number of 2**-9, a global scale 24 bits and an exponent, so products and quotients are
rounded by integer arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Sense = Literal["multiplier", "divisor"]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]

HALVES = (0, 1, 2, 3, 4, 6, 8, 12)
"""E2M1 magnitudes in halves, by index; bit 3 of a code is the sign (OCP Microscaling formats v1.0, table 5)."""


def _scale_units(byte: int) -> int:
    """E4M3 magnitude of a byte in units of 2**-9: bias 7, subnormals, no infinity (OCP 8-bit formats v1.0)."""
    exponent, fraction = byte >> 3 & 15, byte & 7
    return fraction if exponent == 0 else (8 + fraction) << (exponent - 1)


SCALE_UNITS: Integers = np.array([_scale_units(byte) for byte in range(256)], np.int64)
"""Magnitudes of the scale bytes in units of 2**-9; the bytes 0x7f and 0xff are NaN."""

NAN_BYTES = (0x7F, 0xFF)

_SIGNS: NDArray[np.bool_] = (np.arange(256) >= 128)[:, None] ^ (np.arange(16) >= 8)
_PRODUCTS: Integers = SCALE_UNITS[:, None] * np.array(HALVES * 2, np.int64)
"""Magnitudes of code times block scale in units of 2**-10 [256, 16]."""


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A binary float type: significant bits (with the hidden one), exponent of the least normal, storage."""

    precision: int
    least_exponent: int
    exponent_bits: int
    storage: str

    @property
    def infinity(self) -> int:
        """Bits of positive infinity."""
        return ((1 << self.exponent_bits) - 1) << (self.precision - 1)


FORMATS = {
    "BF16": FloatFormat(8, -126, 8, "<u2"),
    "F16": FloatFormat(11, -14, 5, "<u2"),
    "F32": FloatFormat(24, -126, 8, "<u4"),
}


def float_of(bits: int) -> np.float32:
    """The FP32 number that has these bits."""
    return np.uint32(bits).view(np.float32)


def bits_of(value: np.float32) -> int:
    """The bits of an FP32 number."""
    return int(np.float32(value).view(np.uint32))


def reciprocal(bits: int) -> int:
    """The bits of 1/x in FP32, for those of x: a multiplier as a divisor, and back."""
    return bits_of(np.float32(1.0) / float_of(bits))


def widened(bits: NDArray[Any], dtype: str) -> Floats:
    """FP32 values of BF16, F16 or F32 storage bits; every one of them is exact."""
    if dtype == "BF16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == "F16":
        return bits.view(np.float16).astype(np.float32)
    return bits.view(np.float32)


PIECE = 1 << 15
"""Elements that are rounded at a time, so that what lies between stays in the cache."""


def narrowed(values: Floats, dtype: str) -> NDArray[Any]:
    """Storage bits of FP32 values rounded once, ties to even; NaN becomes the quiet NaN of the type."""
    if dtype == "F32":
        return values.view(np.uint32)
    if dtype == "F16":
        with np.errstate(over="ignore", under="ignore"):
            half: NDArray[Any] = values.astype(np.float16).view(np.uint16)
        return np.where(np.isnan(values), np.uint16(0x7E00), half)
    words = np.ascontiguousarray(values).reshape(-1).view(np.uint32)
    out = np.empty(words.size, np.uint16)
    for first in range(0, words.size, PIECE):
        some, place = words[first : first + PIECE], slice(first, first + PIECE)
        even = (some >> np.uint32(16)) & np.uint32(1)
        # only NaN can wrap, and those get their bits afterwards
        out[place] = (some + (np.uint32(0x7FFF) + even)) >> np.uint32(16)
        nan = (some & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        if nan.any():
            out[place][nan] = 0x7FC0
    return out.reshape(values.shape)


def _exact(global_bits: int, sense: str) -> tuple[Integers, NDArray[np.bool_], Integers]:
    """Magnitudes of c*s*g or c*s/G: integers, whether a fraction was cut off, powers of two of the units [256, 16]."""
    exponent, fraction = global_bits >> 23 & 255, global_bits & 0x7FFFFF
    if global_bits >> 31 or exponent == 255 or global_bits == 0:
        raise ValueError(f"global scale bits {global_bits:#010x} are not a positive finite number")
    significand = fraction | 0x800000 if exponent else fraction
    power = max(exponent, 1) - 150
    if sense == "multiplier":
        return _PRODUCTS * significand, np.zeros((256, 16), np.bool_), np.full((256, 16), power - 10, np.int64)
    if sense != "divisor":
        raise ValueError(f"unknown sense {sense}")
    shift = 60 - _lengths(_PRODUCTS)  # the quotient keeps at least 35 bits: more than F32 and a tie need
    quotient, rest = np.divmod(_PRODUCTS << shift, significand)
    return quotient, rest != 0, -10 - power - shift


def _lengths(numbers: Integers) -> Integers:
    """Bit lengths of integers from 0 to 2**62."""
    lengths: Integers = np.frexp(numbers.astype(np.float64))[1].astype(np.int64)
    return np.where((numbers > 0) & (numbers >> np.maximum(lengths - 1, 0) == 0), lengths - 1, lengths)


def _rounded(numbers: Integers, inexact: NDArray[np.bool_], powers: Integers, form: FloatFormat) -> Integers:
    """Bits of ``numbers * 2**powers`` (plus a fraction where ``inexact``) rounded once, ties to even."""
    top = np.maximum(powers + _lengths(numbers) - 1, form.least_exponent)
    drop = np.clip(top - form.precision + 1 - powers, -40, 62)
    cut = np.maximum(drop, 0)
    kept = np.where(drop < 0, numbers << np.maximum(-drop, 0), numbers >> cut)
    rest, half = numbers & ((1 << cut) - 1), (1 << cut) >> 1
    tie = (rest == half) & (cut > 0)
    up = ((rest > half) & (cut > 0)) | (tie & (inexact | (kept & 1 == 1)))
    bits = kept + up + ((top - form.least_exponent) << (form.precision - 1))
    return np.where(numbers == 0, 0, np.minimum(bits, form.infinity))


@lru_cache(maxsize=256)
def exact_table(global_bits: int, sense: str) -> Doubles:
    """float64 [256 scale bytes, 16 codes] of c*s*g or c*s/G.

    The product has at most 30 significant bits, so it is exact; the quotient is rounded once to 53 bits, which
    is a BF16, F16 or FP32 number only if the exact quotient is. ``ValueError`` for a scale that is not positive.
    """
    _exact(global_bits, sense)
    products, scale = _PRODUCTS.astype(np.float64) * 2.0**-10, np.float64(float_of(global_bits))
    values = products * scale if sense == "multiplier" else products / scale
    return _finished(np.where(_SIGNS, -values, values), np.nan)


@lru_cache(maxsize=256)
def exact_rounded_table(global_bits: int, sense: str, out_dtype: str) -> NDArray[Any]:
    """Storage bits [256, 16] of the exact values rounded once to BF16, F16 or F32; code 8 is -0, NaN rows quiet."""
    form = FORMATS[out_dtype]
    magnitudes = _rounded(*_exact(global_bits, sense), form)
    sign = 1 << (form.precision + form.exponent_bits - 1)
    table = (magnitudes | np.where(_SIGNS, sign, 0)).astype(form.storage)
    return _finished(table, form.infinity | 1 << (form.precision - 2))


@lru_cache(maxsize=256)
def package_table(global_bits: int, sense: str, out_dtype: str, package: str) -> NDArray[Any]:
    """Storage bits [256, 16] that a package's own dequantization gives.

    ``modelopt``: T(fl(c * fl(s*g))), code 8 as +0 (ModelOpt 0.47.0 qtensor/nvfp4_tensor.py).
    ``compressed-tensors``: T(fl(c * fl(s/G))) (compressed-tensors 0.20.0 quantization/lifecycle).
    Each reads the other's global scale as its FP32 reciprocal.
    """
    halves = np.array(HALVES * 2, np.float32) * np.float32(0.5)
    codes = np.where(np.arange(16) >= 8, -halves, halves)
    scales = SCALE_UNITS.astype(np.float32) * np.float32(2.0**-9)
    scales = np.where(np.arange(256) >= 128, -scales, scales)
    home = {"modelopt": "multiplier", "compressed-tensors": "divisor"}[package]
    with np.errstate(all="ignore"):
        scale = float_of(global_bits) if sense == home else np.float32(1.0) / float_of(global_bits)
        units = scales * scale if home == "multiplier" else scales / scale
        if package == "modelopt":
            codes[8] = 0.0
        values: Floats = codes[None, :] * units[:, None]
    form = FORMATS[out_dtype]
    table = narrowed(values, out_dtype).astype(form.storage)
    return _finished(table, form.infinity | 1 << (form.precision - 2))


def _finished(table: NDArray[Any], nan: float) -> NDArray[Any]:
    """The table with its NaN rows set, contiguous and read-only (it is shared by all tiles of a tensor)."""
    table = np.ascontiguousarray(table)
    table[list(NAN_BYTES)] = nan
    table.flags.writeable = False
    return table


@dataclass(frozen=True, slots=True, eq=False)
class PlaneTables:
    """What a tile of planes decodes to, by scale byte.

    ``values`` float64 [256, 16]; ``tops`` float32 [256]: largest FP32 number not beyond the block's grid;
    ``starts`` uint8 [256]: first magnitude index that does not decode to zero, 8 for none; ``scales`` float32 [256].
    """

    values: Doubles
    tops: Floats
    starts: NDArray[np.uint8]
    scales: Floats


@lru_cache(maxsize=256)
def plane_tables(global_bits: int, sense: str, stored: str | None = None) -> PlaneTables:
    """Tables for planes: exact values, or the values as a ``stored`` file of that dtype would hold them."""
    if stored is None:
        values = exact_table(global_bits, sense)
    else:
        values = widened(exact_rounded_table(global_bits, sense, stored), stored).astype(np.float64)
    return tables_of_values(values)


def tables_of_values(values: Doubles) -> PlaneTables:
    """Tables for planes that decode to ``values`` float64 [256, 16]."""
    with np.errstate(over="ignore"):
        tops = np.abs(values[:, 7]).astype(np.float32)
    tops = np.where(tops.astype(np.float64) > np.abs(values[:, 7]), np.nextafter(tops, np.float32(0.0)), tops)
    nonzero = values[:, :8] != 0
    starts = np.where(nonzero.any(axis=1), nonzero.argmax(axis=1), 8).astype(np.uint8)
    scales = SCALE_UNITS.astype(np.float32) * np.float32(2.0**-9)
    scales = np.where(np.arange(256) >= 128, -scales, scales)
    return PlaneTables(values, tops, starts, scales)
