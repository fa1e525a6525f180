"""A target's config on its way into SGLang or transformers: its parts, defaults of its classes, sizes below zero.

Values of another type than a class takes are refused before (``hf_fields.py``). What is left depends on the engine:
``sglang_target_kinds.py`` and ``transformers_target_kinds.py``. Run: every case of
``tests/engines/target_kind_cases.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from convertkit.engines.config_checks import MODEL_TYPE
from convertkit.engines.config_kinds import KIND_OF
from convertkit.engines.hf_fields import FIELDS, VISION
from convertkit.engines.model import Wrong, stop
from convertkit.engines.target_tables import (
    HYBRID_DEFAULTS,
    HYBRID_MOE_DEFAULTS,
    LLAMA_DEFAULTS,
    MOE_DEFAULTS,
    QWEN3_DEFAULTS,
    SYMBOLS,
    VISION_DEFAULTS,
    VISION_SYMBOLS,
)
from convertkit.layouts.meaning import MAX_LAYERS

WHOLE = ("qwen3_5", "qwen3_5_moe")
"""Model types whose text and vision tower are configs of their own."""
SIZES: Mapping[str, Mapping[str, int]] = {
    "llama": LLAMA_DEFAULTS, "qwen3": QWEN3_DEFAULTS, "qwen3_moe": MOE_DEFAULTS, "qwen3_5_text": HYBRID_DEFAULTS,
    "qwen3_5_moe_text": HYBRID_MOE_DEFAULTS,
}  # fmt: skip
"""Sizes that transformers' classes take for keys that are absent."""
INTERVAL = 4
"""Which layers of Qwen3.5 attend to everything, if the config does not say."""


@dataclass
class Parts:
    """The top of a config, its text and its tower, as they are changed; ``text`` is the top where there is but one.
    ``doubt`` says what the tables do not describe of what is left."""

    top: dict[str, Any]
    text: dict[str, Any]
    tower: dict[str, Any] | None
    kind: str
    """The model type of the class that reads the text."""
    wrongs: list[Wrong] = field(default_factory=list)
    doubt: str = ""

    @property
    def config(self) -> dict[str, Any]:
        if self.tower is None:
            return self.text
        return {**self.top, "text_config": self.text, "vision_config": self.tower}

    def count(self, section: dict[str, Any], key: str, value: int, engine: str) -> None:
        """Let a size count as another one."""
        message = f"'{key}' is {section[key]!r}, which is no size; {engine} takes it for {value}"
        self.wrongs.append(Wrong("E_CONFIG", message, f"{engine.lower()}.config-type", key=key))
        section[key] = value


def check_model_type(config: Mapping[str, Any], engine: str) -> str:
    """The model type. Raises Stop for one that no class has."""
    kind = config.get("model_type")
    if isinstance(kind, str) and MODEL_TYPE.fullmatch(kind):
        return kind
    message = f"The checkpoint has a model type {kind!r} that transformers does not recognize"[:200]
    raise stop("config", message, f"{engine}.model-type", key="model_type")


def read_parts(config: Mapping[str, Any], kind: str) -> Parts:
    """The parts of a config of a model type that the tables have."""
    if kind not in WHOLE:
        return Parts({}, dict(config), None, kind)
    text, tower = ({**(config.get(key) or {})} for key in ("text_config", "vision_config"))
    return Parts(dict(config), text, tower, f"{kind}_text")


def with_sizes(parts: Parts, sizes: Mapping[str, Mapping[str, int]] = SIZES) -> None:
    """Fill in what the classes take for sizes that are absent."""
    stated = {SYMBOLS[symbol]: size for symbol, size in sizes[parts.kind].items()}
    parts.text = {**stated, **parts.text}
    if parts.tower is not None:
        parts.tower = {**{VISION_SYMBOLS[symbol]: size for symbol, size in VISION_DEFAULTS.items()}, **parts.tower}
    heads = parts.text["num_attention_heads"]
    if parts.kind == "qwen3_moe" and parts.text.get("head_dim") is None and heads:  # its class has no such field
        parts.text["head_dim"] = parts.text["hidden_size"] // heads


def by_interval(layers: int, interval: Any) -> list[str]:
    """The kinds of layers where only every ``interval``-th attends to everything."""
    kinds = ("full_attention", "linear_attention")
    return [kinds[bool((number + 1) % interval)] for number in range(min(layers, MAX_LAYERS))]


def negatives(parts: Parts) -> Iterator[tuple[str, str, int]]:
    """Sizes below zero: in which part, of which key, and what it is."""
    for place, section, fields in (("text", parts.text, FIELDS[parts.kind]), ("tower", parts.tower or {}, VISION)):
        for key, value in section.items():
            sized = key in fields and (key == "num_heads" or KIND_OF.get(key) in ("counted", "whole"))
            if (sized or key == "head_dim") and type(value) is int and value < 0:
                yield place, key, value


def check_moe_head(parts: Parts, built: str, engine: str) -> None:
    """The size of a head of Qwen3-MoE, which its class takes whatever it is and compares (``validate_rope``); raises
    Stop, at ``built`` for what the model stops at as it is built."""
    head = parts.text.get("head_dim")
    if parts.kind == "qwen3_moe" and head is not None and type(head) is not int:
        stage = built if isinstance(head, int | float) else "config"
        raise stop(stage, f"'head_dim' is {head!r}, which is no size"[:200], f"{engine}.config-type", key="head_dim")
