"""Tensors on the NVFP4 grid of every kind, decoded by the checker's tables, which share nothing with the encoder."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from convertkit.checks import reference
from convertkit.grids.nvfp4 import choice, encode, numbers, tables

Bits = NDArray[np.uint16]
SHAPES = ((64, 256), (16, 64), (1, 16), (1, 64), (4, 32))


class Planes(NamedTuple):
    """``codes`` [rows, in/2], ``scales`` [rows, in/16], FP32 bits of the multiplier."""

    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    global_bits: int


def bf16(values: NDArray[np.float64]) -> Bits:
    return reference.narrowed(values.astype(np.float32), "BF16")


def float_bits(value: float) -> int:
    return reference.bits_of(np.float32(value))


def decoded(planes: Planes, sense: str = "multiplier") -> Bits:
    """BF16 bits [rows, in]: the exact products rounded once."""
    table = reference.exact_rounded_table(planes.global_bits, sense, "BF16")
    nibbles = np.stack([planes.codes & 15, planes.codes >> 4], axis=-1).reshape(planes.codes.shape[0], -1)
    return np.ascontiguousarray(table[np.repeat(planes.scales, 16, axis=1), nibbles].astype(np.uint16))


def _quantized(rng: np.random.Generator, shape: tuple[int, int], how: str, heavy: bool) -> Planes:
    """Gaussian or heavy-tailed weights packed under a global scale that their rounded amax does not tell."""
    values = rng.standard_normal(shape) * 0.02
    bits = bf16(values * np.exp(1.5 * rng.standard_normal((shape[0], 1))) if heavy else values)
    amax = encode.amax_of_tile(bits)
    codes, scales = np.zeros((shape[0], shape[1] // 2), np.uint8), np.zeros((shape[0], shape[1] // 16), np.uint8)
    if how == "amax":
        plain = tables.build_encode_tables("amax", "BF16", amax)
        bent = float_bits(float(numbers.float_of(plain.global_bits)) * rng.uniform(1, 1.004))
        encode.encode_tile(bits, tables.tables_under("amax", "BF16", bent), codes, scales)
        return Planes(codes, scales, bent)
    chosen = choice.build_choice_tables(how, "BF16", amax)
    choice.choose_tile(bits, chosen, codes, scales)
    return Planes(codes, scales, chosen.global_bits)


def _drawn(rng: np.random.Generator, shape: tuple[int, int], kind: str) -> Planes:
    blocks = shape[0] * shape[1] // 16
    codes = rng.integers(0, 16, (blocks, 16))
    scales, scale = rng.integers(8, 127, blocks), 2.0 ** rng.uniform(-20, -10)
    if kind == "subnormal scales":
        scales = rng.integers(1, 60, blocks)
    elif kind == "QAT-like":
        codes, scales = rng.integers(0, 4, codes.shape) | rng.integers(0, 2, codes.shape) << 3, scales % 8 + 0x60
    elif kind == "MXFP4":
        scales, scale = np.repeat(rng.integers(1, 15, -(-blocks // 2)) * 8, 2)[:blocks], 2.0 ** rng.integers(-12, -5)
    elif kind == "subnormal weights":
        scales, scale = rng.integers(1, 60, blocks), 2.0 ** rng.uniform(-126, -120)
    elif kind == "zero blocks beside tiny ones":
        codes[rng.random(blocks) < 0.4] = 0
        scales = rng.choice([1, 2, 3, 126], blocks)
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    return Planes(packed.reshape(shape[0], -1), scales.astype(np.uint8).reshape(shape[0], -1), float_bits(scale))


QUANTIZED = {
    "amax": ("amax", False), "heavy tails": ("amax", True), "mse": ("mse", False), "4/6": ("four-over-six", False),
}  # fmt: skip
DRAWN = (
    "random", "subnormal scales", "QAT-like", "MXFP4", "subnormal weights", "zero blocks beside tiny ones",
)  # fmt: skip
KINDS = (*QUANTIZED, *DRAWN)


def planes(kind: str, shape: tuple[int, int], seed: int) -> Planes:
    """Planes of a kind; their decoded values are what a dense checkpoint would hold."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    return _quantized(rng, shape, *QUANTIZED[kind]) if kind in QUANTIZED else _drawn(rng, shape, kind)
