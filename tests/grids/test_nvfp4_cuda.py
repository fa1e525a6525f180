"""The torch path gives the bytes of the compiled one; run on the CPU here, and on a GPU where there is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from convertkit.errors import ConvertError
from convertkit.grids.nvfp4 import decode, encode
from convertkit.grids.nvfp4.tables import build_encode_tables

torch = pytest.importorskip("torch")
cuda = pytest.importorskip("convertkit.grids.nvfp4.cuda")

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
WIDTHS = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32}
FINITE = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}


def weights(dtype: str, seed: int, shape: tuple[int, int] = (24, 96)) -> NDArray[Any]:
    """Every kind of block: Gaussian, any finite bits, zeros, one value alone, signed zeros, subnormals."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape).astype(np.float32) * np.float32(0.02)
    bits: NDArray[Any]
    if dtype == "F32":
        bits = values.view(np.uint32)
    else:
        halves = values.astype(np.float16).view(np.uint16)
        bits = halves if dtype == "F16" else (values.view(np.uint32) >> 16).astype(np.uint16)
    sign = np.array(1 << (8 * bits.dtype.itemsize - 1), bits.dtype)
    bits[3] = random.integers(0, FINITE[dtype], shape[1]).astype(bits.dtype)
    bits[4, ::3] |= sign
    bits[5] = 0
    bits[6] = 0
    bits[6, 40] = bits[0, 0]
    bits[7, ::2] = sign
    bits[8] = random.integers(0, 128, shape[1]).astype(bits.dtype)
    return np.ascontiguousarray(bits)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("arithmetic", ["amax", "amax-llmcompressor"])
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("seed", range(4))
def test_encoding_equals_the_compiled_path(device: str, arithmetic: str, dtype: str, seed: int) -> None:
    values = weights(dtype, seed)
    amax = encode.amax_of_tile(values)
    assert cuda.amax_of_tile(values, device) == amax
    tables = build_encode_tables(arithmetic, dtype, amax)
    expected = np.empty((24, 48), np.uint8), np.empty((24, 6), np.uint8)
    made = np.empty((24, 48), np.uint8), np.empty((24, 6), np.uint8)
    encode.encode_tile(values, tables, *expected)
    cuda.encode_tile(values, tables, *made, device)
    assert made[1].tobytes() == expected[1].tobytes()
    assert made[0].tobytes() == expected[0].tobytes()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("sense", ["multiplier", "divisor"])
def test_decoding_equals_the_compiled_path(device: str, dtype: str, sense: str) -> None:
    random = np.random.default_rng(7)
    codes = random.integers(0, 256, (33, 40), np.uint8)
    scales = random.integers(0, 127, (33, 5), np.uint8)
    table = decode.decode_table(0x3A123456, sense, dtype)
    expected, made = (np.empty((33, 80), WIDTHS[dtype]) for _ in range(2))
    decode.decode_tile(codes, scales, table, expected)
    cuda.decode_tile(codes, scales, table, made, device)
    assert made.tobytes() == expected.tobytes()


def test_a_machine_without_a_gpu_says_so() -> None:
    if torch.cuda.is_available():
        cuda.require_cuda()
        return
    with pytest.raises(ConvertError, match="no CUDA device") as caught:
        cuda.require_cuda()
    assert caught.value.status == 2
