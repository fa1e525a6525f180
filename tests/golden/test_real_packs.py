"""The encoder against the committed packs that modelopt and llm-compressor made of ``qwen3-tiny``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from convertkit.grids.nvfp4.encode import amax_of_tile, encode_tile
from convertkit.grids.nvfp4.tables import build_encode_tables

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"

# names of codes and global scale, arithmetic, modules packed, per pack
PACKS = {
    "modelopt-export-tiny": ("weight", "weight_scale_2", "amax", ("self_attn", "mlp")),
    "modelopt-export-w4a4-tiny": ("weight", "weight_scale_2", "amax", ("self_attn", "mlp")),
    "modelopt-export-mixed-tiny": ("weight", "weight_scale_2", "amax", ("self_attn", "mlp")),
    "modelopt-export-mixed-fp8-tiny": ("weight", "weight_scale_2", "amax", ("mlp",)),
    "llmcompressor-oneshot-tiny": ("weight_packed", "weight_global_scale", "amax-llmcompressor", ("self_attn", "mlp")),
    "llmcompressor-oneshot-w4a4-tiny": (
        "weight_packed", "weight_global_scale", "amax-llmcompressor", ("self_attn", "mlp"),
    ),
}  # fmt: skip

GROUPS = {
    "self_attn": (("q_proj", "k_proj", "v_proj"), ("o_proj",)),
    "mlp": (("gate_proj", "up_proj"), ("down_proj",)),
}


def stored(name: str) -> dict[str, NDArray[Any]]:
    """Storage bits of every tensor of a fixture."""
    types = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8, torch.float32: torch.uint32}
    tensors = load_file(FIXTURES / name / "model.safetensors")
    return {key: tensor.view(types.get(tensor.dtype, tensor.dtype)).numpy() for key, tensor in tensors.items()}


@pytest.mark.parametrize("pack", PACKS)
def test_our_bytes_are_theirs(pack: str) -> None:
    codes_name, global_name, arithmetic, places = PACKS[pack]
    source, theirs = stored("qwen3-tiny"), stored(pack)
    compared = 0
    for at in (f"model.layers.{layer}.{place}" for layer in range(2) for place in places):
        for group in GROUPS[at.rpartition(".")[2]]:
            weights = {f"{at}.{member}": source[f"{at}.{member}.weight"] for member in group}
            tables = build_encode_tables(arithmetic, "BF16", max(map(amax_of_tile, weights.values())))
            for module, weight in weights.items():
                codes = np.empty((weight.shape[0], weight.shape[1] // 2), np.uint8)
                scales = np.empty((weight.shape[0], weight.shape[1] // 16), np.uint8)
                encode_tile(weight, tables, codes, scales)
                assert np.array_equal(codes, theirs[f"{module}.{codes_name}"]), module
                assert np.array_equal(scales, theirs[f"{module}.weight_scale"]), module
                assert theirs[f"{module}.{global_name}"].reshape(-1).tolist() == [tables.global_bits], module
                compared += 1
    assert compared == (6 if len(places) == 1 else 14)


@pytest.mark.parametrize("pack", PACKS)
def test_everything_else_is_copied(pack: str) -> None:
    source, theirs = stored("qwen3-tiny"), stored(pack)
    kept = {name for name in source if "_proj" not in name}
    assert len(kept) == 11
    assert all(np.array_equal(source[name], theirs[name]) for name in kept)
