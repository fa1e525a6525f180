"""``config.json`` of the models that the generator makes.

Keys and their defaults are those of the published drafters and of transformers 5.17.0. Each writer takes the sizes
(``drafters.sizes_of``), what a kind fixes whatever its scale, and the storage dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TRANSFORMERS = "5.17.0"
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_LAYER_TYPES = {"S": "sliding_attention", "F": "full_attention"}


def _qwen3_keys(sizes: Mapping[str, int], dtype: str) -> dict[str, Any]:
    """What every Qwen3-shaped config states."""
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": _DTYPES[dtype],
        "head_dim": sizes["hd"],
        "hidden_act": "silu",
        "hidden_size": sizes["H"],
        "initializer_range": 0.02,
        "intermediate_size": sizes["I"],
        "max_position_embeddings": 262144,
        "model_type": "qwen3",
        "num_attention_heads": sizes["nh"],
        "num_hidden_layers": sizes["L"],
        "num_key_value_heads": sizes["nkv"],
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False,
        "transformers_version": TRANSFORMERS,
        "use_cache": True,
        "vocab_size": sizes["V"],
    }


def _ends(sizes: Mapping[str, int]) -> dict[str, Any]:
    """Begin and end tokens: the last ids but one and two of the vocabulary."""
    return {"bos_token_id": sizes["V"] - 3, "eos_token_id": sizes["V"] - 2, "pad_token_id": None}


def dflash(sizes: Mapping[str, int], fixed: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """A flat z-lab DFlash config; ``block_at_top`` puts the block size where older revisions have it."""
    block = {"block_size": fixed["block_size"]}
    at_top = fixed.get("block_at_top", False)
    rope: dict[str, Any] = {"rope_theta": fixed["theta"], "rope_type": "default"}
    if "yarn_factor" in fixed:
        rope = {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": fixed["yarn_factor"],
            "original_max_position_embeddings": 4096, "rope_theta": fixed["theta"], "rope_type": "yarn",
        }  # fmt: skip
    window = fixed.get("window")
    inner = {
        "mask_token_id": sizes["mask"],
        "target_layer_ids": list(fixed["tapped"]),
        **({} if at_top else block),
    }
    return _sorted({
        "architectures": ["DFlashDraftModel"],
        **_qwen3_keys(sizes, dtype),
        **_ends(sizes),
        **(block if at_top else {}),
        **({"is_causal": fixed["is_causal"]} if "is_causal" in fixed else {}),
        "dflash_config": _sorted(inner),
        "layer_types": [_LAYER_TYPES[letter] for letter in fixed["layers"]],
        "max_window_layers": sizes["L"] if window is None else 0,
        "num_target_layers": fixed["N"],
        "rope_parameters": rope,
        "sliding_window": window,
        "use_sliding_window": window is not None,
    })  # fmt: skip


def dflash2(sizes: Mapping[str, int], fixed: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """DFlash with the keys of the dynamic convolutions and of the candidate selector."""
    made = dflash(sizes, fixed, dtype)
    inner = {
        **made["dflash_config"],
        "conv_group_size": sizes["group"],
        "conv_kernel_size": sizes["taps"],
        "selector_rank": sizes["rank"],
        "selector_top_k": sizes["top"],
    }
    return {**made, "architectures": ["DFlash2DraftModel"], "dflash_config": _sorted(inner)}


def qwen3(sizes: Mapping[str, int], fixed: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Qwen3ForCausalLM."""
    return _sorted({
        "architectures": ["Qwen3ForCausalLM"],
        **_qwen3_keys(sizes, dtype),
        **_ends(sizes),
        "layer_types": ["full_attention"] * sizes["L"],
        "max_window_layers": sizes["L"],
        "rope_parameters": {"rope_theta": fixed["theta"], "rope_type": "default"},
        "sliding_window": None,
        "use_sliding_window": False,
    })  # fmt: skip


def qwen3_moe(sizes: Mapping[str, int], fixed: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Qwen3MoeForCausalLM: every layer has routed experts."""
    made = qwen3(sizes, fixed, dtype)
    del made["layer_types"], made["max_window_layers"]
    return _sorted({
        **made,
        "architectures": ["Qwen3MoeForCausalLM"],
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": sizes["Ie"],
        "norm_topk_prob": True,
        "num_experts": sizes["E"],
        "num_experts_per_tok": sizes["top"],
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
    })  # fmt: skip


def _hybrid_text(sizes: Mapping[str, int], fixed: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Text part of Qwen3.5: every ``full_every``-th layer has full attention, the others linear attention."""
    every = fixed["full_every"]
    kinds = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(sizes["L"])]
    text = _qwen3_keys({"I": 0, **sizes}, dtype)
    del text["transformers_version"]
    return {
        **text,
        **_ends(sizes),
        "attn_output_gate": True,
        "full_attention_interval": every,
        "layer_types": kinds,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": sizes["lkd"],
        "linear_num_key_heads": sizes["lk"],
        "linear_num_value_heads": sizes["lv"],
        "linear_value_head_dim": sizes["lvd"],
        "partial_rotary_factor": 0.25,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [(sizes["hd"] // 8 + more) // 3 for more in (2, 1, 0)],
            "partial_rotary_factor": 0.25,
            "rope_theta": fixed["theta"],
            "rope_type": "default",
        },
    }


def _vision(sizes: Mapping[str, int]) -> dict[str, Any]:
    return {
        "deepstack_visual_indexes": [],
        "depth": sizes["depth"],
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": sizes["Hv"],
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": sizes["Iv"],
        "num_heads": sizes["nhv"],
        "num_position_embeddings": sizes["positions"],
        "out_hidden_size": sizes["H"],
        "patch_size": sizes["patch"],
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }


def _media_tokens(sizes: Mapping[str, int]) -> dict[str, Any]:
    """Ids of the image and video tokens, below the begin and end tokens."""
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    return {name: sizes["V"] - 8 + place for place, name in enumerate(names)}


def qwen3_5_moe(sizes: Mapping[str, int], fixed: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Qwen3_5MoeForConditionalGeneration: nested text and vision configs."""
    text = _hybrid_text(sizes, fixed, dtype)
    del text["intermediate_size"]
    text |= {
        "model_type": "qwen3_5_moe_text",
        "moe_intermediate_size": sizes["Ie"],
        "num_experts": sizes["E"],
        "num_experts_per_tok": sizes["top"],
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": sizes["Is"],
    }
    return _sorted({
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        **_media_tokens(sizes),
        "dtype": _DTYPES[dtype],
        "model_type": "qwen3_5_moe",
        "text_config": _sorted(text),
        "tie_word_embeddings": False,
        "transformers_version": TRANSFORMERS,
        "vision_config": _sorted({**_vision(sizes), "model_type": "qwen3_5_moe_vision"}),
    })  # fmt: skip


def qwen3_5(sizes: Mapping[str, int], fixed: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Qwen3_5ForConditionalGeneration, for a target of which only the ends are stored."""
    vision = {"depth": 0, "Hv": 32, "Iv": 64, "nhv": 2, "patch": 16, "positions": 16, **sizes}
    return _sorted({
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        **_media_tokens(sizes),
        "dtype": _DTYPES[dtype],
        "model_type": "qwen3_5",
        "text_config": _sorted({**_hybrid_text(sizes, fixed, dtype), "model_type": "qwen3_5_text"}),
        "tie_word_embeddings": False,
        "transformers_version": TRANSFORMERS,
        "vision_config": _sorted({**_vision(vision), "model_type": "qwen3_5_vision"}),
    })  # fmt: skip


def _sorted(config: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(config.items()))
