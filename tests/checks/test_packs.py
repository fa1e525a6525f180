"""The check of searched scales: it agrees with the encoder on anything, and one worse byte is one wrong scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from convertkit.checks.derive import SCALE_VALUES, amax_scales, codes_under, peaks_of, stored_differences, words_of
from convertkit.checks.kernels_choice import count_worse
from convertkit.checks.pack import SENSES, expected_global
from convertkit.checks.packs import SWEEPS
from convertkit.checks.reference import exact_rounded_table, float_of, narrowed
from convertkit.grids.nvfp4 import choice, encode
from tests.checks import plain
from tests.checks.test_pack import DTYPES, gaussian, wild


def chosen(source: NDArray[Any], dtype: str, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int]:
    built = choice.build_choice_tables(name, dtype, encode.amax_of_tile(source))
    codes, scales = (
        np.zeros((source.shape[0], source.shape[1] // 2), np.uint8),
        np.zeros((source.shape[0], source.shape[1] // 16), np.uint8),
    )
    choice.choose_tile(source, built, codes, scales)
    return codes, scales, built.global_bits


def worse(source: NDArray[Any], dtype: str, name: str, scales: NDArray[np.uint8], global_bits: int) -> int:
    words, encoder = words_of(source, dtype), float_of(global_bits)
    peaks, count = peaks_of(words_of(source, dtype)), scales.size
    bases = amax_scales(peaks, encoder)[:count].copy()
    others = amax_scales(peaks * np.float32(1.5 if name == "four-over-six" else 1), encoder)[:count].copy()
    sweep = np.array([*SWEEPS[name], 1], np.int64)
    values = words.view(np.float32)[: 16 * count]
    return int(count_worse(values, scales.reshape(-1), bases, others, SCALE_VALUES, sweep, float(encoder)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", list(SWEEPS))
@given(seed=st.integers(0, 2**32), blocks=st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_searched_scales_of_anything_are_found_right(dtype: str, name: str, seed: int, blocks: int) -> None:
    source = plain.to_dtype(wild(seed, blocks), dtype)
    codes, scales, global_bits = chosen(source, dtype, name)
    magnitude = 0x7FFFFFFF if dtype == "F32" else 0x7FFF
    assert global_bits == expected_global(name, dtype, int((source & magnitude).max()))
    assert worse(source, dtype, name, scales, global_bits) == 0
    assert np.array_equal(
        codes_under(words_of(source, dtype), scales.reshape(-1), float_of(global_bits)), codes.reshape(-1)
    )


@pytest.mark.parametrize("name", list(SWEEPS))
def test_every_worse_byte_is_counted(name: str) -> None:
    source = plain.to_dtype(gaussian(8, 256, 3), "BF16")
    _, scales, global_bits = chosen(source, "BF16", name)
    for place in (0, 5, 127):
        for step in (-1, 1, 2):
            spoiled = scales.copy()
            spoiled.reshape(-1)[place] = int(scales.reshape(-1)[place]) + step
            assert worse(source, "BF16", name, spoiled, global_bits) == 1


@pytest.mark.parametrize("arithmetic", ["amax", "amax-llmcompressor"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_planes_derived_again_are_those_of_plain_arithmetic(dtype: str, arithmetic: str) -> None:
    from convertkit.checks.pack import NARROW, RULES

    source = plain.to_dtype(wild(11, 40), dtype)
    magnitude = 0x7FFFFFFF if dtype == "F32" else 0x7FFF
    encoder = float_of(expected_global(arithmetic, dtype, int((source & magnitude).max())))
    scales, codes = plain.encoded(plain.float32(source, dtype), dtype, arithmetic, encoder)
    words, rule = words_of(source, dtype), RULES[arithmetic]
    mine = amax_scales(peaks_of(words), encoder, rule=rule, narrow=NARROW[dtype])[: scales.size]
    assert np.array_equal(mine, scales.reshape(-1))
    assert np.array_equal(codes_under(words, mine, encoder, rule=rule), codes.reshape(-1))
    floored = amax_scales(peaks_of(words), encoder, least=8, rule=rule, narrow=NARROW[dtype])[: scales.size]
    assert np.array_equal(floored, np.maximum(mine, 8))
    assert SENSES[arithmetic] in ("multiplier", "divisor")


def test_each_differing_element_is_counted_in_its_block() -> None:
    rng = np.random.default_rng(0)
    # No code 8: fractions have no minus zero.
    nibbles = rng.choice([n for n in range(16) if n != 8], (4, 64))
    codes = (nibbles[:, 0::2] | nibbles[:, 1::2] << 4).astype(np.uint8)
    scales = rng.integers(1, 127, (4, 4)).astype(np.uint8)
    table = exact_rounded_table(0x3A83126F, "multiplier", "BF16")
    dense = narrowed(plain.decoded(codes, scales, float(float_of(0x3A83126F)), "multiplier").astype(np.float32), "BF16")
    assert not stored_differences(dense, codes, scales, table).any()
    dense[2, 17] ^= 1
    dense[2, 20] ^= 0x8000
    differs = stored_differences(dense, codes, scales, table)
    assert np.argwhere(differs).tolist() == [[9, 1], [9, 4]]
