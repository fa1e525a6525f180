"""What the metadata of a GGUF says, as config fields and drafter specs: the way back of ``gguf_fields``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from convertkit.containers.gguf_values import Numbers, Scalar, Value, plain
from convertkit.drafter import DrafterSpec, LayerAttention, Rope
from convertkit.layouts.gguf_fields import (
    DFLASH_FIELDS,
    EAGLE_FIELDS,
    MODEL_ARCHS,
    MODEL_FIELDS,
    ROPE_SCALINGS,
    SPEC_FIELDS,
    YARN_NUMBERS,
)


def decimal(value: float) -> float:
    """The shortest decimal number that an FP32 value stands for: 1e-06 for the FP32 next to it."""
    return float(str(np.float32(value)))


def read_number(metadata: Mapping[str, Value], key: str) -> Any:
    """A scalar's value, FP32 as the shortest decimal; None if absent."""
    value = metadata.get(key)
    if not isinstance(value, Scalar):
        return None
    return decimal(value.value) if value.kind == "f32" and not isinstance(value.value, str) else value.value


def model_config(arch: str, metadata: Mapping[str, Value]) -> dict[str, Any]:
    """The config fields of a causal model that its metadata states."""
    config: dict[str, Any] = {}
    for row in MODEL_FIELDS:
        value = read_number(metadata, f"{arch}.{row.key}")
        if value is not None and (not row.archs or arch in row.archs):
            config[row.config] = value
    model_type, name = MODEL_ARCHS[arch]
    rope = read_rope(arch, metadata)
    if arch == "gemma3":
        local = read_number(metadata, "gemma3.rope.freq_base_swa") or 10_000.0
        config["rope_parameters"] = {
            "full_attention": rope,
            "sliding_attention": {"rope_theta": local, "rope_type": "default"},
        }
        layers = int(config.get("num_hidden_layers", 0))
        config["layer_types"] = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(layers)]
        config["query_pre_attn_scalar"] = config.get("head_dim")
        config["hidden_activation"] = "gelu_pytorch_tanh"
    else:
        config["rope_parameters"] = rope
        config["hidden_act"] = "silu"
    return {"architectures": [name], "model_type": model_type, **config}


def read_rope(arch: str, metadata: Mapping[str, Value]) -> dict[str, Any]:
    """``rope_parameters`` from metadata."""
    theta = read_number(metadata, f"{arch}.rope.freq_base")
    kind = read_number(metadata, f"{arch}.rope.scaling.type")
    rope: dict[str, Any] = {"rope_theta": 10_000.0 if theta is None else theta, "rope_type": "default"}
    if kind in ROPE_SCALINGS:
        rope["rope_type"] = kind
        names = {"factor": "factor", "original_context_length": "original_max_position_embeddings", **YARN_NUMBERS}
        for key, name in names.items():
            value = read_number(metadata, f"{arch}.rope.scaling.{key}")
            if value is not None:
                rope[name] = value
    return rope


def read_spec(arch: str, metadata: Mapping[str, Value], algorithm: str, vocabulary: int) -> DrafterSpec:
    """What a drafter's metadata says."""
    own = DFLASH_FIELDS if arch == "dflash" else EAGLE_FIELDS
    values: dict[str, Any] = {"vocabulary": vocabulary, "draft_vocabulary": vocabulary, "activation": "silu"}
    for key, _, name in (*SPEC_FIELDS, *own):
        value = read_number(metadata, f"{arch}.{key}")
        if value is not None:
            values[name] = value
    values.setdefault("target_hidden", values.get("hidden"))
    rope = read_rope(arch, metadata)
    numbers_ = tuple(sorted((name, value) for name, value in rope.items() if name not in ("rope_theta", "rope_type")))
    layers = metadata.get(f"{arch}.target_layers")
    taps = tuple(int(item) - 1 for item in plain(layers)) if isinstance(layers, Numbers) else None
    return DrafterSpec(
        algorithm=algorithm,
        backbone="qwen3" if arch == "dflash" else "llama",
        rope=Rope(float(rope["rope_theta"]), str(rope["rope_type"]), numbers_),
        taps=taps,
        attention=_read_attention(arch, metadata, int(values.get("layers", 0))),
        mask_token=read_number(metadata, "tokenizer.ggml.mask_token_id") if arch == "dflash" else None,
        sample_from_anchor=bool(read_number(metadata, "dflash.sample_from_anchor")) if algorithm == "dspark" else False,
        confidence_head=bool(read_number(metadata, "dflash.has_confidence_head")) if algorithm == "dspark" else False,
        norm_before_residual=bool(read_number(metadata, "eagle3.norm_before_residual")),
        norm_before_fc=bool(read_number(metadata, "eagle3.norm_before_fc")),
        embedding_scale=read_number(metadata, "dflash.embedding_scale") or 1.0,
        output_multiplier=read_number(metadata, "dflash.logit_scale") or 1.0,
        **values,
    )


def _read_attention(arch: str, metadata: Mapping[str, Value], layers: int) -> tuple[LayerAttention, ...]:
    causal = True if arch == "eagle3" else bool(read_number(metadata, "dflash.attention.causal"))
    window = read_number(metadata, f"{arch}.attention.sliding_window")
    pattern = metadata.get(f"{arch}.attention.sliding_window_pattern")
    slides = plain(pattern) if isinstance(pattern, Numbers) else [False] * layers
    return tuple(LayerAttention(causal, window if slide else None) for slide in slides)
