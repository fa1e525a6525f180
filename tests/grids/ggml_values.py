"""Rows of floats that reach the corners of the ggml quantizers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROWS = ("normal", "scaled", "zeros", "steps", "below powers of two", "negative", "one value", "tiny")


def floats(kind: str) -> NDArray[np.float32]:
    """FP32 [rows, 512] of a kind, always the same."""
    generator = np.random.default_rng(ROWS.index(kind))
    normal = generator.standard_normal((32, 512)).astype(np.float32)
    if kind == "scaled":
        return (normal * np.exp2(generator.integers(-30, 14, (32, 1)))).astype(np.float32)
    if kind == "zeros":
        return np.zeros((2, 512), np.float32)
    if kind == "steps":
        return (generator.integers(-8, 8, (32, 512)) / 4).astype(np.float32)
    if kind == "below powers of two":
        powers = np.exp2(generator.integers(-10, 10, (32, 512))).astype(np.float32)
        return np.nextafter(powers, np.float32(0))
    if kind == "negative":
        return -np.abs(normal)
    if kind == "one value":
        return np.full((2, 512), np.float32(-0.3))
    return normal * np.float32(1e-38) if kind == "tiny" else normal
