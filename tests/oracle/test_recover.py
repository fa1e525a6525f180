"""Packs that ModelOpt and llm-compressor made, expanded to BF16 by their own code, come back without a difference."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("compressed_tensors", reason="needs compressed-tensors")

import torch
from safetensors.torch import load_file, save_file

from convertkit.checks.reference import exact_rounded_table
from convertkit.grids.nvfp4 import numbers, on_grid, recover
from convertkit.verbs.case import Result
from convertkit.verbs.dequant import dequant
from convertkit.verbs.pack import pack_nvfp4

pytestmark = pytest.mark.oracle

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
GROUPS = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))
Bits = NDArray[np.uint16]


def bits_of(tensor: torch.Tensor) -> Bits:
    bits: Bits = tensor.to(torch.bfloat16).contiguous().view(torch.int16).numpy().view(np.uint16)
    return bits


def by_modelopt(planes: dict[str, torch.Tensor], module: str) -> Bits:
    pytest.importorskip("modelopt", reason="needs nvidia-modelopt")
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    codes = planes[f"{module}.weight"]
    packed = NVFP4QTensor(torch.Size([codes.shape[0], 2 * codes.shape[1]]), torch.bfloat16, codes)
    scale, second = planes[f"{module}.weight_scale"], planes[f"{module}.weight_scale_2"]
    return bits_of(packed.dequantize(dtype=torch.bfloat16, scale=scale, double_scale=second, block_sizes={-1: 16}))


def by_compressed_tensors(planes: dict[str, torch.Tensor], module: str) -> Bits:
    from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
    from compressed_tensors.quantization import preset_name_to_scheme

    leaves = ("weight_packed", "weight_scale", "weight_global_scale")
    state = {leaf: planes[f"{module}.{leaf}"] for leaf in leaves}
    return bits_of(NVFP4PackedCompressor.decompress(state, preset_name_to_scheme("NVFP4A16", ["Linear"]))["weight"])


CASES = {
    "modelopt-export-tiny": (by_modelopt, "multiplier", "weight_scale_2"),
    "llmcompressor-oneshot-tiny": (by_compressed_tensors, "divisor", "weight_global_scale"),
}


@pytest.mark.parametrize("hinted", [False, True])
@pytest.mark.parametrize("sense", ["multiplier", "divisor"])
@pytest.mark.parametrize("name", list(CASES))
def test_expanded_packs_are_found_on_their_grid(name: str, sense: numbers.Sense, hinted: bool) -> None:
    expand, own, leaf = CASES[name]
    planes = load_file(FIXTURES / name / "model.safetensors")
    modules = sorted(key.removesuffix(f".{leaf}") for key in planes if key.endswith(f".{leaf}"))
    assert modules
    for group in ([m for m in modules if m.rpartition(".")[2] in leaves and m.split(".")[2] == layer]
                  for leaves in GROUPS for layer in sorted({m.split(".")[2] for m in modules})):  # fmt: skip
        weights = [expand(planes, module) for module in group]
        stored = int(planes[f"{group[0]}.{leaf}"].reshape(1).view(torch.int32).item())
        hints = (stored,) if hinted and sense == own else ()
        verdict = recover.find_grid(partial(list, weights), sense=sense, hints=hints)
        assert verdict.status == "grid", (group, verdict)
        found = verdict.found[0]
        for module, values in zip(group, weights, strict=True):
            codes = np.zeros((values.shape[0], values.shape[1] // 2), np.uint8)
            scales = np.zeros((values.shape[0], values.shape[1] // 16), np.uint8)
            zero = 0x20 if own == "divisor" else 0x38
            built = on_grid.build_grid_tables(found.global_bits, sense, zero_byte=zero)
            on_grid.solve_tile(values, built, on_grid.otherwise_tables(found.global_bits, sense), codes, scales)
            table = exact_rounded_table(found.global_bits, sense, "BF16")
            nibbles = np.stack([codes & 15, codes >> 4], axis=-1).reshape(values.shape)
            again = table[np.repeat(scales, 16, axis=1), nibbles]
            # ModelOpt's table has no -0: its code 8 is +0, so signs of zeros are those that it wrote.
            assert np.array_equal(again, values), module
            if hints:
                assert found.global_bits == stored
                assert np.array_equal(scales, planes[f"{module}.weight_scale"].view(torch.uint8).numpy())


def test_what_modelopt_packs_and_expands_is_packed_again_without_a_difference(tmp_path: Path) -> None:
    """Every mantissa that the largest magnitude of BF16 weights can have, those near ties included."""
    pytest.importorskip("modelopt", reason="needs nvidia-modelopt")
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    torch.manual_seed(1)
    expanded = {}
    for mantissa in range(128):
        weight = torch.randn(64, 256).to(torch.bfloat16) * 0.02
        weight[3, 7] = -(1 + mantissa / 128) / 8
        packed, scale, second = NVFP4QTensor.quantize(weight, 16)
        values = packed.dequantize(dtype=torch.bfloat16, scale=scale, double_scale=second, block_sizes={-1: 16})
        expanded[f"model.layers.{mantissa}.mlp.down_proj.weight"] = values
    source = tmp_path / "src"
    source.mkdir()
    save_file(expanded, source / "model.safetensors")
    (source / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    made = pack_nvfp4(
        source, tmp_path / "pack", include=["layers.{i}.mlp.{x}"], dialect="modelopt-mixed", scales="lossless"
    )
    assert isinstance(made, Result)
    rows = [row["scales"] for row in made.reports["FIDELITY_GATE.json"]["rows"] if row["scope"] == "tensor"]
    assert [row["differing"] for row in rows] == [0] * 128
    stepped = sum(row.get("arithmetic") == "modelopt" for row in rows)
    assert stepped == next(item for item in made.findings if item.code == "W_GRID_STEPS").data["groups"] > 0
    dequant(tmp_path / "pack", tmp_path / "back", arithmetic="modelopt")
    again = load_file(tmp_path / "back" / "model.safetensors")
    assert all(np.array_equal(bits_of(again[name]), bits_of(values)) for name, values in expanded.items())
