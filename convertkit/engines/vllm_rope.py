"""Rotary embeddings in vLLM 0.33: which ``rope_parameters`` its config and its layers refuse.

transformers 5.20.2 checks the keys (``modeling_rope_utils.py:845``), vLLM multiplies the length by the factor
(``config/model.py:2634``), and each draft layer builds its table (``layers/rotary_embedding/__init__.py:36``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from convertkit.engines.config_checks import LAYER_TYPES
from convertkit.engines.model import Stop, stop

NEEDED: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "rope_theta"),
    "proportional": ("rope_theta",),
}
"""Keys that transformers asks for by the type of rope."""

BUILT: Mapping[str, tuple[str, ...]] = {
    "ntk": ("factor",),
    "deepseek_yarn": ("factor", "original_max_position_embeddings"),
    "deepseek_llama_scaling": ("factor", "original_max_position_embeddings"),
    "bailing_mrope": ("mrope_section",),
}
"""Keys that vLLM asks for of types that transformers does not know."""

TYPES = frozenset({"default", "mllama4", "openpangu", *NEEDED, *BUILT})
OWN_LENGTH = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Types whose factor does not lengthen ``max_position_embeddings``."""

FOPE = ("num_key_value_heads", "num_inv_freq", "fope_sep_head", "fope_init_factor")
DEFAULT_THETA = 10_000.0


def check_rope(values: Mapping[str, Any], *, flat: bool, dflash: bool) -> None:
    """Raises Stop where vLLM raises for a draft config: ``flat`` for one that a transformers class reads, with its
    default for the base; ``dflash`` for the models that read the table of one layer for all."""
    rope = _stated(values, flat)
    if rope is None:
        return
    nested = [key for key in rope if key in (values.get("layer_types") or ())]
    if nested and not (LAYER_TYPES | {"sparse", "dense"}).issuperset(rope):
        raise _refused("config", "KeyError: 'rope_type'")
    if not nested:
        _in_config(rope, values)
    if not all(_hashable(value) for value in rope.values()):
        raise _refused("create", "unhashable type in rope_parameters, which no draft layer reads by layer type")
    if not nested:
        _in_layer(rope, values, dflash)


def _refused(stage: str, message: str) -> Stop:
    return stop(stage, message, "vllm.rope-parameters", key="rope_parameters")


def _stated(values: Mapping[str, Any], flat: bool) -> dict[str, Any] | None:
    """The parameters after transformers has filled in what it takes from elsewhere; None if nothing is stated."""
    found = values.get("rope_scaling") or values.get("rope_parameters")
    if found is not None and not isinstance(found, Mapping):
        raise _refused("config", "Validation error for field 'rope_parameters'")
    rope = dict(found or {})
    if not rope and not flat and values.get("rope_theta") is None:
        return None
    nested = [key for key in rope if key in (values.get("layer_types") or ())]
    if not nested:
        rope.setdefault("rope_theta", values.get("rope_theta", DEFAULT_THETA))
        if values.get("partial_rotary_factor") is not None:
            rope.setdefault("partial_rotary_factor", values["partial_rotary_factor"])
    return rope


def _hashable(value: Any) -> bool:
    if isinstance(value, list):
        return not any(isinstance(item, (list, dict)) for item in value)
    return not isinstance(value, Mapping)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _in_config(rope: dict[str, Any], values: Mapping[str, Any]) -> None:
    """What transformers and vLLM's config refuse; settles the type and the original length in ``rope``."""
    kind, legacy = rope.get("rope_type", rope.get("type", "default")), rope.get("type")
    if "rope_type" in rope and "type" in rope and kind != legacy and (legacy, kind) not in (
        ("su", "longrope"), ("mrope", "default"),
    ):  # fmt: skip
        raise _refused("config", f"Found conflicts between 'rope_type={kind}' and 'type={legacy}'")
    if kind == "mrope" and "mrope_section" not in rope:
        raise _refused("config", "Legacy rope_type 'mrope' requires 'mrope_section'")
    if isinstance(kind, (list, Mapping)):
        raise _refused("config", f"unhashable type: the rope_type is {kind!r}"[:200])
    kind = {"su": "longrope", "mrope": "default"}.get(kind, kind) if isinstance(kind, str) else kind
    rope["rope_type"] = kind
    length = values.get("max_position_embeddings")
    if kind in ("llama3", "yarn", "longrope"):
        if "original_max_position_embeddings" in values:
            rope["original_max_position_embeddings"] = values["original_max_position_embeddings"]
        rope.setdefault("original_max_position_embeddings", length)
    missing = [key for key in NEEDED.get(kind, ()) if key not in rope] if isinstance(kind, str) else []
    if missing:
        message = f"Missing required keys in `rope_parameters` for 'rope_type'='{kind}': {', '.join(missing)}"
        raise _refused("config", message)
    check = COMPARED.get(kind) if isinstance(kind, str) else None
    if check is not None:
        check(rope)
    if kind not in OWN_LENGTH:
        _length(rope.get("factor", 1.0), length)


def _length(factor: Any, length: Any) -> None:
    """The longest input is the trained length times the factor; null counts as one."""
    if factor is not None and not _number(factor):
        raise _refused("config", f"the factor {factor!r} is not a number")
    if factor is not None and isinstance(length, int) and int(length * factor) < 1:
        raise _refused("config", "max_model_len must be a positive integer")


def _compared_yarn(rope: Mapping[str, Any]) -> None:
    original, fast, slow = (rope.get(key) for key in ("original_max_position_embeddings", "beta_fast", "beta_slow"))
    if not _number(original) or original == 0:
        raise _refused("config", f"original_max_position_embeddings is {original!r}")
    if not _number(fast or 32) or not _number(slow or 1):
        raise _refused("config", "beta_fast and beta_slow are not numbers")


def _compared_llama3(rope: Mapping[str, Any]) -> None:
    for key in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"):
        if not _number(rope[key]):
            raise _refused("config", f"{key} is {rope[key]!r}, which is not a number")


def _compared_longrope(rope: Mapping[str, Any]) -> None:
    for key in ("short_factor", "long_factor"):
        if not isinstance(rope[key], (list, str, Mapping)):
            raise _refused("config", f"{key} is {rope[key]!r}, which is not a list")


COMPARED: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "yarn": _compared_yarn,
    "llama3": _compared_llama3,
    "longrope": _compared_longrope,
}
"""Types whose values transformers compares, so that it stops at what is no number; of others it only warns."""


def _in_layer(rope: Mapping[str, Any], values: Mapping[str, Any], dflash: bool) -> None:
    """What ``get_rope`` refuses."""
    kind = rope["rope_type"]
    turned = _turned(rope, values)
    if not isinstance(kind, str) or kind not in TYPES:
        raise _refused("create", f"Unknown RoPE scaling type {kind}")
    missing = [key for key in BUILT.get(kind, ()) if key not in rope]
    if missing:
        raise _refused("create", f"KeyError: '{missing[0]}'")
    if kind == "openpangu" and not ("mrope_section" in rope and rope.get("mrope_interleaved")):
        raise _refused("create", "Pangu mrope lacks necessary parameters.")
    fope = kind == "default" and "mrope_section" not in rope and rope.get("use_fope")
    if fope and any(key not in rope for key in FOPE):
        raise _refused("create", f"use_fope needs {', '.join(FOPE)}")
    if not _number(rope["rope_theta"]):
        raise _refused("create", f"the base rope_theta is {rope['rope_theta']!r}, which is not a number")
    if kind in ("default", "yarn") and rope.get("mrope_section") is not None and turned is not None:
        _sections(rope["mrope_section"], turned)
    check = TABLED.get(kind)
    if check is not None:
        check(rope)
    if kind == "longrope":
        _longrope(rope, turned, dflash)


def _sections(section: Any, turned: int) -> None:
    if not isinstance(section, list) or not all(map(_number, section)) or sum(section) != turned // 2:
        raise _refused("create", f"mrope_section {section!r} does not add up to {turned // 2}"[:200])


def _turned(rope: Mapping[str, Any], values: Mapping[str, Any]) -> int | None:
    """How many columns of a head are turned."""
    stated = rope.get("rope_dim")
    if stated:
        return stated if isinstance(stated, int) else None
    part = rope.get("partial_rotary_factor", 1.0)
    if not _number(part) or not 0 < part <= 1:
        raise _refused("create", f"partial_rotary_factor={part!r} must be between 0.0 and 1.0")
    heads, hidden = values.get("num_attention_heads"), values.get("hidden_size")
    head = values.get("head_dim") or (hidden // heads if hidden and heads else None)
    return int(head * part) if isinstance(head, int) else None


def _linear(rope: Mapping[str, Any]) -> None:
    if not isinstance(rope["factor"], float):
        raise _refused("create", f"'{type(rope['factor']).__name__}' object is not iterable: linear takes 2.0, not 2")


def _dynamic(rope: Mapping[str, Any]) -> None:
    if "alpha" not in rope and not _number(rope["factor"]):
        raise _refused("create", f"the factor {rope['factor']!r} is not a number")


def _yarn(rope: Mapping[str, Any]) -> None:
    """The range of turns that are kept, which takes logarithms (``rotary_embedding/common.py:40``)."""
    base, original, factor = rope["rope_theta"], rope["original_max_position_embeddings"], rope["factor"]
    turns = [rope.get("beta_fast", 32), rope.get("beta_slow", 1)]
    attention = rope.get("attention_factor")
    numbers = all(map(_number, (*turns, factor))) and (attention is None or _number(attention))
    if not numbers or factor < 0:
        raise _refused("create", "yarn: factor, beta_fast, beta_slow or attention_factor is not a number above zero")
    if base <= 0 or math.log(base) == 0 or any(turn == 0 or original / turn <= 0 for turn in turns):
        raise _refused("create", "yarn: math domain error in the range of turns")


def _llama3(rope: Mapping[str, Any]) -> None:
    if not _number(rope["factor"]) or rope["low_freq_factor"] == 0 or rope["high_freq_factor"] == 0:
        raise _refused("create", "llama3: a factor is zero or not a number")


TABLED: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
}
"""Types whose table takes more than the base."""


def _longrope(rope: Mapping[str, Any], turned: int | None, dflash: bool) -> None:
    factors = [rope[key] for key in ("short_factor", "long_factor")]
    lists = all(isinstance(item, list) and all(map(_number, item)) for item in factors)
    fits = turned is not None and all(len(item) in (1, turned // 2) for item in factors)
    if not (lists and fits and _number(rope["original_max_position_embeddings"])):
        raise _refused("create", "longrope: the lists of factors are not as long as half of a head")
    if dflash:
        message = "'Phi3LongRoPEScaledRotaryEmbedding' object has no attribute 'cos_sin_cache'"
        raise _refused("load_weights", message)
