"""How vLLM 0.33 reads a drafter's config: which class it builds, with which values, or why it stops.

Run against vLLM 0.33.0's own config classes with transformers 5.20.2: every case of ``tests/engines/cases.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from convertkit.engines.config_checks import check_dtype, check_fields, check_layers, check_llama
from convertkit.engines.hf_fields import FIELDS
from convertkit.engines.model import Stop, Unknown, stop
from convertkit.engines.model_types import MODEL_TYPES
from convertkit.engines.vllm_draft import (
    CLASSES,
    FLAT_DEFAULTS,
    OTHER_CLASSES,
    VllmDraft,
    captured_layers,
    with_defaults,
)
from convertkit.engines.vllm_rope import check_rope
from convertkit.engines.vllm_speculators import read_nested


def read_draft(config: Mapping[str, Any]) -> VllmDraft:
    """A drafter's ``config.json`` as vLLM reads it. Raises Stop where vLLM raises.

    A config is in speculators form if it has ``speculators_config`` and no top-level ``model_type``
    (``transformers_utils/config.py:361``).
    """
    nested = config.get("model_type") is None and config.get("speculators_config") is not None
    draft = read_nested(config) if nested else _flat(config)
    _parts(draft, nested=nested)
    check_rope(draft.values, flat=not nested, dflash=not draft.kind.startswith("eagle3"))
    if draft.tokens is not None and draft.tokens < 1:
        message = "num_speculative_tokens: Input should be greater than 0"
        raise stop("config", message, "vllm.no-tokens", key="block_size" if not nested else "speculators_config")
    if draft.kind == "eagle3-llama" and "num_key_value_heads" not in draft.values:  # ``llama.py:290``
        draft = replace(draft, values={**draft.values, "num_key_value_heads": draft.get("num_attention_heads")})
    if draft.get("sliding_window") == 0:  # vLLM takes it for none (``config/model.py:819``)
        draft = replace(draft, values={**draft.values, "sliding_window": None})
    return draft


def _parts(draft: VllmDraft, *, nested: bool) -> None:
    """What vLLM refuses of parts inside a draft's config, and of the dtype that a speculators config states."""
    text = draft.get("text_config")
    if text is not None and not (isinstance(text, Mapping) and "num_attention_heads" not in text):
        raise Unknown("a draft with a text_config is not one that convertkit's tables of vLLM describe")
    if text is not None:
        message = "The text_config extracted from the model config does not have `num_attention_heads` attribute"
        raise stop("config", message, "vllm.config-keys", key="text_config")
    if nested:
        check_dtype({"dtype": draft.get("dtype")})
    if not draft.kind.startswith("eagle3") and draft.get("dflash_config", {}) is None:
        message = "TypeError: 'NoneType' object is not iterable: dflash_config is null"
        raise stop("create", message, "vllm.config-keys", key="dflash_config")


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
    check_fields(config, FIELDS.get(str(model_type), {}))
    values = with_defaults(config, defaults or {})
    check_layers(values)
    if model_type == "llama":
        check_llama(values)
    if model_type in ("speculators", "eagle") and config.get("speculators_config") is None:
        message = f"a {model_type} config without the parts of one"  # vLLM has classes of its own for these
        raise stop("config", message, "vllm.model-type", key="model_type")
    if defaults is None and model_type not in MODEL_TYPES:
        message = f"The checkpoint has a model type `{model_type}` that transformers does not recognize"[:200]
        raise stop("config", message, "vllm.model-type", key="model_type")
    tokens = _tokens(config, method)
    if tokens is None:
        message = "A speculative model was provided, but `num_speculative_tokens` was not: there is no block_size"
        raise stop("config", message, "vllm.dspark-block", key="block_size")
    architecture = _architecture(config, method, str(model_type))
    if defaults is None:
        raise Unknown(f"the model type {model_type} is not one that convertkit's tables of vLLM describe")
    kind = CLASSES[architecture]
    return VllmDraft(kind, method, architecture, values, False, tokens, method != "eagle3", captured_layers(values))


def _tokens(config: Mapping[str, Any], method: str) -> int | None:
    """Draft tokens to serve a flat config with: DSpark's own default (``config/speculative.py:1592``), else what the
    block holds."""
    block: int | None = config.get("block_size")
    if method == "dspark":
        return block if block is not None else config.get("dspark_block_size")
    block = block or (config.get("dflash_config") or {}).get("block_size")
    return (block or 16) - 1 if method == "dflash" else 3


def _architecture(config: Mapping[str, Any], method: str, model_type: str) -> str:
    """The architecture after ``EAGLEConfig`` (``configs/eagle.py:65``) and the DSpark rules
    (``config/speculative.py:1534``). It must be one that vLLM registers before and after."""
    stated = config.get("architectures")
    base = {"qwen3": "Qwen3Model", "llama": "LlamaModel"}.get(model_type, "a model")
    names = [str(name) for name in stated] if isinstance(stated, list) and stated else [base]
    if not any(_registered(name) for name in names):
        raise _unsupported(f"DFlash{base}" if names == [base] and method == "dflash" else names[0])
    if method == "dspark" and model_type == "qwen3" and "DSparkDraftModel" in names:
        return "Qwen3DSparkModel"
    built = [_renamed(name, method) for name in names]
    name = next((name for name in built if name in CLASSES or name in OTHER_CLASSES), None)
    if name in OTHER_CLASSES:
        raise Unknown(f"the architecture {name} is not one that convertkit's tables of vLLM describe")
    if name is None:
        raise _unsupported(built[0])
    return name


def _registered(name: str) -> bool:
    return name in CLASSES or name in OTHER_CLASSES or name.endswith(("ForCausalLM", "ForConditionalGeneration"))


def _renamed(name: str, method: str) -> str:
    """An architecture as the method calls it; of several the first that is registered is built."""
    if method == "dflash":
        keep = name.startswith("DFlash") or name.endswith("DFlash") or name == "LiLiCorrDraftModel"
        return name if keep else f"DFlash{name}"
    if method == "eagle3":
        return name if name.startswith("Eagle3") or name.endswith("Eagle3") else f"Eagle3{name}"
    return name


def _unsupported(name: str) -> Stop:
    message = f"Model architectures ['{name}'] are not supported for now."
    return stop("config", message, "vllm.architectures", key="architectures")
