"""Tiny checkpoints for tests: tensors from specs, deterministic bytes, a config."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from convertkit.checkpoint import Checkpoint, TensorSpec
from convertkit.containers.folder import open_checkpoint
from convertkit.containers.safetensors import encode_header
from convertkit.dialects.spelling import spelling_of

MLP = ("gate_proj", "up_proj", "down_proj")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")

DFLASH_CONFIG: Mapping[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 48,
    "num_target_layers": 5,
    "torch_dtype": "bfloat16",
    "dflash_config": {"target_layer_ids": [1, 3], "mask_token_id": 47},
}


def spec(name: str, dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, dtype, shape)


Plane = tuple[str, tuple[int, ...]]


def planes(
    module: str,
    dialect: str = "modelopt",
    rows: int = 32,
    columns: int = 32,
    over: Mapping[str, Plane | None] | None = None,
) -> list[TensorSpec]:
    """The planes of one packed linear; ``over`` replaces a plane by (dtype, shape), or drops it with None."""
    spelling = spelling_of(dialect)
    whole: dict[str, Plane | None] = {
        spelling.codes: ("U8", (rows, columns // 2)),
        spelling.block_scale: ("F8_E4M3", (rows, columns // 16)),
        spelling.global_scale: ("F32", spelling.global_shape),
        **(over or {}),
    }
    return [TensorSpec(f"{module}.{leaf}", *row) for leaf, row in whole.items() if row is not None]


def dflash(pack: Iterable[str] = (), dialect: str = "modelopt", layers: int = 2) -> list[TensorSpec]:
    """A z-lab DFlash drafter as in ``DFLASH_CONFIG``; linears whose last name is in ``pack`` are packed."""
    chosen = set(pack)
    specs = [spec("fc.weight", "BF16", 32, 64), spec("hidden_norm.weight", "BF16", 32), spec("norm.weight", "BF16", 32)]
    for layer in range(layers):
        for block, leaves in (("self_attn", ATTENTION), ("mlp", MLP)):
            for leaf in leaves:
                module = f"layers.{layer}.{block}.{leaf}"
                specs += planes(module, dialect) if leaf in chosen else [spec(f"{module}.weight", "BF16", 32, 32)]
        for leaf in ("self_attn.q_norm", "self_attn.k_norm"):
            specs.append(spec(f"layers.{layer}.{leaf}.weight", "BF16", 16))
        for leaf in ("input_layernorm", "post_attention_layernorm"):
            specs.append(spec(f"layers.{layer}.{leaf}.weight", "BF16", 32))
    return specs


def causal_lm(pack: Iterable[str] = (), dialect: str = "modelopt", layers: int = 2) -> list[TensorSpec]:
    """A plain language model with two norms per layer, embeddings and a head."""
    chosen = set(pack)
    specs = [spec("model.embed_tokens.weight", "BF16", 48, 32), spec("lm_head.weight", "BF16", 48, 32)]
    for layer in range(layers):
        for block, leaves in (("self_attn", ATTENTION), ("mlp", MLP)):
            for leaf in leaves:
                module = f"model.layers.{layer}.{block}.{leaf}"
                specs += planes(module, dialect) if leaf in chosen else [spec(f"{module}.weight", "BF16", 32, 32)]
        specs.append(spec(f"model.layers.{layer}.input_layernorm.weight", "BF16", 32))
    return specs


LM_CONFIG: Mapping[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "vocab_size": 48,
}

FILL: Mapping[str, bytes] = {"BF16": b"\x80\x3f", "F32": b"\x00\x00\x80\x3f", "F8_E4M3": b"\x38", "U8": b"\x21"}
"""One element of each dtype: 1.0, and codes 1 and 2."""


def write(
    folder: Path,
    specs: Iterable[TensorSpec],
    config: Mapping[str, Any] | None = None,
    quant_config: Mapping[str, Any] | None = None,
    values: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a checkpoint; ``values`` are the bytes of single tensors, all others are filled with ones."""
    header = encode_header(list(specs), {"format": "pt"})
    folder.mkdir(parents=True, exist_ok=True)
    payload = b"".join(
        (values or {}).get(item.name)
        or FILL.get(item.dtype, b"\0") * (item.size_bytes // len(FILL.get(item.dtype, b"\0")))
        for item in header.order
    )
    (folder / "model.safetensors").write_bytes(header.prefix + payload)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    if quant_config is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(quant_config))
    return folder


def checkpoint(folder: Path, specs: Iterable[TensorSpec], *rest: Any, **more: Any) -> Checkpoint:
    """Write and open."""
    return open_checkpoint(write(folder, specs, *rest, **more))
