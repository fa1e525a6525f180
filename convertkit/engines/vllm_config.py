"""How vLLM 0.33 reads a drafter's config: which class it builds, with which values, or why it stops.

Run against vLLM 0.33.0's own config classes with transformers 5.20.2: every case of ``tests/engines/cases.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from convertkit.engines.config_checks import check_layers, check_nulls
from convertkit.engines.model import Stop, stop

QWEN3_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "hidden_act": "silu",
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "attention_bias": False, "use_sliding_window": False,
    "sliding_window": 4096, "max_window_layers": 28, "layer_types": None,
}  # fmt: skip
"""transformers 5.20.2 ``models/qwen3/configuration_qwen3.py``."""

LLAMA_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": None, "head_dim": None, "hidden_act": "silu",
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
"""transformers 5.20.2 ``models/llama/configuration_llama.py``."""

FLAT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"qwen3": QWEN3_DEFAULTS, "llama": LLAMA_DEFAULTS}

CLASSES: Mapping[str, str] = {
    "DFlashDraftModel": "dflash",
    "DFlashMuseGlimmerAssistantModel": "dflash",
    "DFlash2DraftModel": "dflash2",
    "Qwen3DSparkModel": "dspark",
    "Qwen3OmniDSparkModel": "dspark",
    "Eagle3LlamaForCausalLM": "eagle3-llama",
    "LlamaForCausalLMEagle3": "eagle3-llama",
    "PeagleLlamaForCausalLM": "eagle3-llama",
    "PEagleDraftModel": "eagle3-llama",
    "Eagle3Qwen3ForCausalLM": "eagle3-qwen3",
    "PeagleQwen3ForCausalLM": "eagle3-qwen3",
}
"""Architectures that lead to a class these tables describe (vLLM 0.33.0 ``model_executor/models/registry.py:664``)."""

OTHER_CLASSES = frozenset(
    {"LiLiCorrDraftModel", "DFlash2BeamDraftModel", "DFlashLagunaForCausalLM", "DFlashQwen3XPressModel",
     "Qwen3XPressModel", "Gemma4DSparkModel", "K3DSparkModel", "MuseSparkDSparkModel", "DSparkDraftModel",
     "DSparkV41DraftModel", "Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM", "Eagle3MiniMaxM2ForCausalLM",
     "Eagle3Qwen2_5vlForCausalLM", "Eagle3Qwen3vlForCausalLM", "EagleLlamaForCausalLM", "EagleLlama4ForCausalLM",
     "EagleMiniCPMForCausalLM", "EagleCohereForCausalLM", "EagleMistralForCausalLM", "EagleMistralLarge3ForCausalLM",
     "EagleDeepSeekMTPModel"}
)  # fmt: skip
"""Architectures that vLLM knows and these tables do not describe."""

SPECULATORS = ("eagle3", "peagle", "dflash", "dflash2", "dspark")
"""``speculators_model_type`` values that vLLM 0.33.0 registers (``speculators/algos.py``)."""

NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
          "vocab_size", "rms_norm_eps", "hidden_act", "max_position_embeddings")  # fmt: skip
"""Keys without a default in a speculators config, which vLLM reads raw."""


@dataclass(frozen=True, slots=True)
class VllmDraft:
    """A drafter's config as vLLM holds it: ``values`` are the attributes of its HF config, ``kind`` is a value of
    ``CLASSES``, ``tokens`` the number of draft tokens, ``captured`` the target layers whose inputs it reads."""

    kind: str
    method: str
    architecture: str
    values: Mapping[str, Any]
    speculators: bool
    tokens: int | None
    parallel: bool
    captured: tuple[int, ...] | None

    def get(self, key: str, default: Any = None) -> Any:
        """An attribute of the config; ``default`` if it is absent."""
        return self.values.get(key, default)

    @property
    def dflash(self) -> Mapping[str, Any]:
        found = self.values.get("dflash_config")
        return found if isinstance(found, Mapping) else {}

    @property
    def eagle(self) -> Mapping[str, Any]:
        found = self.values.get("eagle_config")
        return found if isinstance(found, Mapping) else {}

    def size(self, key: str) -> int:
        """A size that must be there. Raises Stop with the engine's message if it is not."""
        value = self.values.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise stop("create", f"the config has no '{key}' that is a number", "vllm.config-keys", key=key)
        return value

    @property
    def head_dim(self) -> int:
        value = self.values.get("head_dim")
        heads = self.size("num_attention_heads")
        return value if isinstance(value, int) and value else self.size("hidden_size") // max(heads, 1)


def read_draft(config: Mapping[str, Any]) -> VllmDraft:
    """A drafter's ``config.json`` as vLLM reads it. Raises Stop where vLLM raises.

    A config is in speculators form if it has ``speculators_config`` and no top-level ``model_type``
    (``transformers_utils/config.py:361``).
    """
    if config.get("model_type") is None and config.get("speculators_config") is not None:
        return _nested(config)
    return _flat(config)


def _nested(config: Mapping[str, Any]) -> VllmDraft:
    kind = config.get("speculators_model_type")
    tokens = _proposed_tokens(config)
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        raise stop("config", "Must provide transformer_layer_config", "vllm.speculators-config",
                   key="transformer_layer_config")  # fmt: skip
    if kind not in SPECULATORS:
        message = f"Expected one of: {', '.join(SPECULATORS)}; the speculators model type is {kind!r}"
        raise stop("config", message, "vllm.speculators-kinds", key="speculators_model_type")
    values = dict(layer)
    architecture = UPDATES[kind](config, values)
    check_layers(values)
    if values.get("num_key_value_heads", 0) is None:
        raise stop("config", "total_num_kv_heads: Input should be a valid integer", "vllm.config-keys",
                   key="num_key_value_heads")  # fmt: skip
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
"""What each speculators model type sets in the layer config, and the architecture it is built as (``algos.py``)."""


def method_of(config: Mapping[str, Any]) -> str | None:
    """The ``method`` to serve a flat config with, or None if it does not show."""
    label = " ".join(str(name) for name in config.get("architectures") or ())
    if "DSpark" in label:
        return "dspark"
    if "DFlash" in label or config.get("dflash_config"):
        return "dflash"
    if "eagle3" in label.lower() or "draft_vocab_size" in config:
        return "eagle3"
    return None


def _flat(config: Mapping[str, Any]) -> VllmDraft:
    model_type = config.get("model_type")
    method = method_of(config)
    if method is None:
        raise stop("config", "nothing in the config says that this is a drafter", "vllm.method", key="architectures")
    defaults = FLAT_DEFAULTS.get(str(model_type))
    if model_type is None:
        message = "Unrecognized model: config.json should have a `model_type` key"
        raise stop("config", message, "vllm.model-type", key="model_type")
    check_nulls(config, str(model_type))
    values = with_defaults(config, defaults or {})
    check_layers(values)
    architecture = _architecture(config, method, str(model_type))
    if defaults is None:
        raise Unknown(f"the model type {model_type} is not one that convertkit's tables of vLLM describe")
    block = config.get("block_size") or (config.get("dflash_config") or {}).get("block_size")
    tokens = (block or 16) - 1 if method == "dflash" else block if method == "dspark" else 3
    if tokens is None:
        message = "A speculative model was provided, but `num_speculative_tokens` was not: there is no block_size"
        raise stop("config", message, "vllm.dspark-block", key="block_size")
    kind = CLASSES[architecture]
    return VllmDraft(kind, method, architecture, values, False, tokens, method != "eagle3", captured_layers(values))


class Unknown(Stop):
    """The tables do not describe this; nothing can be said."""

    def __init__(self, why: str) -> None:
        super().__init__(stop("config", why, "unknown").refused)


def with_defaults(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A flat config with the defaults and derived fields of transformers' config class."""
    values: dict[str, Any] = {**defaults, **config}
    if values.get("num_key_value_heads") is None:
        values["num_key_value_heads"] = values.get("num_attention_heads")
    if "use_sliding_window" in defaults:
        if not values["use_sliding_window"]:
            values["sliding_window"] = None
        if values.get("layer_types") is None:
            first = values["max_window_layers"]
            sliding = values["sliding_window"] is not None
            values["layer_types"] = [
                "sliding_attention" if sliding and index >= first else "full_attention"
                for index in range(values["num_hidden_layers"])
            ]
    return values


def _architecture(config: Mapping[str, Any], method: str, model_type: str) -> str:
    """The architecture after ``EAGLEConfig`` (``configs/eagle.py:65``) and the DSpark rules
    (``config/speculative.py:1534``). It must be one that vLLM registers before and after."""
    stated = config.get("architectures")
    base = {"qwen3": "Qwen3Model", "llama": "LlamaModel"}.get(model_type, "a model")
    name = str(stated[0]) if isinstance(stated, list) and stated else base
    if not (name in CLASSES or name in OTHER_CLASSES or name.endswith(("ForCausalLM", "ForConditionalGeneration"))):
        raise _unsupported(f"DFlash{name}" if name == base and method == "dflash" else name)
    if method == "dflash":
        keep = name.startswith("DFlash") or name.endswith("DFlash") or name == "LiLiCorrDraftModel"
        name = name if keep else f"DFlash{name}"
    elif method == "eagle3":
        name = name if name.startswith("Eagle3") or name.endswith("Eagle3") else f"Eagle3{name}"
    elif name == "DSparkDraftModel" and model_type == "qwen3":
        name = "Qwen3DSparkModel"
    if name in OTHER_CLASSES:
        raise Unknown(f"the architecture {name} is not one that convertkit's tables of vLLM describe")
    if name not in CLASSES:
        raise _unsupported(name)
    return name


def _unsupported(name: str) -> Stop:
    message = f"Model architectures ['{name}'] are not supported for now."
    return stop("config", message, "vllm.architectures", key="architectures")


def captured_layers(values: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The target layers whose inputs are captured (a = t + 1), as ``eagle3_utils.py:113`` finds them."""
    found = values.get("eagle_aux_hidden_state_layer_ids")
    dflash = values.get("dflash_config")
    if not found and isinstance(dflash, Mapping):
        found = [item + 1 for item in dflash.get("target_layer_ids") or () if isinstance(item, int)]
    for key in ("dspark_target_layer_ids", "target_layer_ids"):
        if not found:
            stated = values.get(key)
            found = [item + 1 for item in stated if isinstance(item, int)] if isinstance(stated, list) else None
    for key in ("dflash_config", "eagle_config"):
        part = values.get(key)
        if not found and isinstance(part, Mapping):
            found = part.get("layer_ids")
    return tuple(found) if isinstance(found, (list, tuple)) and found else None
