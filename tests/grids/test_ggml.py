"""Blocks of ggml types: the bytes and values of gguf's own NumPy code, and NVFP4 blocks that are planes in order."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from convertkit.dtypes import BLOCK_TYPES
from convertkit.grids.dense import cast
from convertkit.grids.ggml.decode import decode_rows
from convertkit.grids.ggml.encode import encode_rows
from convertkit.grids.ggml.nvfp4 import join_planes, split_planes
from convertkit.grids.ggml.types import DECODED_TYPES, OWN_TYPES
from tests.grids.ggml_values import ROWS, floats

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:gguf")


@pytest.mark.parametrize("dtype", OWN_TYPES)
@pytest.mark.parametrize("kind", ROWS)
def test_encoded_bytes_are_ggufs(dtype: str, kind: str) -> None:
    values = floats(kind)
    ours = encode_rows(values.view(np.uint32), "F32", dtype)
    assert np.array_equal(ours, quants.quantize(values, GGMLQuantizationType[dtype]))


@pytest.mark.parametrize("dtype", OWN_TYPES)
@pytest.mark.parametrize("source", ["BF16", "F16"])
def test_narrow_sources_are_widened_exactly(dtype: str, source: str) -> None:
    values = floats("normal").astype(np.float16).astype(np.float32)
    if source == "BF16":
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        values = (bits.astype(np.uint32) << 16).view(np.float32)
    else:
        bits = values.astype(np.float16).view(np.uint16)
    assert np.array_equal(encode_rows(bits, source, dtype), encode_rows(values.view(np.uint32), "F32", dtype))


@pytest.mark.parametrize("dtype", DECODED_TYPES)
def test_decoded_values_are_ggufs(dtype: str) -> None:
    """Any bytes whose FP16 scales are finite."""
    generator = np.random.default_rng(3)
    row = BLOCK_TYPES[dtype]
    data = generator.integers(0, 256, (5, 3 * row.bits // 8), dtype=np.uint8)
    theirs = quants.dequantize(data, GGMLQuantizationType[dtype])
    ours = decode_rows(data, dtype)
    finite = np.isfinite(theirs)
    assert ours.shape == (5, 3 * row.block)
    assert finite.mean() > 0.8
    assert np.array_equal(ours.view(np.uint32)[finite], np.asarray(theirs, np.float32).view(np.uint32)[finite])


@pytest.mark.parametrize("target", ["BF16", "F16", "F32"])
def test_dense_targets_are_rounded_to_nearest_even(target: str) -> None:
    values = np.array([[1.0, 1.00390625, 1.01171875, -3.0, 0.0, 65504.0]], np.float32)
    data = encode_rows(values.view(np.uint32), "F32", target)
    expected: dict[str, NDArray[np.uint8]] = {
        "F32": values.view(np.uint8),
        "F16": values.astype(np.float16).view(np.uint8),
        "BF16": np.array([[0x3F80, 0x3F80, 0x3F82, 0xC040, 0, 0x4780]], np.uint16).view(np.uint8),
    }
    assert np.array_equal(data, expected[target])


def test_nvfp4_blocks_hold_the_planes() -> None:
    generator = np.random.default_rng(4)
    codes = generator.integers(0, 256, (3, 64), dtype=np.uint8)
    scales = generator.integers(0, 0x7F, (3, 8), dtype=np.uint8)
    blocks = join_planes(codes, scales)
    elements = np.stack([codes & 15, codes >> 4], axis=2).reshape(-1, 16)
    groups = blocks.reshape(-1, 36)[:, 4:].reshape(-1, 8)
    assert np.array_equal(groups & 15, elements[:, :8])
    assert np.array_equal(groups >> 4, elements[:, 8:])
    assert np.array_equal(blocks.reshape(-1, 36)[:, :4].reshape(scales.shape), scales)
    back = split_planes(blocks)
    assert np.array_equal(back[0], codes)
    assert np.array_equal(back[1], scales)


def test_ggufs_values_of_nvfp4_blocks_are_code_times_scale() -> None:
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    codes = np.random.default_rng(5).integers(0, 256, (127, 32), dtype=np.uint8)
    scales = np.repeat(np.arange(127, dtype=np.uint8)[:, None], 4, axis=1)
    exponent, mantissa = scales.astype(np.int64) >> 3, scales & 7
    e4m3 = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    elements = np.stack([codes & 15, codes >> 4], axis=2).reshape(127, 64)
    expected = e2m1[elements] * np.repeat(e4m3, 16, axis=1)
    theirs = quants.dequantize(join_planes(codes, scales), GGMLQuantizationType.NVFP4)
    assert np.array_equal(theirs, expected.astype(np.float32))


def test_many_values_are_rounded_to_bf16_as_few_are() -> None:
    random = np.random.default_rng(5)
    bits = random.integers(0, 1 << 32, (70, 1024), dtype=np.uint64).astype(np.uint32)
    assert np.array_equal(encode_rows(bits, "F32", "BF16"), cast(bits, "F32", "BF16").view(np.uint8))
