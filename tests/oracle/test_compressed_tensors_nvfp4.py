"""Our NVFP4 arithmetic against compressed-tensors 0.19 and 0.20 and llm-compressor's checkpoints, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("compressed_tensors", reason="needs compressed-tensors")

import torch
from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

from convertkit.grids.nvfp4 import arithmetics, decode, encode, numbers, tables
from tests.oracle import planes, real_checkpoints
from tests.oracle.torch_bits import INFINITY, SIGN, STORAGE, TORCH, as_torch, storage

pytestmark = pytest.mark.oracle

SCHEME = preset_name_to_scheme("NVFP4A16", ["Linear"])
Result = tuple[NDArray[np.uint8], NDArray[np.uint8], int]


def theirs(bits: NDArray[Any], dtype: str) -> Result:
    """What llm-compressor's observer computes and compressed-tensors packs."""
    weight = as_torch(bits, dtype)
    blocks = weight.view(weight.shape[0], -1, 16)
    low, high = blocks.amin(-1), blocks.amax(-1)
    largest = torch.max(high.max(), -low.min()).reshape(1)
    scale = generate_gparam(-largest, largest)
    block_scales, _ = calculate_qparams(low, high, SCHEME.weights, global_scale=scale)
    state = {"weight": weight, "weight_scale": block_scales, "weight_global_scale": scale}
    packed = NVFP4PackedCompressor.compress(state, SCHEME)
    return (
        packed["weight_packed"].numpy(),
        packed["weight_scale"].view(torch.uint8).numpy(),
        numbers.bits_of(scale.numpy()[0]),
    )


def ours(bits: NDArray[Any], dtype: str) -> Result:
    built = tables.build_encode_tables("amax-llmcompressor", dtype, encode.amax_of_tile(bits))
    codes = np.zeros((bits.shape[0], bits.shape[1] // 2), np.uint8)
    scales = np.zeros((bits.shape[0], bits.shape[1] // 16), np.uint8)
    encode.encode_tile(bits, built, codes, scales)
    return codes, scales, built.global_bits


def assert_same(bits: NDArray[Any], dtype: str, what: object) -> None:
    codes, scales, scale = theirs(bits, dtype)
    our_codes, our_scales, our_scale = ours(bits, dtype)
    assert our_scale == scale, what
    assert np.array_equal(our_scales, scales), what
    assert np.array_equal(our_codes, codes), what


@pytest.mark.parametrize("dtype", TORCH)
def test_compress_gives_the_same_planes(dtype: str) -> None:
    draw = torch.Generator().manual_seed(1)
    normal = torch.randn(64, 256, generator=draw) * 0.02
    outlier = normal.clone()
    outlier[10, 20] = 2500 * normal.abs().max()
    holed = normal.clone().view(64, 16, 16)
    holed[torch.rand(64, 16, generator=draw) < 0.3] = -0.0
    wide = torch.exp2(torch.rand(64, 256, generator=draw) * 22 - 20) * torch.sign(normal)
    for name, value in {
        "normal": normal, "outlier": outlier, "holed": holed.view(64, 256), "wide": wide,
        "zero": normal * 0, "small": normal * 1e-3, "tiny": normal * 1e-36, "subnormal": normal * 1e-38,
    }.items():  # fmt: skip
        assert_same(storage(value.to(TORCH[dtype])), dtype, name)
    rng = np.random.default_rng(2)
    for top in (INFINITY[dtype], INFINITY[dtype] // 2, INFINITY[dtype] // 8):
        magnitudes = rng.integers(0, top, (64, 256)) | rng.choice([0, SIGN[dtype]], (64, 256))
        assert_same(magnitudes.astype(STORAGE[dtype]), dtype, hex(top))


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_block_amax_and_every_weight_under_it(dtype: str) -> None:
    """One block per finite magnitude, which is its amax, filled with random magnitudes below it."""
    for group in (0x3D4F, 0x4428, INFINITY[dtype] - 1):
        amaxes = np.arange(group + 1)
        rng = np.random.default_rng(group)
        blocks = (rng.random((amaxes.size, 16)) * (amaxes[:, None] + 1)).astype(np.int64)
        blocks[:, 0] = amaxes
        assert_same((blocks | rng.choice([0, SIGN[dtype]], blocks.shape)).astype(np.uint16), dtype, hex(group))


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_group_amax_gets_the_same_global_scale(dtype: str) -> None:
    amaxes = np.arange(INFINITY[dtype], dtype=np.uint16)
    largest = as_torch(amaxes, dtype)
    clamped = torch.clamp(largest, min=torch.finfo(TORCH[dtype]).tiny)
    expected = torch.nan_to_num(2688 / clamped, nan=1.0, posinf=1.0).float().numpy().view(np.uint32)
    row = arithmetics.ARITHMETICS["amax-llmcompressor"]
    with np.errstate(all="ignore"):
        found = [numbers.bits_of(row.global_scale(amax, dtype)) for amax in largest.float().numpy()]
    assert found == expected.tolist()
    for bits in (0, 1, 0x0080, 0x2A55, 0x3C01):
        single = as_torch(np.array([bits], np.uint16), dtype)
        assert found[bits] == numbers.bits_of(generate_gparam(-single, single).numpy()[0])


@pytest.mark.parametrize("global_bits", [0x3F800000, 0x44E00000, 0x45280001, 0x7F000000, 0x00800000])
def test_dequantize_gives_the_same_bits(global_bits: int) -> None:
    codes = np.tile(np.arange(8, dtype=np.uint8) * 0x22 + 0x10, (127, 1))
    scales = np.arange(127, dtype=np.uint8)[:, None]
    stored = torch.from_numpy(scales).view(torch.float8_e4m3fn)
    divisor = torch.from_numpy(np.array([numbers.float_of(global_bits)]))
    state = {"weight_packed": torch.from_numpy(codes), "weight_scale": stored, "weight_global_scale": divisor}
    for dtype, kind in TORCH.items():
        # decompress() writes BF16; other types come from the function underneath.
        value = (
            NVFP4PackedCompressor.decompress(state, SCHEME)["weight"]
            if dtype == "BF16"
            else dequantize(
                unpack_fp4_from_uint8(torch.from_numpy(codes), 127, 16, kind),
                stored.to(kind),
                args=SCHEME.weights,
                dtype=kind,
                global_scale=divisor,
            )
        )
        assert value.dtype == kind
        out = np.zeros((127, 16), STORAGE[dtype])
        table = decode.decode_table(global_bits, "divisor", dtype, "compressed-tensors")
        decode.decode_tile(codes, scales, table, out)
        number = ~torch.isnan(value).numpy()
        assert number[1:, 1:8].sum() == 126 * 7
        assert np.array_equal(out[number], storage(value)[number])


def test_a_oneshot_checkpoint_is_reproduced(tmp_path: Path) -> None:
    pytest.importorskip("llmcompressor", reason="needs llm-compressor")
    source = planes.raw_tensors(real_checkpoints.tiny_qwen3(tmp_path / "source"))
    packed = planes.raw_tensors(real_checkpoints.llmcompressor_oneshot(tmp_path / "source", tmp_path / "packed"))
    modules = planes.modules_with(packed, "weight_packed")
    assert len(modules) == 14
    for module, (codes, scales, bits) in planes.packed_modules(source, modules, "amax-llmcompressor").items():
        assert packed[f"{module}.weight_packed"].data == codes, module
        assert packed[f"{module}.weight_scale"].data == scales, module
        assert packed[f"{module}.weight_global_scale"] == planes.Raw("F32", (1,), bits.to_bytes(4, "little")), module
    rest = {name for name in packed if name.rpartition(".")[0] not in modules}
    assert all(packed[name] == source[name] for name in rest)
