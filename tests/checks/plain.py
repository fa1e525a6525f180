"""What the checks compute, once more and slowly: NumPy, Python integers and fractions, one idea per line."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.checks.tiles import LANES

CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
SCALES = tuple(
    (byte & 7) * 2.0**-9 if byte < 8 else (8 + (byte & 7)) * 2.0 ** ((byte >> 3) - 10) for byte in range(127)
)
FORMATS = {"BF16": (8, -126, 255), "F16": (11, -14, 31), "F32": (24, -126, 255)}


def nearest(values: NDArray[Any], grid: tuple[float, ...]) -> NDArray[np.int64]:
    """Index of the nearest grid value, a tie to the even index; values beyond the grid take its last one."""
    steps = np.asarray(grid)
    middles = (steps[:-1] + steps[1:]) / 2
    index = np.searchsorted(middles, values.astype(np.float64), side="left")
    tie = (index < middles.size) & (middles[np.minimum(index, middles.size - 1)] == values)
    chosen: NDArray[np.int64] = index + (tie & (index % 2 == 1))
    return chosen


def float32(values: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    if dtype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.view(np.float16).astype(np.float32) if dtype == "F16" else values.view(np.float32)


def to_dtype(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """Storage bits of FP32 values, rounded by fractions one at a time."""
    flat = [round_once(Fraction(float(value)), dtype, bool(np.signbit(value))) for value in values.reshape(-1)]
    return np.array(flat, "<u4" if dtype == "F32" else "<u2").reshape(values.shape)


def round_once(value: Fraction, dtype: str, minus: bool = False) -> int:
    """Bits of a rational number rounded to nearest even; ``minus`` gives a zero its sign."""
    precision, least, top = FORMATS[dtype]
    sign = (value < 0 or (value == 0 and minus)) << (precision - 1 + top.bit_length())
    size = abs(value)
    if size == 0:
        return sign
    exponent = max(least, size.numerator.bit_length() - size.denominator.bit_length() - 1)
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - precision + 1)
    kept = round(size / unit)  # Python rounds fractions half to even
    return sign | min(((exponent - least) << (precision - 1)) + kept, top << (precision - 1))


def encoded(
    values: NDArray[np.float32], dtype: str, arithmetic: str, encoder: np.float32
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Scale bytes [rows, in/16] and packed codes [rows, in/2] of FP32 values [rows, in] that came from ``dtype``."""
    blocks = values.reshape(values.shape[0], -1, 16)
    peaks = np.abs(blocks).max(axis=2)
    with np.errstate(all="ignore"):
        if arithmetic == "amax":
            quotient = peaks / (np.float32(6) * encoder)
            quotient = np.where(quotient == 0, np.float32(1), np.maximum(quotient, np.float32(2.0**-9)))
            scales = nearest(np.minimum(quotient, np.float32(448)), SCALES)
            units = np.array(SCALES, np.float32)[scales] * encoder
        else:
            sixth = float32(to_dtype(peaks / np.float32(6), dtype), dtype).reshape(peaks.shape)
            scales = nearest(np.minimum(encoder * sixth, np.float32(448)), SCALES)
            scales = np.where(scales == 0, 0x20, scales)
            units = np.array(SCALES, np.float32)[scales] / encoder
        x = blocks / units[:, :, None]
    nibbles = (nearest(np.minimum(np.abs(x), np.float32(6)), CODES) + 8 * (x < 0)).astype(np.uint8)
    nibbles = nibbles.reshape(values.shape)
    return scales.astype(np.uint8), nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)


def nibbles_of(codes: NDArray[Any]) -> NDArray[Any]:
    """[rows, in/2] packed bytes to [rows, in] codes."""
    return np.stack([codes & 15, codes >> 4], axis=-1).reshape(codes.shape[0], -1)


def exact(code: int, scale: int, global_scale: float, sense: str) -> Fraction:
    """The real number that a code stands for."""
    product = Fraction(CODES[code & 7]) * Fraction(SCALES[scale & 127])
    product = product if (code >> 3) ^ (scale >> 7) == 0 else -product
    return product * Fraction(global_scale) if sense == "multiplier" else product / Fraction(global_scale)


def decoded(codes: NDArray[Any], scales: NDArray[Any], global_scale: float, sense: str) -> NDArray[np.float64]:
    """float64 values [rows, in] of planes; Python's division of fractions to float rounds once."""
    nibbles, wide = nibbles_of(codes), np.repeat(scales, 16, axis=1)
    pairs = {(int(c), int(s)) for c, s in zip(nibbles.reshape(-1), wide.reshape(-1), strict=True)}
    table = {pair: float(exact(*pair, global_scale, sense)) for pair in pairs}
    flat = [table[int(c), int(s)] for c, s in zip(nibbles.reshape(-1), wide.reshape(-1), strict=True)]
    return np.array(flat).reshape(nibbles.shape)


def folded(terms: NDArray[np.float64]) -> float:
    """A tile's sum in the order that ``tiles.py`` and the kernels state."""
    padded = np.zeros(-(-terms.size // (2 * LANES)) * 2 * LANES)
    padded[: terms.size] = terms.reshape(-1)
    pairs = padded.reshape(-1, 2, LANES)
    lanes = np.zeros(LANES)
    for left, right in pairs:
        lanes = lanes + (left + right)
    values = lanes.tolist()
    while len(values) > 1:
        half = len(values) // 2
        values = [values[i] + values[i + half] for i in range(half)]
    return float(values[0])
