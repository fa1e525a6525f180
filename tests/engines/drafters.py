"""Tiny drafters of every kind for the engine models: configs as published ones state them, tensors from the layouts.

All kinds share one size: hidden 64, intermediate 96, 4 heads and 2 key-value heads of 16, vocabulary 128, 2 layers,
3 tapped layers of a target of 8 layers. Values depend on the name of the tensor only.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from convertkit.checkpoint import TensorSpec
from convertkit.containers.safetensors import encode_header
from convertkit.layouts.expected import expected_tensors
from convertkit.layouts.tables import LAYOUTS_BY_NAME
from tests.dialects.tiny import planes

H, I, NH, NKV, HD, V, L, N, DV = 64, 96, 4, 2, 16, 128, 2, 8, 64  # noqa: E741
TAPS = [1, 3, 5]

TARGET: Mapping[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "vocab_size": V,
    "hidden_size": H, "num_hidden_layers": N, "intermediate_size": 128, "num_attention_heads": NH,
    "num_key_value_heads": NKV, "head_dim": HD, "rms_norm_eps": 1e-6, "max_position_embeddings": 512,
    "layer_types": ["full_attention"] * N, "tie_word_embeddings": False, "dtype": "bfloat16",
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
}  # fmt: skip
"""The config of the target of all of them."""

BODY: Mapping[str, Any] = {
    "model_type": "qwen3", "hidden_act": "silu", "vocab_size": V, "hidden_size": H, "num_hidden_layers": L,
    "intermediate_size": I, "num_attention_heads": NH, "num_key_value_heads": NKV, "head_dim": HD,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "attention_bias": False, "dtype": "bfloat16",
    "layer_types": ["full_attention"] * L, "sliding_window": None, "use_sliding_window": False,
    "max_window_layers": L, "tie_word_embeddings": False,
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
}  # fmt: skip

CONV: Mapping[str, Any] = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 16, "selector_top_k": 4}
MARKOV: Mapping[str, Any] = {
    "markov_rank": 16, "markov_head_type": "vanilla", "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}  # fmt: skip


def flat(architecture: str, **more: Any) -> dict[str, Any]:
    """A z-lab config."""
    inner = {"mask_token_id": V - 1, "target_layer_ids": list(TAPS), "block_size": 8}
    return {**BODY, "architectures": [architecture], "num_target_layers": N, "dflash_config": {**inner, **more}}


def speculators(kind: str, body: Mapping[str, Any] = BODY, **more: Any) -> dict[str, Any]:
    """A speculators config."""
    layer = {key: value for key, value in body.items() if key not in ("dtype", "use_sliding_window")}
    return {
        "architectures": ["Speculator"],
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": more.pop("tokens", 7)}],
            "verifier": {"name_or_path": "example/target", "architectures": ["Qwen3ForCausalLM"]},
        },
        "transformer_layer_config": {**layer, "use_sliding_window": body["use_sliding_window"]},
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        **more,
    }


SPEC: Mapping[str, Any] = {
    "aux_hidden_state_layer_ids": [tap + 1 for tap in TAPS],
    "mask_token_id": V - 1,
    "block_size": 8,
    "draft_vocab_size": V,
    "sample_from_anchor": False,
    "sliding_window_non_causal": True,
}
EAGLE: Mapping[str, Any] = {
    "draft_vocab_size": DV,
    "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
    "norm_before_residual": True,
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
}
LLAMA: Mapping[str, Any] = {**BODY, "model_type": "llama"}

KINDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "dflash": ("dflash", flat("DFlashDraftModel")),
    "dflash2": ("dflash2", flat("DFlash2DraftModel", **CONV)),
    "dspark": (
        "dspark",
        {
            **BODY, **MARKOV, "architectures": ["Qwen3DSparkModel"], "target_layer_ids": list(TAPS), "block_size": 7,
            "mask_token_id": V - 1, "num_anchors": 64, "num_target_layers": N,
        },
    ),
    "speculators-dflash": ("speculators-dflash", speculators("dflash", **SPEC)),
    "speculators-dflash-reduced": ("speculators-dflash", speculators("dflash", **{**SPEC, "draft_vocab_size": DV})),
    "speculators-dflash2": ("speculators-dflash2", speculators("dflash2", **SPEC, **CONV)),
    "speculators-dspark": (
        "speculators-dspark",
        speculators("dspark", **{**SPEC, "sample_from_anchor": True}, **MARKOV, tokens=8),
    ),
    "speculators-dspark-reduced": (
        "speculators-dspark",
        speculators("dspark", **{**SPEC, "sample_from_anchor": True, "draft_vocab_size": DV}, **MARKOV, tokens=8),
    ),
    "speculators-eagle3": ("speculators-eagle3", speculators("eagle3", LLAMA, **EAGLE, tokens=3)),
    "speculators-eagle3-qwen3": (
        "speculators-eagle3",
        speculators("eagle3", BODY, **{**EAGLE, "fc_norm": True, "norm_output": True}, tokens=3),
    ),
    "speculators-peagle": (
        "speculators-peagle",
        speculators("peagle", LLAMA, **{**EAGLE, "norm_before_residual": False}, mask_token_id=V - 1, tokens=4),
    ),
    "eagle3": (
        "eagle3",
        {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": DV,
         "layer_types": None},
    ),
}  # fmt: skip
"""Name of the kind: its layout, its config."""


@dataclass
class Draft:
    """A drafter under construction: what a case damages. ``shards`` maps names to a second weight file, whose index
    entry is kept in ``index``; ``values`` are bytes of single tensors, ``mask`` makes what is in
    ``mask_embedding.pt``."""

    config: dict[str, Any]
    specs: dict[str, TensorSpec]
    quant_config: dict[str, Any] | None = None
    values: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    index: bool = False
    lost_files: tuple[str, ...] = ()
    mask: Callable[[], object] | None = None

    def drop(self, *names: str) -> None:
        for name in names:
            del self.specs[name]

    def put(self, name: str, dtype: str, *shape: int) -> None:
        self.specs[name] = TensorSpec(name, dtype, shape)

    def rename(self, old: str, new: str) -> None:
        found = self.specs.pop(old)
        self.specs[new] = TensorSpec(new, found.dtype, found.shape)

    @property
    def inner(self) -> dict[str, Any]:
        """The config of the draft's layers."""
        layer: dict[str, Any] = self.config.get("transformer_layer_config", self.config)
        return layer


def draft(kind: str) -> Draft:
    """A whole drafter of ``kind``."""
    layout, config = KINDS[kind]
    config = json.loads(json.dumps(config))
    table = expected_tensors(LAYOUTS_BY_NAME[layout], config)
    assert table is not None
    made = Draft(config, {})
    for row in table.values():
        wanted = row.required or (row.name.startswith("fc_norm.") and config.get("fc_norm"))
        wanted = wanted or (kind.startswith("speculators-") and "eagle" in kind and row.name == "embed_tokens.weight")
        wanted = wanted or (kind == "dspark" and row.name in ("embed_tokens.weight", "lm_head.weight"))
        wanted = wanted or (kind == "eagle3" and row.name in ("lm_head.weight", "d2t", "t2d"))
        if wanted:
            assert row.shape is not None
            shape = [size or len(TAPS) * H for size in row.shape]  # the legacy config does not count its taps
            made.put(row.name, {"float": "BF16", "ids": "I64"}.get(row.dtype, row.dtype), *shape)
    return made


def pack(made: Draft, leaves: Iterable[str], dialect: str, *, inputs: bool = False) -> list[str]:
    """Turn linears whose last name is in ``leaves`` into planes; their modules, the config is the caller's."""
    modules = [
        name.removesuffix(".weight")
        for name, spec in made.specs.items()
        if name.endswith(".weight") and name.split(".")[-2] in set(leaves) and len(spec.shape) == 2
    ]
    for module in modules:
        rows, columns = made.specs[f"{module}.weight"].shape
        made.drop(f"{module}.weight")
        for spec in planes(module, dialect, rows, columns):
            made.specs[spec.name] = spec
        if inputs:
            leaf, shape = ("input_scale", ()) if dialect == "modelopt" else ("input_global_scale", (1,))
            made.put(f"{module}.{leaf}", "F32", *shape)
    return modules


def value_of(spec: TensorSpec) -> bytes:
    """Bytes that depend on the name: small normal values, scales near one, offsets that spread a small vocabulary."""
    random = np.random.default_rng(zlib.crc32(spec.name.encode()))
    if spec.dtype == "BF16":
        wide = (random.standard_normal(spec.elements) * 0.05).astype(np.float32).view(np.uint32)
        return (wide >> 16).astype(np.uint16).tobytes()
    if spec.dtype == "F8_E4M3":
        return random.integers(0x30, 0x40, spec.elements, np.uint8).tobytes()
    if spec.dtype == "I64":
        return np.arange(spec.elements, dtype=np.int64).tobytes()
    if spec.dtype == "BOOL":
        return bytes(1 if number % 2 == 0 else 0 for number in range(spec.elements))
    if spec.dtype == "F32":
        module = spec.name.rpartition(".")[0]
        for leaf, fused in (
            ("q_proj", "qkv"),
            ("k_proj", "qkv"),
            ("v_proj", "qkv"),
            ("gate_proj", "gu"),
            ("up_proj", "gu"),
        ):
            module = module.replace(leaf, fused)
        power = -float(4 + zlib.crc32(module.encode()) % 4)
        power = -power if "global_scale" in spec.name else power
        return np.full(spec.elements, 2.0**power, np.float32).tobytes()
    codes = random.integers(0, 256, spec.size_bytes, np.uint8)
    return np.where(codes == 0xA5, 0xA4, codes).astype(np.uint8).tobytes()  # the pattern of oracle/vllm_loader.py


def write(made: Draft, folder: Path) -> Path:
    """Write a drafter: one weight file, or more as ``files`` says, with an index if ``index``."""
    folder.mkdir(parents=True, exist_ok=True)
    by_file: dict[str, list[TensorSpec]] = {}
    for name, spec in made.specs.items():
        by_file.setdefault(made.files.get(name, "model.safetensors"), []).append(spec)
    for file, specs in by_file.items():
        if file not in made.lost_files:
            header = encode_header(specs, {"format": "pt"})
            payload = b"".join(made.values.get(spec.name) or value_of(spec) for spec in header.order)
            (folder / file).write_bytes(header.prefix + payload)
    if made.index:
        weights = {name: made.files.get(name, "model.safetensors") for name in made.specs}
        total = sum(spec.size_bytes for spec in made.specs.values())
        index = {"metadata": {"total_size": total}, "weight_map": weights}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(made.config))
    if made.quant_config is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(made.quant_config))
    if made.mask is not None:
        import torch

        torch.save(made.mask(), folder / "mask_embedding.pt")
    return folder
