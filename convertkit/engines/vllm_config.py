"""How vLLM 0.33 reads a drafter's config: which class it builds, with which values, or why it stops.

Run against vLLM 0.33.0's own config classes with transformers 5.20.2: every case of ``tests/engines/cases.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convertkit.engines.config_checks import check_layers, check_nulls
from convertkit.engines.model import Stop, Unknown, stop
from convertkit.engines.vllm_draft import (
    CLASSES,
    FLAT_DEFAULTS,
    OTHER_CLASSES,
    VllmDraft,
    captured_layers,
    with_defaults,
)
from convertkit.engines.vllm_speculators import read_nested


def read_draft(config: Mapping[str, Any]) -> VllmDraft:
    """A drafter's ``config.json`` as vLLM reads it. Raises Stop where vLLM raises.

    A config is in speculators form if it has ``speculators_config`` and no top-level ``model_type``
    (``transformers_utils/config.py:361``).
    """
    if config.get("model_type") is None and config.get("speculators_config") is not None:
        return read_nested(config)
    return _flat(config)


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
