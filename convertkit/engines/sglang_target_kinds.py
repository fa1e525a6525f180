"""What SGLang 0.5.23 makes of values in a target's config that no model has: sizes below zero, activations, ropes.

Layers refuse most as they are built (``models/llama.py:116``, ``models/qwen3.py:169``, ``models/qwen3_5.py:1175``,
``models/qwen3_vl.py:176``). Its own classes read the configs of Qwen3.5: the kinds of layers follow from
``full_attention_interval`` (``configs/qwen3_next.py:260``), whatever ``layer_types`` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convertkit.engines.config_checks import check_layers, check_llama
from convertkit.engines.hf_fields import FIELDS
from convertkit.engines.model import Unknown, stop
from convertkit.engines.sglang_config import CLASS_NAME
from convertkit.engines.sglang_rope import check_target_rope
from convertkit.engines.sglang_target_tables import TARGETS
from convertkit.engines.target_kinds import (
    SIZES,
    Parts,
    by_interval,
    check_model_type,
    check_moe_head,
    negatives,
    read_parts,
    with_sizes,
)
from convertkit.engines.transformers_drafter import ACTIVATIONS
from convertkit.layouts.meaning import MAX_LAYERS

HYBRID: Mapping[str, int] = {
    "V": 151936, "H": 2048, "I": 5632, "layers": 48, "nh": 16, "nkv": 2, "hd": 256, "E": 512, "Ie": 512, "Is": 512,
    "lk": 16, "lkd": 128, "lv": 32, "lvd": 128, "conv": 4,
}  # fmt: skip
"""Sizes that SGLang's own class takes for keys that are absent (``configs/qwen3_next.py:185``)."""
OWN_SIZES = {**SIZES, "qwen3_5_text": HYBRID, "qwen3_5_moe_text": HYBRID}
UNREAD = ("max_window_layers", "decoder_sparse_step")
UNREAD_OF: Mapping[str, tuple[str, ...]] = {"qwen3_moe": ("intermediate_size",)}
WITH_WEIGHTS = ("vocab_size", "linear_key_head_dim", "linear_num_key_heads")
"""Only the weights do not fit."""
OF_CLASS: Mapping[str, str] = {
    "LlamaForCausalLM": "llama", "Qwen3ForCausalLM": "qwen3", "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen3_5ForCausalLM": "qwen3_5_text", "Qwen3_5ForConditionalGeneration": "qwen3_5_text",
    "Qwen3_5MoeForCausalLM": "qwen3_5_moe_text", "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe_text",
}  # fmt: skip
"""The model type of the text that each class is made for."""
DEEPSTACK = [8, 16, 24]
"""Blocks whose output goes into the text too, if the config does not say (``configs/qwen3_vl.py:21``)."""
VALUES = "sglang.target-values"


def settle_target(config: Mapping[str, Any]) -> Parts | None:
    """The config as SGLang's classes take it, None for a class that the tables do not describe. Raises Stop where
    SGLang stops, Unknown for a model type that is not described."""
    kind, name = check_model_type(config, "sglang"), _architecture(config)
    if name not in TARGETS:
        return None
    if kind not in FIELDS:
        raise Unknown(f"the model type {kind} is not one that convertkit's tables of SGLang describe")
    parts = read_parts(config, kind)
    _checked(parts)
    check_moe_head(parts, "create", "sglang")
    with_sizes(parts, OWN_SIZES)
    _sizes(parts)
    _heads(parts)
    _activations(parts)
    check_target_rope(parts.text, parts.kind)
    if parts.kind.startswith("qwen3_5"):
        _hybrid(parts)
    if parts.text.get("model_type", parts.kind) != OF_CLASS[name] or parts.kind != OF_CLASS[name]:
        parts.doubt = "a config of another class than the architecture's is not described"
    if parts.tower is not None:
        _tower(parts.tower)
    return parts


def _architecture(config: Mapping[str, Any]) -> str:
    """The architecture that names the class (``model_loader/utils.py:185``); one that no class can have is refused."""
    names = config.get("architectures")
    listed = list(names) if isinstance(names, list | str) else []
    if not listed or not all(isinstance(name, str) for name in listed):
        message = f"architectures is {names!r}, which names no class"[:200]
        raise stop("config", message, "sglang.entries", key="architectures")
    if not CLASS_NAME.fullmatch(listed[0]):
        message = f"Cannot find model module. '{listed[0]}' is not a registered model in the Transformers library"[:200]
        raise stop("create", message, "sglang.entries", key="architectures")
    return str(listed[0])


def _checked(parts: Parts) -> None:
    """What transformers' classes refuse of the values together."""
    check_layers(parts.text, "sglang")
    if parts.kind == "llama":
        check_llama(parts.text, "sglang")


def _sizes(parts: Parts) -> None:
    """Sizes below zero, and numbers of layers, blocks and experts that are none."""
    for place, key, value in list(negatives(parts)):
        section = parts.tower if place == "tower" and parts.tower is not None else parts.text
        if key in UNREAD or key in UNREAD_OF.get(parts.kind, ()):
            del section[key]
        elif key == "num_key_value_heads" and value == -1:
            parts.count(section, key, 1, "SGLang")
        elif key == "shared_expert_intermediate_size":
            parts.count(section, key, 0, "SGLang")
        elif key == "spatial_merge_size":  # it is squared
            parts.count(section, key, -value, "SGLang")
        else:
            stage = "load_weights" if key in WITH_WEIGHTS else "create"
            raise stop(stage, f"'{key}' is {value}, which is no size", VALUES, key=key)
    counts = ["num_hidden_layers", *(["num_experts"] if "moe" in parts.kind else [])]
    empty = next((key for key in counts if parts.text[key] == 0), None)
    empty = "depth" if empty is None and parts.tower is not None and parts.tower["depth"] == 0 else empty
    if empty is not None:
        raise stop("create", f"'{empty}' is 0: there is nothing to build", VALUES, key=empty)


def _heads(parts: Parts) -> None:
    """Heads that none are, and a head of no size, which counts as one whose size is not stated."""
    text = parts.text
    divided = not text.get("head_dim") or parts.kind == "qwen3_moe"  # by the heads (``models/qwen3_moe.py:814``)
    for key in (*(["num_attention_heads"] if divided else []), "num_key_value_heads"):
        if text.get(key) == 0:
            raise stop("create", f"integer division or modulo by zero: '{key}' is 0", VALUES, key=key)
    if text.get("head_dim") == 0:
        if parts.kind == "llama":
            raise stop("create", "0.0 cannot be raised to a negative power: 'head_dim' is 0", VALUES, key="head_dim")
        text["head_dim"] = text["hidden_size"] // text["num_attention_heads"]


def _activations(parts: Parts) -> None:
    """Dense layers and shared experts take one activation; the tower any that transformers knows."""
    dense = parts.kind != "qwen3_moe" and (parts.kind != "qwen3_5_moe_text" or _shared(parts))
    act = parts.text.get("hidden_act", "silu")
    if dense and act != "silu":
        message = f"Unsupported activation: {act}. Only silu is supported for now."[:200]
        raise stop("create", message, "sglang.activation", key="hidden_act")
    act = (parts.tower or {}).get("hidden_act", "gelu_pytorch_tanh")
    if act not in ACTIVATIONS:
        raise stop("create", f"KeyError: {act!r}"[:200], "sglang.activation", key="hidden_act")


def _shared(parts: Parts) -> bool:
    return bool(parts.text["shared_expert_intermediate_size"])


def _hybrid(parts: Parts) -> None:
    """The text of Qwen3.5: its model type, the gate of its attention, which of its layers attend to everything."""
    text = parts.text
    kind, interval = text.get("model_type", parts.kind), text.get("full_attention_interval")
    if kind not in ("qwen3_5_text", "qwen3_5_moe_text"):
        raise stop("create", f"Invalid model type: {kind}"[:200], "sglang.model-type", key="model_type")
    if not isinstance(interval, int | float) or not interval:
        message = f"the layers follow from full_attention_interval, which is {interval!r}"[:200]
        raise stop("create", message, VALUES, key="full_attention_interval")
    gate = text.get("attn_output_gate", True)
    if not isinstance(gate, int):
        raise stop("create", f"attn_output_gate is {gate!r}, which is no flag"[:200], VALUES, key="attn_output_gate")
    text["layer_types"] = by_interval(text["num_hidden_layers"], interval)
    if gate < 0:
        parts.doubt = "'attn_output_gate' in the config is less than none"


def _tower(tower: dict[str, Any]) -> None:
    """The vision tower of Qwen3.5 (``models/qwen3_vl.py:382``)."""
    tower.pop("model_type", None)
    for key in ("patch_size", "temporal_patch_size"):
        if isinstance(tower[key], list):
            raise stop("create", f"'{key}' is {tower[key]!r}, which is no size"[:200], VALUES, key=key)
    if not 0 < tower["num_heads"] <= tower["hidden_size"]:
        message = f"division by zero: 'num_heads' is {tower['num_heads']}, for a width of {tower['hidden_size']}"
        raise stop("create", message, VALUES, key="num_heads")
    taps = tower.get("deepstack_visual_indexes", DEEPSTACK)
    if not isinstance(taps, list | str | Mapping):
        message = f"object of type '{type(taps).__name__}' has no len()"
        raise stop("create", message, VALUES, key="deepstack_visual_indexes")
    if len(taps) > MAX_LAYERS:
        raise Unknown("'deepstack_visual_indexes' in the config has more entries than a model has layers")
    tower["deepstack_visual_indexes"] = list(range(len(taps)))
