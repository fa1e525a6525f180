"""When a tensor of a layout is there: conditions on the config, by name.

From speculators 0.9.0 (``models/*/core.py``: what ``save_pretrained`` writes), z-lab dflash 0.1.0 and DeepSpec
afdfa7c; each was checked against checkpoints that those classes saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from convertkit.layouts.layout import config_value

Dims = Mapping[str, int]
Condition = Callable[[Mapping[str, Any], Dims], bool | None]
"""True: must be there. False: must not. None: may be there."""


def _flag(key: str, default: bool) -> Condition:
    def condition(config: Mapping[str, Any], dims: Dims) -> bool:
        value = config_value(config, key)
        return default if value is None else bool(value)

    return condition


def _reduced(config: Mapping[str, Any], dims: Dims) -> bool:
    return dims.get("DV") != dims.get("V")


def _markov(config: Mapping[str, Any], dims: Dims) -> bool:
    return dims.get("r", 1) > 0


def _markov_type(kind: str) -> Condition:
    def condition(config: Mapping[str, Any], dims: Dims) -> bool:
        return (config_value(config, "markov_head_type") or "vanilla") == kind

    return condition


def _qk_norm(config: Mapping[str, Any], dims: Dims) -> bool | None:
    kind = str(config_value(config.get("transformer_layer_config") or config, "model_type") or "")
    return None if not kind else kind.startswith("qwen3")


PRESENCE: Mapping[str, Condition] = {
    "always": lambda config, dims: True,
    "optional": lambda config, dims: None,
    "attention bias": _flag("attention_bias", False),
    "reduced vocabulary": _reduced,
    "markov head": _markov,
    "gated markov head": _markov_type("gated"),
    "rnn markov head": _markov_type("rnn"),
    "confidence head": _flag("enable_confidence_head", True),
    "norm before fc": _flag("norm_before_fc", False),
    "fc norm": _flag("fc_norm", False),
    "query and key norms": _qk_norm,
}
