"""Scale choice by squared error: the exact optimum over its candidates, and what it gains."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from convertkit.checks import reference
from convertkit.checks.compare import Dense, Planes, compare_tile
from convertkit.checks.fidelity import metrics
from convertkit.grids import dense
from convertkit.grids.nvfp4 import choice, encode, numbers, tables

DTYPES = ("BF16", "F16", "F32")
CODES = [Fraction(n, 2) for n in reference.HALVES]


def bits(values: Any, dtype: str) -> NDArray[Any]:
    return np.ascontiguousarray(dense.cast(np.asarray(values, np.float32), "F32", dtype))


def chosen(values: NDArray[Any], dtype: str, name: str, **words: Any) -> tuple[NDArray[Any], NDArray[Any], int]:
    built = choice.build_choice_tables(name, dtype, encode.amax_of_tile(values), **words)
    codes = np.full((values.shape[0], values.shape[1] // 2), 0xAA, np.uint8)
    scales = np.full((values.shape[0], values.shape[1] // 16), 0xAA, np.uint8)
    choice.choose_tile(values, built, codes, scales)
    return codes, scales, built.global_bits


def by_amax(values: NDArray[Any], dtype: str, global_bits: int) -> NDArray[np.uint8]:
    codes, scales = (
        np.zeros((values.shape[0], values.shape[1] // 2), np.uint8),
        np.zeros((values.shape[0], values.shape[1] // 16), np.uint8),
    )
    encode.encode_tile(values, tables.tables_under("amax", dtype, global_bits), codes, scales)
    return scales


def error(block: list[Fraction], byte: int, scale: Fraction) -> Fraction:
    """Least squared error of a block under one block scale, in exact arithmetic."""
    unit = Fraction(int(reference.SCALE_UNITS[byte]), 512) * scale
    return sum((min((abs(w) - c * unit) ** 2 for c in CODES) for w in block), Fraction(0))


def blocks_of(values: NDArray[Any], dtype: str) -> list[list[Fraction]]:
    return [[Fraction(float(w)) for w in row] for row in reference.widened(values, dtype).reshape(-1, 16)]


def samples(dtype: str) -> NDArray[Any]:
    """Gaussian rows of very different size (some under the least block scale), an outlier, zeros, one value alone."""
    rng = np.random.default_rng(7)
    values = rng.standard_normal((6, 48)) * np.exp2(np.array([[0], [-2], [-5], [-9], [-13], [-17]]))
    values[0, 5], values[1, 16:32], values[2, 0:16] = 40.0, 0.0, [0.3] + [0.0] * 15
    return bits(values * 2.0**-4, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_mse_takes_the_exact_optimum_over_its_candidates(dtype: str) -> None:
    values = samples(dtype)
    _, scales, global_bits = chosen(values, dtype, "mse")
    assert global_bits == tables.build_encode_tables("amax", dtype, encode.amax_of_tile(values)).global_bits
    scale, bases = Fraction(float(numbers.float_of(global_bits))), by_amax(values, dtype, global_bits).reshape(-1)
    for block, base, byte in zip(blocks_of(values, dtype), bases.tolist(), scales.reshape(-1).tolist(), strict=True):
        tried = {base, *range(max(base - 4, (base + 1) // 2, 1), min(base + 8, 126) + 1)}
        assert byte in tried
        least = min(error(block, each, scale) for each in tried)
        # Codes are ModelOpt's, which divides in FP32: at a near-tie its code may be the other one.
        assert error(block, byte, scale) <= least * (1 + Fraction(1, 10**5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_four_over_six_takes_the_better_of_two(dtype: str) -> None:
    values = samples(dtype)
    _, scales, global_bits = chosen(values, dtype, "four-over-six")
    amax = float(reference.widened(values, dtype).max())
    assert numbers.float_of(global_bits) == np.float32(np.float32(amax) / np.float32(1536))
    scale, bases = Fraction(float(numbers.float_of(global_bits))), by_amax(values, dtype, global_bits).reshape(-1)
    fours = 0
    for block, base, byte in zip(blocks_of(values, dtype), bases.tolist(), scales.reshape(-1).tolist(), strict=True):
        largest = max(abs(w) for w in block)
        four = min(
            range(1, 127), key=lambda each: abs(Fraction(int(reference.SCALE_UNITS[each]), 512) * 4 * scale - largest)
        )
        assert byte in (base, four)
        assert error(block, byte, scale) <= min(error(block, base, scale), error(block, four, scale)) * (
            1 + Fraction(1, 10**5)
        )
        fours += byte != base
    assert 0 < fours < len(bases)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", list(choice.CHOICES))
def test_codes_are_those_of_the_chosen_scale(dtype: str, name: str) -> None:
    values = samples(dtype)
    codes, scales, global_bits = chosen(values, dtype, name)
    unit = np.repeat(numbers.E4M3[scales] * numbers.float_of(global_bits), 16, axis=1)
    quotient = reference.widened(values, dtype) / unit
    grid = np.array([float(c) for c in CODES])
    middles = (grid[1:] + grid[:-1]) / 2
    index = np.searchsorted(middles, np.abs(quotient), side="left")
    ties = np.isin(np.abs(quotient), middles)
    index = np.where(ties & (index % 2 == 1), index + 1, index)
    expected = (index | np.where(quotient < 0, 8, 0)).astype(np.uint8)
    assert np.array_equal(codes, expected[:, 0::2] | expected[:, 1::2] << 4)


def test_gains_on_gaussian_weights() -> None:
    values = bits(np.random.default_rng(0).standard_normal((256, 2048)) * 0.02, "BF16")
    found = {}
    for name in ("amax", *choice.CHOICES):
        if name == "amax":
            built = tables.build_encode_tables("amax", "BF16", encode.amax_of_tile(values))
            codes, scales, global_bits = (
                np.zeros((256, 1024), np.uint8),
                np.zeros((256, 128), np.uint8),
                built.global_bits,
            )
            encode.encode_tile(values, built, codes, scales)
        else:
            codes, scales, global_bits = chosen(values, "BF16", name)
        tally = compare_tile(Dense(values, "BF16"), Planes(codes, scales, global_bits, "multiplier"))
        found[name] = metrics(tally)["sqnr_db"]
    assert found["amax"] == pytest.approx(20.43, abs=0.03)
    assert found["four-over-six"] == pytest.approx(21.22, abs=0.03)
    assert found["mse"] >= 21.8 - 0.01


@pytest.mark.parametrize("name", ["amax", "amax-llmcompressor", *choice.CHOICES])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_block_scale_is_below_the_least_one(name: str, dtype: str) -> None:
    values = samples(dtype)
    codes, scales = np.zeros((6, 24), np.uint8), np.zeros((6, 3), np.uint8)
    amax = encode.amax_of_tile(values)
    if name in choice.CHOICES:
        choice.choose_tile(values, choice.build_choice_tables(name, dtype, amax, least_scale=8), codes, scales)
    else:
        plain = np.zeros((6, 3), np.uint8)
        encode.encode_tile(values, tables.build_encode_tables(name, dtype, amax), codes, plain)
        encode.encode_tile(values, tables.build_encode_tables(name, dtype, amax, least_scale=8), codes, scales)
        assert np.array_equal(scales, np.maximum(plain, 8))
        assert (plain < 8).any()
    assert int(scales.min()) >= 8


def test_tiles_do_not_change_the_result() -> None:
    values = bits(np.random.default_rng(1).standard_normal((32, 64)), "BF16")
    codes, scales, _ = chosen(values, "BF16", "mse")
    built = choice.build_choice_tables("mse", "BF16", encode.amax_of_tile(values))
    for first in range(0, 32, 8):
        part, bytes_ = np.zeros((8, 32), np.uint8), np.zeros((8, 4), np.uint8)
        choice.choose_tile(np.ascontiguousarray(values[first : first + 8]), built, part, bytes_)
        assert np.array_equal(part, codes[first : first + 8])
        assert np.array_equal(bytes_, scales[first : first + 8])
