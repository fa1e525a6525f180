"""What transformers 5 does with a drafter: it has no class for one and builds the base model of its ``model_type``.

Run: every case of ``sglang_cases``, the flat ones of ``kind_cases`` and of ``config_cases`` in the oracle test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from convertkit.engines.config_checks import MODEL_TYPE, check_fields, check_layers, check_llama
from convertkit.engines.hf_fields import FIELDS
from convertkit.engines.model import Load, Refused, Stop, Unknown, Wrong, stop
from convertkit.engines.source import Source
from convertkit.engines.transformers_kinds import settle_kinds
from convertkit.engines.transformers_load import load_target
from convertkit.engines.transformers_rope import check_rope
from convertkit.engines.vllm_draft import FLAT_DEFAULTS, with_defaults
from convertkit.engines.vllm_params import Target

ACTIVATIONS = frozenset(
    {"gelu", "gelu_10", "gelu_fast", "gelu_new", "gelu_python", "gelu_pytorch_tanh", "gelu_python_tanh",
     "gelu_accurate", "hardswish", "laplace", "leaky_relu", "linear", "mish", "quick_gelu", "relu", "relu2", "relu6",
     "sigmoid", "silu", "sqrtsoftplus", "swish", "tanh", "prelu", "xielu"}
)  # fmt: skip
"""Activations by name (``activations.py:324``)."""


def load_drafter(source: Source, target: Target, ranks: int = 1, dtype: str = "BF16") -> Load:
    """The base model with the drafter's layers, or a refusal."""
    if not source.config.get("model_type"):
        message = "Unrecognized model. Should have a `model_type` key in its config.json."
        return Load((Refused("config", message, "transformers.model-type", key="model_type", foreign=True),))
    try:
        settled = settle_kinds(source.config)
        load = _load(replace(source, config=settled.config), ranks)
    except Unknown as why:
        return Load(unknown=why.refused.message)
    except Stop as stopped:
        load = Load(refusals=(stopped.refused,))
    if load.unknown or load.refusals:
        return Load(tuple(replace(item, foreign=True) for item in load.refusals), unknown=load.unknown)
    message = (
        f"transformers has no class for a drafter: it takes this for a {load.facts['class']}, without its other parts"
    )
    wrong = Wrong("E_LOAD_DROPPED", message, "transformers.drafters", key="architectures", foreign=True)
    strange = (replace(item, foreign=True) for item in settled.wrongs)
    return Load((), (wrong, *strange), (), load.fates, load.parameters, (), load.facts)


def _load(source: Source, ranks: int) -> Load:
    kind = str(source.config["model_type"])
    if not MODEL_TYPE.fullmatch(kind):
        message = f"The checkpoint has model type `{kind}` but Transformers does not recognize it"[:200]
        raise stop("config", message, "transformers.model-type", key="model_type")
    if kind not in FLAT_DEFAULTS:
        raise Unknown(f"the model type {kind} is not one that convertkit's tables of transformers describe")
    check_fields(source.config, FIELDS.get(kind, {}), "transformers")
    values = with_defaults(source.config, FLAT_DEFAULTS[kind])
    check_layers(values, "transformers")
    if kind == "llama":
        check_llama(values, "transformers")
    check_rope(values)
    _built(values)
    return load_target(replace(source, config=values), ranks)


def _built(values: Mapping[str, Any]) -> None:
    """What the classes of a model refuse when they are built."""
    if values.get("hidden_act") not in ACTIVATIONS:
        message = f"KeyError: the activation {values.get('hidden_act')!r} is not known"[:200]
        raise stop("load_weights", message, "transformers.activation", key="hidden_act")
    for key in ("num_attention_heads", "num_key_value_heads", "head_dim"):
        if values.get(key) == 0:
            raise stop("load_weights", f"ZeroDivisionError: {key} is 0", "transformers.sizes", key=key)
    if values.get("text_config") is not None:
        message = "'dict' object has no attribute 'to_dict': the class has no text_config"
        raise stop("load_weights", message, "transformers.config-type", key="text_config")
