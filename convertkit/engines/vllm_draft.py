"""A drafter's config as vLLM 0.33 holds it: defaults of its classes, the classes themselves, tapped layers.

Run against vLLM 0.33.0's own config classes with transformers 5.20.2: every case of ``tests/engines/cases.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from convertkit.engines.model import stop

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
    "Eagle3MiniMaxM2ForCausalLM": "eagle3-llama",
    "Eagle3Qwen2_5vlForCausalLM": "eagle3-llama",
    "Eagle3Qwen3vlForCausalLM": "eagle3-llama",
    "PeagleLlamaForCausalLM": "eagle3-llama",
    "PEagleDraftModel": "eagle3-llama",
    "Eagle3Qwen3ForCausalLM": "eagle3-qwen3",
    "PeagleQwen3ForCausalLM": "eagle3-qwen3",
}
"""Architectures that lead to a class these tables describe (vLLM 0.33.0 ``model_executor/models/registry.py:664``)."""

OTHER_CLASSES = frozenset(
    {"LiLiCorrDraftModel", "DFlash2BeamDraftModel", "DFlashLagunaForCausalLM", "DFlashQwen3XPressModel",
     "Qwen3XPressModel", "Gemma4DSparkModel", "K3DSparkModel", "MuseSparkDSparkModel", "DSparkDraftModel",
     "DSparkV41DraftModel", "Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM",
     "EagleLlamaForCausalLM", "EagleLlama4ForCausalLM",
     "EagleMiniCPMForCausalLM", "EagleCohereForCausalLM", "EagleMistralForCausalLM", "EagleMistralLarge3ForCausalLM",
     "EagleDeepSeekMTPModel"}
)  # fmt: skip
"""Architectures that vLLM knows and these tables do not describe."""


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
