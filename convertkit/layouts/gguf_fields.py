"""Config fields as metadata of a GGUF; ``gguf_reading`` is the way back.

Format facts: llama.cpp 0.5.0-dev (``conversion/base.py`` ``set_gguf_parameters``, ``qwen.py``, ``llama.py``,
``gemma.py``; readers ``src/llama-model.cpp``, ``src/models/dflash.cpp``, ``eagle3.cpp``). Keys are given without the
architecture's prefix. Types matter: readers refuse another width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from convertkit.containers.gguf_values import Scalar, Value, f32, numbers, text, truth, u32
from convertkit.drafter import DrafterSpec
from convertkit.layouts.meaning import window_of

MAX_HEAD = 1 << 16
"""No head is wider; a config that says so is not believed before its tensors are compared."""
ROPE_SCALINGS = ("linear", "yarn")
"""Rope scalings that are metadata; ``llama3`` is a tensor of factors, ``default`` is nothing."""


@dataclass(frozen=True, slots=True)
class MetaField:
    """One number: key, type and field of a causal model's config. ``archs`` empty means all."""

    key: str
    kind: str
    config: str
    archs: tuple[str, ...] = ()


MODEL_FIELDS = (
    MetaField("block_count", "u32", "num_hidden_layers"),
    MetaField("context_length", "u32", "max_position_embeddings"),
    MetaField("embedding_length", "u32", "hidden_size"),
    MetaField("feed_forward_length", "u32", "intermediate_size"),
    MetaField("attention.head_count", "u32", "num_attention_heads"),
    MetaField("attention.head_count_kv", "u32", "num_key_value_heads"),
    MetaField("attention.layer_norm_rms_epsilon", "f32", "rms_norm_eps"),
    MetaField("attention.key_length", "u32", "head_dim"),
    MetaField("attention.value_length", "u32", "head_dim"),
    MetaField("vocab_size", "u32", "vocab_size", ("llama",)),
    MetaField("rope.dimension_count", "u32", "head_dim", ("llama",)),
    MetaField("expert_count", "u32", "num_experts", ("qwen3moe",)),
    MetaField("expert_used_count", "u32", "num_experts_per_tok", ("qwen3moe",)),
    MetaField("expert_feed_forward_length", "u32", "moe_intermediate_size", ("qwen3moe",)),
    MetaField("attention.sliding_window", "u32", "sliding_window", ("gemma3",)),
    MetaField("final_logit_softcapping", "f32", "final_logit_softcapping", ("gemma3",)),
)
SPEC_FIELDS = (
    # key, type, field of DrafterSpec
    ("block_count", "u32", "layers"),
    ("embedding_length", "u32", "hidden"),
    ("feed_forward_length", "u32", "intermediate"),
    ("attention.head_count", "u32", "heads"),
    ("attention.head_count_kv", "u32", "kv_heads"),
    ("attention.layer_norm_rms_epsilon", "f32", "eps"),
    ("attention.key_length", "u32", "head_dim"),
    ("attention.value_length", "u32", "head_dim"),
)
DFLASH_FIELDS = (
    ("block_size", "u32", "block_size"),
    ("conv_kernel_size", "u32", "conv_kernel"),
    ("conv_group_size", "u32", "conv_group"),
    ("selector_rank", "u32", "selector_rank"),
    ("selector_top_k", "u32", "selector_top_k"),
    ("final_logit_softcapping", "f32", "softcap"),
)
EAGLE_FIELDS = (
    ("vocab_size", "u32", "vocabulary"),
    ("rope.dimension_count", "u32", "head_dim"),
    ("target_hidden_size", "u32", "target_hidden"),
)

MODEL_ARCHS: Mapping[str, tuple[str, str]] = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "qwen3moe": ("qwen3_moe", "Qwen3MoeForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
}
"""Architecture to ``model_type`` and class of transformers. Mistral is ``llama`` too."""
ARCH_OF_MODEL: Mapping[str, str] = {**{row[0]: arch for arch, row in MODEL_ARCHS.items()}, "mistral": "llama"}

FILE_TYPES: Mapping[str, int] = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q4_k_s": 14, "q4_k_m": 15,
    "q5_k_s": 16, "q5_k_m": 17, "q6_k": 18, "bf16": 32, "mxfp4": 38, "nvfp4": 39,
}  # fmt: skip
"""``general.file_type`` (gguf 0.19.0 ``LlamaFileType``)."""

TARGETS_WITH_LAYER_INPUTS = frozenset({
    "bailing_moe_v3", "deepseek_v4", "gemma4", "gemma4_text", "gpt_oss", "hunyuan_vl", "lfm2", "llama", "mimo_v2",
    "minimax", "minimax_m2", "mistral", "nanbeige", "nemotron_h", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5",
    "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text",
})  # fmt: skip
"""``model_type`` of targets whose graph in llama.cpp 0.5.0-dev hands out the inputs of its layers."""
TARGETS_WITH_LAST_OUTPUT = frozenset({"deepseek_v4", "mimo_v2", "nemotron_h"})
"""Of those, the ones that also hand out the output of their last layer."""


def _scalar(kind: str, value: Any) -> Scalar:
    return f32(float(value)) if kind == "f32" else u32(int(value))


def model_metadata(arch: str, config: Mapping[str, Any]) -> dict[str, Value]:
    """Metadata of a causal model from the values of its config (defaults filled in by ``model_values``)."""
    made: dict[str, Value] = {}
    for row in MODEL_FIELDS:
        value = config.get(row.config)
        if value is not None and (not row.archs or arch in row.archs):
            made[f"{arch}.{row.key}"] = _scalar(row.kind, value)
    rope = rope_parameters(config)
    made.update(_rope(arch, float(rope["rope_theta"]), str(rope.get("rope_type", "default")), rope))
    local = rope.get("local_theta")
    if local is not None:
        made[f"{arch}.rope.freq_base_swa"] = f32(float(local))
    return made


def model_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config with the defaults that transformers fills in for what llama.cpp must be told."""
    values = dict(config)
    heads = values.get("num_attention_heads")
    values.setdefault("num_key_value_heads", heads)
    if values.get("head_dim") is None and heads and values.get("hidden_size"):
        values["head_dim"] = values["hidden_size"] // heads
    values.setdefault("rms_norm_eps", 1e-6)
    return values


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Theta, type and numbers, from either spelling; ``local_theta`` is that of Gemma's sliding layers."""
    stated = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    local = config.get("rope_local_base_freq")
    if isinstance(stated.get("full_attention"), Mapping):
        sliding = stated.get("sliding_attention") or {}
        local = sliding.get("rope_theta", local)
        stated = dict(stated["full_attention"])
    stated.setdefault("rope_theta", config.get("rope_theta") or 10_000.0)
    stated["rope_type"] = stated.get("rope_type") or stated.get("type") or "default"
    return stated if local is None else {**stated, "local_theta": local}


def _rope(arch: str, theta: float, kind: str, parameters: Mapping[str, Any]) -> dict[str, Value]:
    made: dict[str, Value] = {f"{arch}.rope.freq_base": f32(theta)}
    if kind in ROPE_SCALINGS and parameters.get("factor") is not None:
        made[f"{arch}.rope.scaling.type"] = text(kind)
        made[f"{arch}.rope.scaling.factor"] = f32(float(parameters["factor"]))
        original = parameters.get("original_max_position_embeddings")
        if kind == "yarn" and original is not None:
            made[f"{arch}.rope.scaling.original_context_length"] = u32(int(original))
        for key, name in YARN_NUMBERS.items():
            if kind == "yarn" and parameters.get(name) is not None:
                made[f"{arch}.rope.scaling.{key}"] = f32(float(parameters[name]))
    return made


YARN_NUMBERS: Mapping[str, str] = {
    "yarn_ext_factor": "extrapolation_factor",
    "yarn_attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}


def rope_factors(config: Mapping[str, Any]) -> bytes | None:
    """``rope_freqs.weight`` of a ``llama3`` rope scaling: FP32 [head_dim/2], or None. FP32 arithmetic throughout
    (llama.cpp 0.5.0-dev ``conversion/llama.py`` ``generate_extra_tensors``)."""
    rope = rope_parameters(config)
    if str(rope["rope_type"]).lower() != "llama3":
        return None
    dim = min(int(config["head_dim"]), MAX_HEAD)
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    frequencies = np.float32(1.0) / np.power(np.float32(rope["rope_theta"]), exponent, dtype=np.float32)
    factor, low, high = (float(rope.get(key, default)) for key, default in (
        ("factor", 8.0), ("low_freq_factor", 1.0), ("high_freq_factor", 4.0)))  # fmt: skip
    length = float(rope.get("original_max_position_embeddings", 8192))
    factors = []
    for wave in (np.float32(2 * np.pi) / frequencies).tolist():
        if wave < length / high:
            factors.append(1.0)
        elif wave > length / low:
            factors.append(factor)
        else:
            smooth = (length / wave - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, "<f4").tobytes()


def drafter_metadata(arch: str, spec: DrafterSpec, context: int | None, target_mrope: bool) -> dict[str, Value]:
    """Metadata of a drafter. Everything that llama.cpp would otherwise guess is written.

    DFlash counts the inputs of target layers, one more than the taps; so does EAGLE-3, whose configs spell them that
    way already.
    """
    own = DFLASH_FIELDS if arch == "dflash" else EAGLE_FIELDS
    made: dict[str, Value] = {}
    if context is not None:
        made[f"{arch}.context_length"] = u32(context)
    for key, kind, name in (*SPEC_FIELDS, *own):
        value = getattr(spec, name)
        if value is not None:
            made[f"{arch}.{key}"] = _scalar(kind, value)
    if spec.rope is not None:
        made.update(_rope(arch, spec.rope.theta, spec.rope.kind, dict(spec.rope.numbers)))
    made[f"{arch}.target_layers"] = numbers("i32", [tap + 1 for tap in spec.taps or ()])
    made.update(_dflash(spec, target_mrope) if arch == "dflash" else _eagle(spec))
    return made


def _eagle(spec: DrafterSpec) -> dict[str, Value]:
    return {
        "eagle3.norm_before_residual": truth(spec.norm_before_residual),
        "eagle3.norm_before_fc": truth(spec.norm_before_fc),
    }


def _dflash(spec: DrafterSpec, target_mrope: bool) -> dict[str, Value]:
    made: dict[str, Value] = {"dflash.attention.causal": truth(all(layer.causal for layer in spec.attention))}
    window = window_of(spec)
    if window is not None:
        made["dflash.attention.sliding_window"] = u32(window)
        pattern = [layer.window is not None for layer in spec.attention]
        made["dflash.attention.sliding_window_pattern"] = numbers("bool", pattern)
    if spec.embedding_scale != 1.0:
        made["dflash.embedding_scale"] = f32(spec.embedding_scale)
    if spec.output_multiplier != 1.0:
        made["dflash.logit_scale"] = f32(spec.output_multiplier)
    if spec.head_dim is not None and spec.rope is not None and spec.rope.fraction != 1.0:
        made["dflash.rope.dimension_count"] = u32(int(spec.head_dim * spec.rope.fraction))
    if target_mrope and spec.head_dim is not None:
        made["dflash.rope.dimension_sections"] = numbers("i32", [spec.head_dim // 2, 0, 0, 0])
    if spec.markov_rank:
        made["dflash.sample_from_anchor"] = truth(spec.sample_from_anchor)
        made["dflash.has_confidence_head"] = truth(spec.confidence_head)
    return made
