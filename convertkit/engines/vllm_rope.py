"""Rotary embeddings in vLLM 0.33: which ``rope_parameters`` its config and its layers refuse.

transformers 5.20.2 checks the keys (``modeling_rope_utils.py:845``), vLLM multiplies the length by the factor
(``config/model.py:2634``), and each draft layer builds its table (``layers/rotary_embedding/__init__.py:36``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from convertkit.engines.config_checks import LAYER_TYPES
from convertkit.engines.model import stop
from convertkit.engines.rope import NEEDED, RopeFault, check_keys, is_hashable, is_number, stated_rope

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


def check_rope(values: Mapping[str, Any], *, flat: bool, dflash: bool) -> None:
    """Raises Stop where vLLM raises for a draft config: ``flat`` for one that a transformers class reads, with its
    default for the base; ``dflash`` for the models that read the table of one layer for all."""
    try:
        _check(values, flat, dflash)
    except RopeFault as fault:
        raise stop(fault.stage, fault.message, "vllm.rope-parameters", key="rope_parameters") from None


def _check(values: Mapping[str, Any], flat: bool, dflash: bool) -> None:
    rope = stated_rope(values, flat=flat)
    if rope is None:
        return
    nested = [key for key in rope if key in (values.get("layer_types") or ())]
    if nested and not (LAYER_TYPES | {"sparse", "dense"}).issuperset(rope):
        raise RopeFault("config", "KeyError: 'rope_type'")
    if not nested:
        _in_config(rope, values)
    if not all(is_hashable(value) for value in rope.values()):
        raise RopeFault("create", "unhashable type in rope_parameters, which no draft layer reads by layer type")
    if not nested:
        _in_layer(rope, values, dflash)


def _in_config(rope: dict[str, Any], values: Mapping[str, Any]) -> None:
    """What transformers and vLLM's config refuse; settles the type and the original length in ``rope``."""
    kind, legacy = rope.get("rope_type", rope.get("type", "default")), rope.get("type")
    if "rope_type" in rope and "type" in rope and kind != legacy and (legacy, kind) not in (
        ("su", "longrope"), ("mrope", "default"),
    ):  # fmt: skip
        raise RopeFault("config", f"Found conflicts between 'rope_type={kind}' and 'type={legacy}'")
    if kind == "mrope" and "mrope_section" not in rope:
        raise RopeFault("config", "Legacy rope_type 'mrope' requires 'mrope_section'")
    if isinstance(kind, (list, Mapping)):
        raise RopeFault("config", f"unhashable type: the rope_type is {kind!r}"[:200])
    kind = {"su": "longrope", "mrope": "default"}.get(kind, kind) if isinstance(kind, str) else kind
    rope["rope_type"] = kind
    length = values.get("max_position_embeddings")
    check_keys(rope, values)
    if kind not in OWN_LENGTH:
        _length(rope.get("factor", 1.0), length)


def _length(factor: Any, length: Any) -> None:
    """The longest input is the trained length times the factor; null counts as one."""
    if factor is not None and not is_number(factor):
        raise RopeFault("config", f"the factor {factor!r} is not a number")
    if factor is not None and isinstance(length, int) and int(length * factor) < 1:
        raise RopeFault("config", "max_model_len must be a positive integer")


def _in_layer(rope: Mapping[str, Any], values: Mapping[str, Any], dflash: bool) -> None:
    """What ``get_rope`` refuses."""
    kind = rope["rope_type"]
    turned = _turned(rope, values)
    if not isinstance(kind, str) or kind not in TYPES:
        raise RopeFault("create", f"Unknown RoPE scaling type {kind}")
    missing = [key for key in BUILT.get(kind, ()) if key not in rope]
    if missing:
        raise RopeFault("create", f"KeyError: '{missing[0]}'")
    if kind == "openpangu" and not ("mrope_section" in rope and rope.get("mrope_interleaved")):
        raise RopeFault("create", "Pangu mrope lacks necessary parameters.")
    fope = kind == "default" and "mrope_section" not in rope and rope.get("use_fope")
    if fope and any(key not in rope for key in FOPE):
        raise RopeFault("create", f"use_fope needs {', '.join(FOPE)}")
    if not is_number(rope["rope_theta"]):
        raise RopeFault("create", f"the base rope_theta is {rope['rope_theta']!r}, which is not a number")
    if kind in ("default", "yarn") and rope.get("mrope_section") and turned is not None:
        _sections(rope["mrope_section"], turned)
    check = TABLED.get(kind)
    if check is not None:
        check(rope)
    if kind == "longrope":
        _longrope(rope, turned, dflash)


def _sections(section: Any, turned: int) -> None:
    if not isinstance(section, list) or not all(map(is_number, section)) or sum(section) != turned // 2:
        raise RopeFault("create", f"mrope_section {section!r} does not add up to {turned // 2}"[:200])


def _turned(rope: Mapping[str, Any], values: Mapping[str, Any]) -> int | None:
    """How many columns of a head are turned."""
    stated = rope.get("rope_dim")
    if stated:
        return stated if isinstance(stated, int) else None
    part = rope.get("partial_rotary_factor", 1.0)
    if not is_number(part) or not 0 < part <= 1:
        raise RopeFault("create", f"partial_rotary_factor={part!r} must be between 0.0 and 1.0")
    heads, hidden = values.get("num_attention_heads"), values.get("hidden_size")
    head = values.get("head_dim") or (hidden // heads if hidden and heads else None)
    return int(head * part) if isinstance(head, int) else None


def _linear(rope: Mapping[str, Any]) -> None:
    if not isinstance(rope["factor"], float):
        raise RopeFault("create", f"'{type(rope['factor']).__name__}' object is not iterable: linear takes 2.0, not 2")


def _dynamic(rope: Mapping[str, Any]) -> None:
    if "alpha" not in rope and not is_number(rope["factor"]):
        raise RopeFault("create", f"the factor {rope['factor']!r} is not a number")


def _yarn(rope: Mapping[str, Any]) -> None:
    """The range of turns that are kept, which takes logarithms (``rotary_embedding/common.py:40``)."""
    base, original, factor = rope["rope_theta"], rope["original_max_position_embeddings"], rope["factor"]
    turns = [rope.get("beta_fast", 32), rope.get("beta_slow", 1)]
    attention = rope.get("attention_factor")
    numbers = all(map(is_number, (*turns, factor))) and (attention is None or is_number(attention))
    if not numbers or factor < 0:
        raise RopeFault("create", "yarn: factor, beta_fast, beta_slow or attention_factor is not a number above zero")
    if base <= 0 or math.log(base) == 0 or any(turn == 0 or original / turn <= 0 for turn in turns):
        raise RopeFault("create", "yarn: math domain error in the range of turns")


def _llama3(rope: Mapping[str, Any]) -> None:
    if not is_number(rope["factor"]) or rope["low_freq_factor"] == 0 or rope["high_freq_factor"] == 0:
        raise RopeFault("create", "llama3: a factor is zero or not a number")


TABLED: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
}
"""Types whose table takes more than the base."""


def _longrope(rope: Mapping[str, Any], turned: int | None, dflash: bool) -> None:
    factors = [rope[key] for key in ("short_factor", "long_factor")]
    lists = all(isinstance(item, list) and all(map(is_number, item)) for item in factors)
    fits = turned is not None and all(len(item) in (1, turned // 2) for item in factors)
    if not (lists and fits and is_number(rope["original_max_position_embeddings"])):
        raise RopeFault("create", "longrope: the lists of factors are not as long as half of a head")
    if dflash:
        message = "'Phi3LongRoPEScaledRotaryEmbedding' object has no attribute 'cos_sin_cache'"
        raise RopeFault("load_weights", message)
