"""Fields of transformers' config classes with their types: a value of another type is refused before anything is built.

Read from transformers 5.20.2 (``models/*/configuration_*.py``, ``configuration_utils.py``), whose classes are strict
dataclasses in what a class adds to their common base; 5.19.0 is the same. ``tests/oracle/test_config_fields.py``
compares every field with the classes themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def _whole(value: Any) -> bool:
    return type(value) is int


def _number(value: Any) -> bool:
    return type(value) in (int, float)


def _list_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _word(value: Any) -> bool:
    return isinstance(value, str)


_wholes = _list_of(_whole)

CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "whole": _whole,
    "real": lambda value: type(value) is float,
    "part": lambda value: type(value) is float and 0 <= value <= 1,
    "number": _number,
    "flag": lambda value: type(value) is bool,
    "word": _word,
    "words": _list_of(_word),
    "wholes": _wholes,
    "whole or wholes": lambda value: _whole(value) or _wholes(value),
    "object": lambda value: isinstance(value, Mapping),
}  # fmt: skip
"""What a field of each type takes. A question mark behind the type in the tables: null as well."""


def _fields(**by_type: str) -> dict[str, str]:
    """Field to type, from type to fields; ``_or_null`` behind a type stands for the question mark."""
    return {
        field: kind.replace("_or_null", "?").replace("_", " ")
        for kind, fields in by_type.items()
        for field in fields.split()
    }


_TEXT = _fields(
    whole="vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads max_position_embeddings",
    real="initializer_range rms_norm_eps",
    flag="use_cache tie_word_embeddings attention_bias",
    word="hidden_act",
    number="attention_dropout",
    whole_or_null="pad_token_id bos_token_id",
    whole_or_wholes_or_null="eos_token_id",
    object_or_null="rope_parameters",
)
_LAYERS = _fields(words_or_null="layer_types")
_ROUTED = _fields(
    whole="moe_intermediate_size num_experts_per_tok num_experts", flag="output_router_logits",
    real="router_aux_loss_coef",
)  # fmt: skip
_DELTA = _LAYERS | _fields(
    whole="num_key_value_heads head_dim linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim "
    "linear_num_key_heads linear_num_value_heads",
)
_WHOLE_MODEL = _fields(
    whole="image_token_id video_token_id vision_start_token_id vision_end_token_id", flag="tie_word_embeddings",
    object_or_null="text_config vision_config",
)  # fmt: skip

FIELDS: Mapping[str, Mapping[str, str]] = {
    "llama": _TEXT | _fields(
        whole_or_null="num_key_value_heads head_dim pretraining_tp", number_or_null="attention_dropout",
        flag="mlp_bias", part="initializer_range"),
    "qwen3": _TEXT | _LAYERS | _fields(
        whole="head_dim max_window_layers", whole_or_null="num_key_value_heads sliding_window",
        flag="use_sliding_window"),
    "qwen3_moe": _TEXT | _ROUTED | _fields(
        whole="num_key_value_heads decoder_sparse_step", whole_or_null="sliding_window",
        flag="use_sliding_window norm_topk_prob", wholes_or_null="mlp_only_layers"),
    "qwen3_5_text": _TEXT | _DELTA,
    "qwen3_5_moe_text": {
        field: kind
        for field, kind in (_TEXT | _DELTA | _ROUTED | _fields(whole="shared_expert_intermediate_size")).items()
        if field != "intermediate_size"
    },
    "qwen3_5": _WHOLE_MODEL,
    "qwen3_5_moe": _WHOLE_MODEL,
}  # fmt: skip
"""Field to type by ``model_type``."""

VISION = _fields(
    whole="depth hidden_size intermediate_size num_heads in_channels spatial_merge_size out_hidden_size "
    "num_position_embeddings",
    whole_or_wholes="patch_size temporal_patch_size",
    real="initializer_range",
    word="hidden_act",
    object_or_null="rope_parameters",
)
"""Of the vision towers of Qwen3.5."""


SECTIONS = ("text_config", "vision_config")


def parts(config: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, str]]]:
    """A config and the sections in it that are configs of their own, each with the fields of its class. Nothing for a
    model type that the table lacks."""
    model_type = str(config.get("model_type"))
    if model_type not in FIELDS:
        return
    yield config, FIELDS[model_type]
    if FIELDS[model_type] is _WHOLE_MODEL:
        for name, fields in zip(SECTIONS, (FIELDS[f"{model_type}_text"], VISION), strict=True):
            section = config.get(name)
            if isinstance(section, Mapping):
                yield section, fields


def misfit(config: Mapping[str, Any], fields: Mapping[str, str]) -> str | None:
    """The first field of ``fields`` whose value in ``config`` is not of its type, or None."""
    for field, kind in fields.items():
        if field in config:
            value = config[field]
            if not (kind.endswith("?") if value is None else CHECKS[kind.removesuffix("?")](value)):
                return field
    return None
