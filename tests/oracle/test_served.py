"""Rows ``modelopt`` and ``compressed-tensors`` of the engines against those packages' own dequantization."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("modelopt", reason="needs nvidia-modelopt")

import torch
from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
from compressed_tensors.quantization import preset_name_to_scheme
from modelopt.torch.quantization.qtensor import NVFP4QTensor

from convertkit.checks.reference import bits_of
from convertkit.checks.served import ENGINES, Part

pytestmark = pytest.mark.oracle

CODES = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE], dtype=torch.uint8).repeat(126, 1)
SCALES = torch.arange(1, 127, dtype=torch.uint8).reshape(126, 1).view(torch.float8_e4m3fn)


def table(name: str, scale: float, sense: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return ENGINES[name].values(Part(bits_of(np.float32(scale)), sense, 0x7E))[1:127]


@pytest.mark.parametrize("scale", [1e-4, 3.7e-5, 0.25, 1.9e-3])
def test_modelopt(scale: float) -> None:
    packed = NVFP4QTensor(torch.Size([126, 16]), torch.bfloat16, CODES)
    made = packed.dequantize(dtype=torch.bfloat16, scale=SCALES, double_scale=torch.tensor(scale), block_sizes={-1: 16})
    assert np.array_equal(table("modelopt", scale, "multiplier"), made.double().numpy())


@pytest.mark.parametrize("scale", [7654.321, 26880.0, 4.0, 510.2])
def test_compressed_tensors(scale: float) -> None:
    state = {"weight_packed": CODES, "weight_scale": SCALES, "weight_global_scale": torch.tensor([scale])}
    made = NVFP4PackedCompressor.decompress(state, preset_name_to_scheme("NVFP4A16", ["Linear"]))
    assert np.array_equal(table("compressed-tensors", scale, "divisor"), made["weight"].double().numpy())
