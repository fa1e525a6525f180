"""Casts between dense types against torch, exhaustively where 16 bits are the source."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from convertkit.grids import dense

TORCH = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
INTEGER = {"BF16": torch.int16, "F16": torch.int16, "F32": torch.int32}


def as_torch(bits: NDArray[Any], dtype: str) -> torch.Tensor:
    return torch.from_numpy(bits.view(f"i{bits.dtype.itemsize}").copy()).view(TORCH[dtype])


def torch_cast(bits: NDArray[Any], source: str, target: str) -> NDArray[Any]:
    # One element at a time would be another torch code path; scalars and vectors agree on all but NaN.
    return (
        as_torch(bits, source).to(TORCH[target]).view(INTEGER[target]).numpy().view(dense.FLOAT_TYPES[target].storage)
    )


def sources(dtype: str) -> NDArray[Any]:
    if dtype != "F32":
        return np.arange(65536, dtype=np.uint16)
    # Every BF16 and F16 value with its FP32 neighbours, every tie between two of them, and random bits.
    half = np.arange(65536, dtype=np.uint16)
    exact = np.concatenate([dense.to_float32(half, "BF16"), dense.to_float32(half, "F16")]).view(np.uint32)
    ties = np.concatenate([exact + np.uint32(0x8000), exact + np.uint32(0x1000)])
    base = np.concatenate([exact, ties])
    random = np.random.default_rng(7).integers(0, 2**32, 200_000, dtype=np.uint32)
    return np.concatenate([base, base + np.uint32(1), base - np.uint32(1), random])


@pytest.mark.parametrize("source", dense.FLOAT_TYPES)
@pytest.mark.parametrize("target", dense.FLOAT_TYPES)
def test_casts_round_as_torch_does(source: str, target: str) -> None:
    bits = sources(source)
    ours = dense.cast(bits, source, target)
    assert ours.dtype == np.dtype(dense.FLOAT_TYPES[target].storage)
    nan = np.isnan(dense.to_float32(bits, source))
    assert np.array_equal(ours[~nan], torch_cast(bits, source, target)[~nan])
    assert np.isnan(dense.to_float32(ours[nan], target)).all()


def test_a_cast_by_hand() -> None:
    # 1 + 2^-8 is a tie in BF16 and goes to the even 1.0; 1 + 3*2^-8 goes up; the next after a tie goes up.
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x80000001, 0xFFFFFFFF], np.uint32)
    assert dense.cast(bits, "F32", "BF16").tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0x8000, 0xFFFF]
    assert dense.cast(np.array([0x0001, 0x83FF], np.uint16), "F16", "F32").tolist() == [0x33800000, 0xB87FC000]


def test_float_arrays_are_read_as_their_bits() -> None:
    values = np.array([1.5, -2.0], np.float32)
    assert dense.cast(values, "F32", "BF16").tolist() == [0x3FC0, 0xC000]
    assert dense.cast(values.astype(np.float16), "F16", "F32").tolist() == [0x3FC00000, 0xC0000000]


def test_wrong_items_are_refused() -> None:
    with pytest.raises(ValueError, match="does not hold the bits of F32"):
        dense.cast(np.zeros(4, np.uint16), "F32", "BF16")
    with pytest.raises(ValueError, match="F64 is not one of"):
        dense.cast(np.zeros(4, np.uint16), "F64", "BF16")
