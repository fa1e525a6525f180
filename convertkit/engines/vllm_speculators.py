"""How vLLM 0.33 reads a speculators config: what each algorithm sets in the layer config, and as what it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from convertkit.engines.config_checks import check_layers
from convertkit.engines.model import stop
from convertkit.engines.vllm_draft import CLASSES, VllmDraft, captured_layers


def read_nested(config: Mapping[str, Any]) -> VllmDraft:
    """A speculators config as vLLM reads it. Raises Stop where vLLM raises."""
    kind = config.get("speculators_model_type")
    tokens = _proposed_tokens(config)
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        raise stop("config", "Must provide transformer_layer_config", "vllm.speculators-config",
                   key="transformer_layer_config")  # fmt: skip
    if not isinstance(kind, str) or kind not in UPDATES:
        message = f"Expected one of: {', '.join(UPDATES)}; the speculators model type is {kind!r}"
        raise stop("config", message, "vllm.speculators-kinds", key="speculators_model_type")
    values = dict(layer)
    architecture = UPDATES[kind](config, values)
    check_layers(values)
    for key in ("num_attention_heads", "num_key_value_heads"):
        if values.get(key, 0) is None:
            raise stop("config", f"total_{key}: Input should be a valid integer", "vllm.config-keys", key=key)
    method = {"peagle": "eagle3", "dflash2": "dflash"}.get(kind, kind)
    found = CLASSES[architecture]
    return VllmDraft(found, method, architecture, values, True, tokens, kind != "eagle3", captured_layers(values))


def _proposed_tokens(config: Mapping[str, Any]) -> int | None:
    try:
        inner = config["speculators_config"]
        tokens = inner["proposal_methods"][0]["speculative_tokens"]
        inner["verifier"]["name_or_path"]
    except (KeyError, IndexError, TypeError):
        raise stop("config", "Invalid speculators config structure", "vllm.speculators-config",
                   key="speculators_config") from None  # fmt: skip
    if isinstance(tokens, list | Mapping) or (isinstance(tokens, float) and not tokens.is_integer()):
        message = f"num_speculative_tokens: Input should be a valid integer, not {tokens!r}"[:200]
        raise stop("config", message, "vllm.speculators-config", key="speculators_config")
    return tokens if isinstance(tokens, int) else None


def _needed(config: Mapping[str, Any], key: str) -> Any:
    if key not in config:
        raise stop("config", f"KeyError: '{key}'", "vllm.speculators-keys", key=key)
    return config[key]


def _shared(config: Mapping[str, Any], values: dict[str, Any]) -> None:
    values["draft_vocab_size"] = config.get("draft_vocab_size")
    if config.get("target_hidden_size") is not None:
        values["target_hidden_size"] = config["target_hidden_size"]


def _update_dflash(config: Mapping[str, Any], values: dict[str, Any]) -> str:
    _shared(config, values)
    ids = _ids(_needed(config, "aux_hidden_state_layer_ids"), "aux_hidden_state_layer_ids")
    values["eagle_aux_hidden_state_layer_ids"] = ids
    values["dflash_config"] = {
        "mask_token_id": _needed(config, "mask_token_id"),
        "target_layer_ids": [item - 1 for item in ids],
        "sample_from_anchor": config.get("sample_from_anchor", False),
        "causal": not config.get("sliding_window_non_causal", True),
    }
    return "DFlashDraftModel"


def _update_dflash2(config: Mapping[str, Any], values: dict[str, Any]) -> str:
    _update_dflash(config, values)
    for key in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"):
        if config.get(key) is not None:
            values["dflash_config"][key] = config[key]
    return "DFlash2DraftModel"


def _update_dspark(config: Mapping[str, Any], values: dict[str, Any]) -> str:
    stated = [
        name for name in config.get("architectures") or () if name in ("Qwen3DSparkModel", "Qwen3OmniDSparkModel")
    ]
    anchor = config.get("sample_from_anchor", False)
    values |= {"sample_from_anchor": anchor, "dspark_bonus_anchor": not anchor}
    ids = _ids(_needed(config, "aux_hidden_state_layer_ids"), "aux_hidden_state_layer_ids")
    values |= {"eagle_aux_hidden_state_layer_ids": ids, "target_layer_ids": [item - 1 for item in ids]}
    for key in DSPARK_KEYS:
        if config.get(key) is not None:
            values[key] = config[key]
    return stated[0] if stated else "Qwen3DSparkModel"


def _ids(value: Any, key: str) -> list[int]:
    if not isinstance(value, list) or any(not isinstance(item, int) for item in value):
        raise stop("config", f"'{key}' is not a list of layer numbers", "vllm.speculators-keys", key=key)
    return value


def _eagle(config: Mapping[str, Any], values: dict[str, Any], names: Mapping[str, str], residual: bool) -> str:
    _shared(config, values)
    values["norm_before_residual"] = config.get("norm_before_residual", residual)
    values["norm_before_fc"] = config.get("norm_before_fc", False)
    model_type = str(values.get("model_type", "llama"))
    if model_type not in names:
        raise stop("config", f"Unsupported model_type {model_type}", "vllm.speculators-eagle", key="model_type")
    if config.get("eagle_aux_hidden_state_layer_ids"):
        values["eagle_aux_hidden_state_layer_ids"] = config["eagle_aux_hidden_state_layer_ids"]
    return names[model_type]


def _update_eagle3(config: Mapping[str, Any], values: dict[str, Any]) -> str:
    values |= {"fc_norm": config.get("fc_norm", False), "norm_output": config.get("norm_output", False)}
    return _eagle(config, values, {"qwen3": "Eagle3Qwen3ForCausalLM", "llama": "Eagle3LlamaForCausalLM"}, True)


def _update_peagle(config: Mapping[str, Any], values: dict[str, Any]) -> str:
    found = _eagle(config, values, {"qwen3": "PeagleQwen3ForCausalLM", "llama": "PeagleLlamaForCausalLM"}, False)
    values["pard_token"] = _needed(config, "mask_token_id")
    return found


DSPARK_KEYS = (
    "draft_vocab_size",
    "target_hidden_size",
    "mask_token_id",
    "markov_rank",
    "markov_head_type",
    "block_size",
    "enable_confidence_head",
    "confidence_head_with_markov",
    "use_aux_hidden_state",
)
"""Keys of a speculators config that vLLM carries into a DSpark draft, if they are not null."""

UPDATES: Mapping[str, Callable[[Mapping[str, Any], dict[str, Any]], str]] = {
    "eagle3": _update_eagle3,
    "peagle": _update_peagle,
    "dflash": _update_dflash,
    "dflash2": _update_dflash2,
    "dspark": _update_dspark,
}
"""What each ``speculators_model_type`` that vLLM 0.33.0 registers sets in the layer config, and the architecture it is
built as (``speculators/algos.py``)."""
