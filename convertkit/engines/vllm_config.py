"""How vLLM 0.33 reads a drafter's config: which class it builds, with which values, or why it stops.

Run against vLLM 0.33.0's own config classes with transformers 5.20.2: every case of ``tests/engines/cases.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from convertkit.engines.config_checks import check_dtype, check_fields, check_layers
from convertkit.engines.hf_fields import FIELDS
from convertkit.engines.model import Stop, Unknown, stop
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

MODEL_TYPE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*", re.ASCII)
"""What every registered model type looks like."""


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
    hidden, heads = values.get("hidden_size"), values.get("num_attention_heads")
    if model_type == "llama" and heads == 0:
        raise stop("config", "integer modulo by zero: there are no attention heads", "vllm.config-type",
                   key="num_attention_heads")  # fmt: skip
    if model_type == "llama" and hidden and heads and hidden % heads:
        message = f"The hidden size ({hidden}) is not a multiple of the number of attention heads ({heads})."
        raise stop("config", message, "vllm.config-type", key="num_attention_heads")
    architecture = _architecture(config, method, str(model_type))
    if defaults is None and not MODEL_TYPE.fullmatch(str(model_type)):
        message = f"The checkpoint has a model type `{model_type}` that transformers does not recognize"[:200]
        raise stop("config", message, "vllm.model-type", key="model_type")
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
