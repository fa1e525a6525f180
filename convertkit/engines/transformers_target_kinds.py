"""What transformers 5 makes of values in a target's config that no model has: sizes below zero, activations, ropes.

``architectures`` is not read. What its typed classes let pass is refused when the model is built
(``modeling_rope_utils.py:130``, ``activations.py:324``, ``models/qwen3_5_moe/modeling_qwen3_5_moe.py``), or never.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convertkit.engines.config_checks import check_layers, check_llama
from convertkit.engines.model import stop
from convertkit.engines.model_types import MODEL_TYPES
from convertkit.engines.target_kinds import (
    INTERVAL,
    Parts,
    by_interval,
    check_model_type,
    check_moe_head,
    negatives,
    read_parts,
    with_sizes,
)
from convertkit.engines.transformers_drafter import ACTIVATIONS
from convertkit.engines.transformers_rope import check_rope
from convertkit.engines.transformers_tables import MODELS
from convertkit.layouts.meaning import MAX_LAYERS

UNREAD = ("max_window_layers", "max_position_embeddings")
COUNTED: Mapping[str, str] = {"num_hidden_layers": "none", "depth": "none", "spatial_merge_size": "square",
                              "decoder_sparse_step": "square", "num_experts": "none"}  # fmt: skip
"""Sizes below zero that count as none, and those whose sign is lost."""
PLAIN = ("llama", "qwen3", "qwen3_5_text")
"""Model types whose weights are taken as they are stored (``conversion_mapping.py:1054``)."""
VALUES = "transformers.values"


def settle_target(config: Mapping[str, Any]) -> Parts | None:
    """The config as transformers' classes take it, None for a class that the tables do not describe. Raises Stop where
    transformers stops."""
    kind = check_model_type(config, "transformers")
    if kind not in MODELS:
        return None
    parts = read_parts({key: value for key, value in config.items() if key != "architectures"}, kind)
    check_layers(parts.text, "transformers")
    if parts.kind == "llama":
        check_llama(parts.text, "transformers")
    check_moe_head(parts, "load_weights", "transformers")
    if parts.kind == "qwen3_moe" and parts.text.get("head_dim", 1) is None:
        raise stop("load_weights", "'head_dim' is null, which is no size", VALUES, key="head_dim")
    _model_types(parts)
    with_sizes(parts)
    _sizes(parts)
    _experts(parts)
    _activations(parts)
    check_rope(parts.text, hybrid=parts.kind.startswith("qwen3_5"))
    if parts.kind.startswith("qwen3_5") and parts.text.get("layer_types") is None:
        interval = parts.text.get("full_attention_interval", INTERVAL)
        parts.text["layer_types"] = by_interval(parts.text["num_hidden_layers"], interval)
    return parts


def _model_types(parts: Parts) -> None:
    """Those of parts only name what is done to the weights of experts; they are looked up."""
    for section in (parts.text, parts.tower or {}):
        kind = section.get("model_type")
        if isinstance(kind, list | Mapping):
            message = f"unhashable type: {type(kind).__name__!r}"
            raise stop("load_weights", message, "transformers.model-type", key="model_type")
    if parts.tower is not None:
        parts.tower.pop("model_type", None)
        kind = parts.text.setdefault("model_type", parts.kind)
        parts.text["model_type"] = kind if isinstance(kind, str) else "none"
        if kind not in (parts.kind, *PLAIN) and parts.text["model_type"] in MODEL_TYPES:
            parts.doubt = "a model type inside that is another is not described"


def _sizes(parts: Parts) -> None:
    """Sizes below zero, which torch refuses for tensors."""
    for place, key, value in list(negatives(parts)):
        section = parts.tower if place == "tower" and parts.tower is not None else parts.text
        how = COUNTED.get(key)
        if key in UNREAD or (key == "intermediate_size" and parts.kind == "qwen3_moe" and not _has_dense(parts)):
            del section[key]
        elif how is None or (key == "num_experts" and parts.kind != "qwen3_moe"):
            raise stop("load_weights", f"'{key}' is {value}, which is no size", VALUES, key=key)
        else:
            parts.count(section, key, 0 if how == "none" else -value, "transformers")
    for part, key in ((parts.text, "num_attention_heads"), (parts.text, "num_key_value_heads"),
                      (parts.tower or {}, "num_heads")):  # fmt: skip
        if part.get(key) == 0:
            raise stop("load_weights", f"integer division or modulo by zero: '{key}' is 0", VALUES, key=key)
    if parts.tower is not None and parts.tower["num_heads"] > parts.tower["hidden_size"]:
        message = "0.0 cannot be raised to a negative power: heads of the tower have no size"
        raise stop("load_weights", message, VALUES, key="num_heads")


def _has_dense(parts: Parts) -> bool:
    """Whether a Qwen3-MoE has a layer without experts."""
    text = parts.text
    alone = bool(text.get("mlp_only_layers")) or text["num_experts"] <= 0
    return alone or abs(text.get("decoder_sparse_step", 1)) != 1


def _experts(parts: Parts) -> None:
    """A Qwen3-MoE without experts has dense layers; every step-th has experts if there are any."""
    if parts.kind != "qwen3_moe":
        return
    layers, only = range(min(parts.text["num_hidden_layers"], MAX_LAYERS)), parts.text.get("mlp_only_layers") or []
    if parts.text["num_experts"] == 0:
        parts.text["mlp_only_layers"] = list(layers)
    elif parts.text.get("decoder_sparse_step", 1) == 0 and not set(layers) <= set(only):
        message = "integer modulo by zero: 'decoder_sparse_step' is 0"
        raise stop("load_weights", message, VALUES, key="decoder_sparse_step")


def _activations(parts: Parts) -> None:
    for section, default in ((parts.text, "silu"), (parts.tower or {}, "gelu_pytorch_tanh")):
        act = section.get("hidden_act", default)
        if act not in ACTIVATIONS:
            message = f"KeyError: the activation {act!r} is not known"[:200]
            raise stop("load_weights", message, "transformers.activation", key="hidden_act")
    for key in ("patch_size", "temporal_patch_size"):
        if isinstance((parts.tower or {}).get(key), list):
            raise stop("load_weights", f"'{key}' is a list, which is no size", VALUES, key=key)
