"""What vLLM 0.33 makes of sizes below zero and of odd model types in a target's config.

Values of another type are refused by transformers' classes before (``hf_fields.py``). Run: every case of
``tests/engines/target_kind_cases.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convertkit.engines.config_kinds import KIND_OF
from convertkit.engines.hf_fields import parts
from convertkit.engines.model import Load, Refused, Stop, Wrong
from convertkit.engines.target_kinds import check_model_type

UNREAD = ("max_window_layers", "decoder_sparse_step")
"""Nothing is computed with these when the model is built."""
UNREAD_OF: Mapping[str, tuple[str, ...]] = {"qwen3_moe": ("intermediate_size",)}
SERVED = ("num_key_value_heads",)
"""One head is built, whatever the tensors have."""
TOWER = "vision_config"


def odd_values(config: Mapping[str, Any]) -> Load | None:
    """What becomes of a config with a size below zero or a model type that is none; None without such."""
    inner = config.get("text_config")
    try:
        for part in (config, inner if isinstance(inner, Mapping) else {}):
            if "model_type" in part:
                check_model_type(part, "vllm")
    except Stop as stopped:
        return Load((stopped.refused,))
    names = config.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        message = f"architectures is {names!r}, which is no list of words"[:200]
        return Load((Refused("config", message, "vllm.architectures", key="architectures"),))
    for key, value in _strange(config):
        message = f"'{key}' is {value!r}, which is no size"[:200]
        return Load((Refused("create", message, "vllm.config-type", key=key),))
    wrongs = []
    for key, value in _negatives(config):
        if key not in SERVED:
            return Load((Refused("create", f"'{key}' is {value}, which is no size", "vllm.config-type", key=key),))
        message = f"'{key}' is {value}; vLLM loads it as it is"
        wrongs.append(Wrong("E_CONFIG", message, "vllm.config-type", key=key))
    return Load(wrongs=tuple(wrongs)) if wrongs else None


def _tower(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get(TOWER)
    return found if isinstance(found, Mapping) else {}


def _strange(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Sizes of another type that no class of transformers refuses."""
    tower = _tower(config)
    yield from ((key, tower[key]) for key in ("patch_size", "temporal_patch_size") if isinstance(tower.get(key), list))
    if config.get("model_type") == "qwen3_moe" and type(config.get("head_dim", 1)) not in (int, type(None)):
        yield "head_dim", config["head_dim"]


def _negatives(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for part, _ in parts(without_unread(config)):
        yield from ((key, value) for key, value in part.items() if _negative(key, value))


def _negative(key: str, value: Any) -> bool:
    return (key == "num_heads" or KIND_OF.get(key) in ("whole", "counted")) and type(value) is int and value < 0


def without_unread(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config without values that nothing reads: some sizes below zero, and the model type of a tower."""
    unread = (*UNREAD, *UNREAD_OF.get(str(config.get("model_type")), ()))
    drop = [key for key in unread if _negative(key, config.get(key))]
    tower = _tower(config)
    odd = not isinstance(tower.get("model_type", ""), str)
    if not drop and not odd:
        return config
    kept = {key: value for key, value in config.items() if key not in drop}
    return {**kept, TOWER: {key: value for key, value in tower.items() if key != "model_type"}} if odd else kept
