"""Layouts of whole models: plain causal language models and multimodal ones, dense, expert and hybrid.

Their names vary more than a table of exact shapes could follow, so rules give roles only. They know the linear
layers of Llama, Qwen 2 and 3 (dense, MoE, hybrid), Mistral, Mixtral, DeepSeek and relatives as transformers 5 saves
them; a name that no rule knows is ``other`` and stays as it is unless the user includes it.

What is left unpacked by default follows what ModelOpt 0.47 disables for W4A16_NVFP4 (head, embeddings, routers,
convolutions and the small gates of linear attention, vision, multi-token prediction).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from convertkit.layouts.drafters import GATE_UP, QKV
from convertkit.layouts.layout import Layout, Rule, config_value


def _rules(role: str, *templates: str) -> tuple[Rule, ...]:
    return tuple(Rule(template, role) for template in templates)


VISION_SEGMENTS = (
    "visual",
    "vision_tower",
    "vision_model",
    "vision_encoder",
    "vit",
    "multi_modal_projector",
    "mm_projector",
    "vision_projector",
    "embed_vision",
    "audio_tower",
    "audio_model",
    "embed_audio",
)
"""Names of modules that hold a vision or audio tower, or its projector."""

VISION = tuple(Rule(f"{{rest}}.{segment}.{{rest}}", "vision") for segment in VISION_SEGMENTS)

LANGUAGE = (
    *_rules("mtp", "mtp.{rest}", "{rest}.mtp.{rest}", "{rest}.nextn.{rest}"),
    *_rules(
        "embedding",
        "{rest}.embed_tokens.weight",
        "{rest}.wte.weight",
        "{rest}.wpe.weight",
        "{rest}.word_embeddings.weight",
        "{rest}.position_embeddings.weight",
        "{rest}.token_type_embeddings.weight",
        "{rest}.tok_embeddings.weight",
    ),
    *_rules("head", "{rest}.lm_head.weight", "{rest}.embed_out.weight"),
    *_rules(
        "router",
        "{rest}.mlp.gate.weight",
        "{rest}.block_sparse_moe.gate.weight",
        "{rest}.feed_forward.router.weight",
        "{rest}.mlp.router.weight",
        "{rest}.router.{x}.weight",
        "{rest}.shared_expert_gate.weight",
    ),
    *_rules(
        "linear-attention gate",
        "{rest}.linear_attn.in_proj_a.weight",
        "{rest}.linear_attn.in_proj_b.weight",
        "{rest}.linear_attn.in_proj_ba.weight",
        "{rest}.linear_attn.conv1d.{x}",
    ),
    *_rules(
        "linear attention",
        "{rest}.linear_attn.in_proj_qkv.weight",
        "{rest}.linear_attn.in_proj_z.weight",
        "{rest}.linear_attn.in_proj_qkvz.weight",
        "{rest}.linear_attn.out_proj.weight",
    ),
    *_rules(
        "expert",
        "{rest}.experts.{e}.gate_proj.weight",
        "{rest}.experts.{e}.up_proj.weight",
        "{rest}.experts.{e}.down_proj.weight",
        "{rest}.experts.{e}.w1.weight",
        "{rest}.experts.{e}.w2.weight",
        "{rest}.experts.{e}.w3.weight",
    ),
    *_rules(
        "attention",
        "{rest}.self_attn.q_proj.weight",
        "{rest}.self_attn.k_proj.weight",
        "{rest}.self_attn.v_proj.weight",
        "{rest}.self_attn.o_proj.weight",
        "{rest}.self_attn.qkv_proj.weight",
        "{rest}.self_attn.q_a_proj.weight",
        "{rest}.self_attn.q_b_proj.weight",
        "{rest}.self_attn.kv_a_proj_with_mqa.weight",
        "{rest}.self_attn.kv_b_proj.weight",
        "{rest}.attention.wq.weight",
        "{rest}.attention.wk.weight",
        "{rest}.attention.wv.weight",
        "{rest}.attention.wo.weight",
    ),
    *_rules(
        "mlp",
        "{rest}.gate_proj.weight",
        "{rest}.up_proj.weight",
        "{rest}.down_proj.weight",
        "{rest}.gate_up_proj.weight",
        "{rest}.feed_forward.w1.weight",
        "{rest}.feed_forward.w2.weight",
        "{rest}.feed_forward.w3.weight",
    ),
    *_rules(
        "norm",
        "{rest}.norm.weight",
        "{rest}.input_layernorm.weight",
        "{rest}.post_attention_layernorm.weight",
        "{rest}.q_norm.weight",
        "{rest}.k_norm.weight",
    ),
    *_rules("bias", "{rest}.bias"),
)

MODEL_FUSED = (
    QKV,
    GATE_UP,
    ("{rest}.w1", "{rest}.w3"),
    ("{rest}.q_a_proj", "{rest}.kv_a_proj_with_mqa"),
    ("{rest}.wq_a", "{rest}.wkv_a_with_mqa"),
    ("{rest}.wq", "{rest}.wk", "{rest}.wv"),
    ("{rest}.to_q", "{rest}.to_k", "{rest}.to_v"),
    ("{rest}.linear_attn.in_proj_qkv", "{rest}.linear_attn.in_proj_z"),
    ("{rest}.linear_attn.in_proj_b", "{rest}.linear_attn.in_proj_a"),
)
"""Parts of one matrix in vLLM 0.33 and SGLang 0.5.23. Siblings only: each expert and the shared expert have their
own ``gate_proj`` and ``up_proj``, so experts are never linked to each other."""

PACKED_ROLES = frozenset({"attention", "mlp", "expert", "linear attention"})

CAUSAL_LM = Layout("causal-lm", "causal-lm", (*VISION, *LANGUAGE), MODEL_FUSED, PACKED_ROLES)
MULTIMODAL_LM = Layout("multimodal-lm", "multimodal-lm", (*VISION, *LANGUAGE), MODEL_FUSED, PACKED_ROLES)
UNKNOWN = Layout("unknown", "unknown", (*VISION, *LANGUAGE), MODEL_FUSED, frozenset())

PREDICTION_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
"""Config fields that count layers of multi-token prediction (vLLM 0.33 ``config/speculative.py``)."""


def with_prediction_layers(layout: Layout, config: Mapping[str, Any]) -> Layout:
    """The layout with layers of multi-token prediction that are numbered on behind those of the model (DeepSeek, GLM,
    MiMo: ``layers.61`` of 61): they are called like layers of the model, and only the config tells them apart."""
    layers = config_value(config, "num_hidden_layers")
    more = [count for key in PREDICTION_KEYS if type(count := config_value(config, key)) is int]
    if layout.kind not in ("causal-lm", "multimodal-lm") or type(layers) is not int or layers < 1 or not more:
        return layout
    numbers = range(layers, layers + min(max(more), MAX_PREDICTION_LAYERS))
    names = [f"{prefix}layers.{number}.{{rest}}" for number in numbers for prefix in LANGUAGE_PREFIXES]
    return replace(layout, rules=(*_rules("mtp", *names), *layout.rules))


MAX_PREDICTION_LAYERS = 16
"""Models have one to three; a config that counts thousands is nonsense, and every rule costs time."""

LANGUAGE_PREFIXES = ("", "language_model.", "language_model.model.")
"""What comes before ``layers`` in a language model, after a leading ``model.``."""
