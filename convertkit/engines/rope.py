"""Rotary embeddings as every engine's config holds them: what transformers makes of ``rope_parameters`` and refuses.

transformers 5.20.2 (vLLM) and 5.19.0 (SGLang), ``modeling_rope_utils.py``: keys that a type needs, values that it
compares. What comes after is in ``vllm_rope.py`` and ``sglang_rope.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

NEEDED: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "rope_theta"),
    "proportional": ("rope_theta",),
}
"""Keys that transformers asks for by the type of rope."""

DEFAULT_THETA = 10_000.0


class RopeFault(Exception):
    """Raised where transformers or an engine raises for a rope, with the stage at which it does."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage, self.message = stage, message


def stated_rope(values: Mapping[str, Any], *, flat: bool) -> dict[str, Any] | None:
    """The parameters after transformers has filled in what it takes from elsewhere; None if nothing is stated."""
    found = values.get("rope_scaling") or values.get("rope_parameters")
    if found is not None and not isinstance(found, Mapping):
        raise RopeFault("config", "Validation error for field 'rope_parameters'")
    rope = dict(found or {})
    if not rope and not flat and values.get("rope_theta") is None:
        return None
    nested = [key for key in rope if key in (values.get("layer_types") or ())]
    if not nested:
        rope.setdefault("rope_theta", values.get("rope_theta", DEFAULT_THETA))
        if values.get("partial_rotary_factor") is not None:
            rope.setdefault("partial_rotary_factor", values["partial_rotary_factor"])
    return rope


def is_hashable(value: Any) -> bool:
    if isinstance(value, list):
        return not any(isinstance(item, (list, dict)) for item in value)
    return not isinstance(value, Mapping)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _compared_yarn(rope: Mapping[str, Any]) -> None:
    original, fast, slow = (rope.get(key) for key in ("original_max_position_embeddings", "beta_fast", "beta_slow"))
    if not is_number(original) or original == 0:
        raise RopeFault("config", f"original_max_position_embeddings is {original!r}")
    if not is_number(fast or 32) or not is_number(slow or 1):
        raise RopeFault("config", "beta_fast and beta_slow are not numbers")


def _compared_llama3(rope: Mapping[str, Any]) -> None:
    for key in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"):
        if not is_number(rope[key]):
            raise RopeFault("config", f"{key} is {rope[key]!r}, which is not a number")


def _compared_longrope(rope: Mapping[str, Any]) -> None:
    for key in ("short_factor", "long_factor"):
        if not isinstance(rope[key], (list, str, Mapping)):
            raise RopeFault("config", f"{key} is {rope[key]!r}, which is not a list")


COMPARED: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "yarn": _compared_yarn,
    "llama3": _compared_llama3,
    "longrope": _compared_longrope,
}
"""Types whose values transformers compares, so that it stops at what is no number; of others it only warns."""


def check_keys(rope: dict[str, Any], values: Mapping[str, Any]) -> None:
    """What transformers asks of a rope by its ``rope_type``; settles the original length."""
    kind, length = rope["rope_type"], values.get("max_position_embeddings")
    if kind in ("llama3", "yarn", "longrope"):
        if "original_max_position_embeddings" in values:
            rope["original_max_position_embeddings"] = values["original_max_position_embeddings"]
        rope.setdefault("original_max_position_embeddings", length)
    missing = [key for key in NEEDED.get(kind, ()) if key not in rope] if isinstance(kind, str) else []
    if missing:
        message = f"Missing required keys in `rope_parameters` for 'rope_type'='{kind}': {', '.join(missing)}"
        raise RopeFault("config", message)
    check = COMPARED.get(kind) if isinstance(kind, str) else None
    if check is not None:
        check(rope)
