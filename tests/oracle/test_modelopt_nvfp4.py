"""Our NVFP4 arithmetic against ModelOpt 0.47's own functions and its exported checkpoints, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("modelopt", reason="needs nvidia-modelopt")

import torch
from modelopt.torch.quantization.qtensor import NVFP4QTensor

from convertkit.grids.nvfp4 import decode, encode, numbers, tables
from tests.oracle import planes, real_checkpoints
from tests.oracle.torch_bits import INFINITY, SIGN, STORAGE, TORCH, as_torch, storage

pytestmark = pytest.mark.oracle


def samples(dtype: str) -> dict[str, NDArray[Any]]:
    """Weights [rows, in] as storage bits: ordinary, outlying, wide, holed, and uniform over all finite bits."""
    draw = torch.Generator().manual_seed(1)
    normal = torch.randn(64, 256, generator=draw) * 0.02
    outlier = normal.clone()
    outlier[10, 20] = 2500 * normal.abs().max()
    holed = normal.clone().view(64, 16, 16)
    holed[torch.rand(64, 16, generator=draw) < 0.3] = -0.0
    wide = torch.exp2(torch.rand(64, 256, generator=draw) * 22 - 20) * torch.sign(normal)
    heavy = normal * torch.exp(2.5 * torch.randn(64, 1, generator=draw)).clamp(max=1e4)
    kinds = {"normal": normal, "outlier": outlier, "holed": holed.view(64, 256), "wide": wide, "heavy": heavy}
    found = {name: storage(value.to(TORCH[dtype])) for name, value in kinds.items()}
    rng = np.random.default_rng(2)
    magnitudes = rng.integers(0, INFINITY[dtype], (64, 256)) | rng.choice([0, SIGN[dtype]], (64, 256))
    found["bits"] = magnitudes.astype(STORAGE[dtype])
    return found


def ours(bits: NDArray[Any], dtype: str, amax: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int]:
    built = tables.build_encode_tables("amax", dtype, amax)
    codes = np.zeros((bits.shape[0], bits.shape[1] // 2), np.uint8)
    scales = np.zeros((bits.shape[0], bits.shape[1] // 16), np.uint8)
    encode.encode_tile(bits, built, codes, scales)
    return codes, scales, built.global_bits


def theirs(bits: NDArray[Any], dtype: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int]:
    packed, scales, scale = NVFP4QTensor.quantize(as_torch(bits, dtype), 16)
    return packed._quantized_data.numpy(), scales.view(torch.uint8).numpy(), numbers.bits_of(scale.numpy())


@pytest.mark.parametrize("dtype", TORCH)
def test_quantize_gives_the_same_planes(dtype: str) -> None:
    for name, bits in samples(dtype).items():
        codes, scales, scale = theirs(bits, dtype)
        our_codes, our_scales, our_scale = ours(bits, dtype, encode.amax_of_tile(bits))
        assert our_scale == scale, name
        assert np.array_equal(our_scales, scales), name
        assert np.array_equal(our_codes, codes), name


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_block_amax_and_every_weight_under_it(dtype: str) -> None:
    """One block per finite magnitude, which is its amax, filled with random magnitudes below it."""
    for group in (0x3D4F, 0x4428, INFINITY[dtype] - 1):
        amaxes = np.arange(group + 1)
        rng = np.random.default_rng(group)
        blocks = (rng.random((amaxes.size, 16)) * (amaxes[:, None] + 1)).astype(np.int64)
        blocks[:, 0] = amaxes
        bits = (blocks | rng.choice([0, SIGN[dtype]], blocks.shape)).astype(np.uint16)
        codes, scales, scale = theirs(bits, dtype)
        our_codes, our_scales, our_scale = ours(bits, dtype, group)
        assert our_scale == scale
        assert np.array_equal(our_scales, scales)
        assert np.array_equal(our_codes, codes)


@pytest.mark.parametrize("dtype", TORCH)
def test_our_bytes_are_others_where_modelopts_scale_is_no_normal_number_and_only_there(dtype: str) -> None:
    border = {"BF16": 0x0628, "F16": 1, "F32": 0x06280000}[dtype]
    for group in {0, 1, 2, 77, border - 1, border, border + 1, border + 40}:
        bits = np.zeros((2, 32), STORAGE[dtype])
        bits[0, :5] = [group, group // 2, 0, SIGN[dtype] | group, 1 if group else 0]
        codes, scales, scale = theirs(bits, dtype)
        our_codes, our_scales, our_scale = ours(bits, dtype, group)
        same = our_scale == scale and np.array_equal(our_scales, scales) and np.array_equal(our_codes, codes)
        assert same == (group >= border), hex(group)
        assert 0x7F not in our_scales
        assert 0 < our_scale < 0x7F800000


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("global_bits", [0x3F800000, 0x39C30C31, 0x3B3BDA14, 0x00800000, 0x7E000000, 0x00000123])
def test_dequantize_gives_the_same_bits(global_bits: int, dtype: str) -> None:
    # All 127 finite non-negative block scales by all 16 codes.
    codes = np.tile(np.arange(8, dtype=np.uint8) * 0x22 + 0x10, (127, 1))
    scales = np.arange(127, dtype=np.uint8)[:, None]
    packed = NVFP4QTensor(torch.Size((127, 16)), TORCH[dtype], torch.from_numpy(codes))
    value = packed.dequantize(
        dtype=TORCH[dtype],
        scale=torch.from_numpy(scales).view(torch.float8_e4m3fn),
        double_scale=torch.from_numpy(np.array(numbers.float_of(global_bits))),
        block_sizes={-1: 16},
    )
    out = np.zeros((127, 16), STORAGE[dtype])
    decode.decode_tile(codes, scales, decode.decode_table(global_bits, "multiplier", dtype, "modelopt"), out)
    number = ~torch.isnan(value).numpy()
    assert number[:, 1:].sum() > 126 * 8
    assert np.array_equal(out[number], storage(value)[number])


def assert_same_file(source: dict[str, planes.Raw], packed: dict[str, planes.Raw], modules: list[str]) -> None:
    expected = planes.packed_modules(source, modules, "amax")
    for module, (codes, scales, global_bits) in expected.items():
        assert packed[f"{module}.weight"].dtype == "U8"
        assert packed[f"{module}.weight"].data == codes, module
        assert packed[f"{module}.weight_scale"].data == scales, module
        assert packed[f"{module}.weight_scale_2"].data == global_bits.to_bytes(4, "little"), module
    rest = {name for name in packed if name.rpartition(".")[0] not in expected}
    assert rest == {name for name in source if name.rpartition(".")[0] not in expected}
    assert all(packed[name] == source[name] for name in rest)


def test_an_exported_checkpoint_is_reproduced(tmp_path: Path) -> None:
    source = planes.raw_tensors(real_checkpoints.tiny_qwen3(tmp_path / "source"))
    packed = planes.raw_tensors(real_checkpoints.modelopt_export(tmp_path / "source", tmp_path / "packed"))
    modules = planes.modules_with(packed, "weight_scale")
    assert len(modules) == 14
    assert_same_file(source, packed, modules)


def test_the_mlp_of_a_drafter_is_reproduced(tmp_path: Path) -> None:
    pytest.importorskip("dflash")
    source = planes.raw_tensors(real_checkpoints.tiny_dflash_bf16(tmp_path / "source"))
    packed = planes.raw_tensors(real_checkpoints.modelopt_dflash_mlp(tmp_path / "source", tmp_path / "packed"))
    modules = planes.modules_with(packed, "weight_scale")
    assert sorted(modules) == sorted(f"layers.{i}.mlp.{leaf}_proj" for i in range(2) for leaf in ("gate", "up", "down"))
    assert_same_file(source, packed, modules)
