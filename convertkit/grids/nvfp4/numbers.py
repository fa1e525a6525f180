"""The numbers of NVFP4: values of codes and block scales, and the bits and senses of global scales.

A weight w of a 16-block is stored as a code c (E2M1, 4 bits), the block's scale s (E4M3) and the group's
global scale: a multiplier g (w = c*s*g, ModelOpt) or a divisor G (w = c*s/G, compressed-tensors).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

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
