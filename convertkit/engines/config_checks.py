"""What transformers 5.20.2 refuses of a config before any engine looks at it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convertkit.engines.model import stop


def check_layers(values: Mapping[str, Any]) -> None:
    """What transformers checks of every config (``configuration_utils.py``)."""
    types, layers = values.get("layer_types"), values.get("num_hidden_layers")
    if isinstance(types, list) and isinstance(layers, int) and len(types) != layers:
        message = f"`num_hidden_layers` ({layers}) must be equal to the number of `layer_types` ({len(types)})"
        raise stop("config", message, "vllm.layer-types", key="layer_types")
    head, rope = values.get("head_dim"), values.get("rope_parameters")
    partial = rope.get("partial_rotary_factor", 1.0) if isinstance(rope, Mapping) else 1.0
    if isinstance(head, int) and head > 4 and head % 2 and partial == 1.0:
        raise stop("config", f"RoPE requires an even head_dim, got {head}", "vllm.rope", key="head_dim")


NEVER_NULL = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
              "hidden_act", "max_position_embeddings", "initializer_range", "rms_norm_eps", "use_cache",
              "tie_word_embeddings", "attention_bias")  # fmt: skip
NEVER_NULL_OF: Mapping[str, tuple[str, ...]] = {
    "qwen3": (*NEVER_NULL, "head_dim", "use_sliding_window", "max_window_layers", "attention_dropout"),
    "llama": (*NEVER_NULL, "mlp_bias"),
}
"""Fields of transformers' config classes that have a default and refuse null, by model type."""
NEVER_NULL_INSIDE = (*NEVER_NULL, "attention_dropout", "linear_conv_kernel_dim", "linear_key_head_dim",
                     "linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads", "num_experts",
                     "moe_intermediate_size", "shared_expert_intermediate_size", "num_experts_per_tok",
                     "output_router_logits", "router_aux_loss_coef", "image_token_id", "video_token_id",
                     "vision_start_token_id", "vision_end_token_id", "in_channels", "depth", "num_heads", "patch_size",
                     "temporal_patch_size", "spatial_merge_size", "out_hidden_size",
                     "num_position_embeddings")  # fmt: skip
"""The same for models with experts, hybrid ones and their towers."""
DTYPES = frozenset({"bfloat16", "float16", "half", "float32", "float", "float64", "double", "auto"})


def check_nulls(config: Mapping[str, Any], model_type: str) -> None:
    """Raises Stop for a field that is null and may not be, and for a dtype that torch has not."""
    for key in NEVER_NULL_OF.get(model_type, NEVER_NULL_INSIDE):
        if key in config and config[key] is None:
            message = f"Validation error for field '{key}': null is not of its type"
            raise stop("config", message, "vllm.config-null", key=key)
    stated = config.get("dtype") or config.get("torch_dtype")
    if isinstance(stated, str) and stated.removeprefix("torch.") not in DTYPES:
        raise stop("config", f"module 'torch' has no attribute '{stated}'", "vllm.config-null", key="dtype")
