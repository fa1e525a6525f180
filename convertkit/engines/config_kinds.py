"""Config values of the wrong kind: engines crash on them in many ways, so nothing is said but which value it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convertkit.layouts.fields import CHECKS
from convertkit.layouts.meaning import MAX_LAYERS

MAX_SIZE = 1 << 40
"""No size, token or layer number of a model is larger."""

KINDS: Mapping[str, tuple[str, ...]] = {
    "counted": ("num_hidden_layers", "num_experts", "depth"),
    "whole": (
        "vocab_size", "draft_vocab_size", "hidden_size", "target_hidden_size", "intermediate_size",
        "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings",
        "max_window_layers", "block_size", "num_target_layers", "markov_rank", "conv_kernel_size", "conv_group_size",
        "selector_rank", "selector_top_k", "swa_window_size", "num_aux_hidden_states", "num_aux_layers",
        "moe_intermediate_size", "shared_expert_intermediate_size", "linear_num_key_heads", "linear_key_head_dim",
        "linear_num_value_heads", "linear_value_head_dim", "linear_conv_kernel_dim", "decoder_sparse_step",
        "patch_size", "temporal_patch_size", "num_position_embeddings", "out_hidden_size", "spatial_merge_size",
        "in_channels",
    ),
    "any whole": ("sliding_window", "mask_token_id", "pard_token", "ptd_token_id", "dspark_noise_token_id"),
    "number": ("rms_norm_eps", "input_embedding_scale", "output_multiplier", "final_logit_softcapping"),
    "numbers": (
        "target_layer_ids", "aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids", "dspark_target_layer_ids",
        "layer_ids", "mlp_only_layers",
    ),
    "words": ("architectures", "layer_types"),
    "word": ("model_type", "hidden_act", "speculators_model_type", "quant_method", "quant_algo", "format"),
    "object": (
        "dflash_config", "eagle_config", "transformer_layer_config", "text_config", "vision_config", "rope_parameters",
        "quantization_config", "compression_config", "config_groups", "quantized_layers", "quantization", "producer",
    ),
}  # fmt: skip
"""Keys of configs by the kind that their value must be of; null is as absent."""

KIND_OF: Mapping[str, str] = {key: kind for kind, keys in KINDS.items() for key in keys}
"""The kind of each key."""
_SECTIONS = ("transformer_layer_config", "dflash_config", "eagle_config", "text_config", "vision_config",
             "rope_parameters", "quantization_config", "compression_config", "quantization")  # fmt: skip
DEPTH = 4
MAX_EXPERTS = 1 << 20
"""Experts of all layers are counted one by one; no model has a tenth."""


def wrong_kinds(config: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """Keys whose value is of the wrong kind or of no model's size, at the top and in the sections of a config."""
    for key, value in config.items():
        kind = KIND_OF.get(key)
        if kind is not None and value is not None and not is_kind(kind, value):
            yield key
        elif key in _SECTIONS and isinstance(value, Mapping) and depth < DEPTH:
            yield from wrong_kinds(value, depth + 1)
    layers, experts = config.get("num_hidden_layers"), config.get("num_experts")
    if type(layers) is int and type(experts) is int and layers * experts > MAX_EXPERTS:
        yield "num_experts"


def is_kind(kind: str, value: Any) -> bool:
    """Whether a value is of a kind of ``KINDS``, and of some model's size."""
    if kind == "numbers":
        return isinstance(value, list) and all(type(item) is int and abs(item) < MAX_SIZE for item in value)
    if kind == "any whole":  # minus one is how some say none; engines load it
        return type(value) is int and abs(value) < MAX_SIZE
    if kind == "counted":
        return type(value) is int and 0 <= value <= MAX_LAYERS
    return CHECKS[kind](value) and not (type(value) is int and value >= MAX_SIZE)
