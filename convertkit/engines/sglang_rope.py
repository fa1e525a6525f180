"""Rotary embeddings in SGLang 0.5.23: which ``rope_parameters`` its config and its layers refuse.

transformers 5.19.0 checks the keys (``modeling_rope_utils.py:845``), SGLang multiplies the length by the factor
(``utils/hf_transformers/common.py:677``), and each draft layer builds its table
(``layers/rotary_embedding/factory.py:125``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from convertkit.engines.config_checks import LAYER_TYPES
from convertkit.engines.config_kinds import MAX_SIZE
from convertkit.engines.model import Unknown, stop
from convertkit.engines.rope import RopeFault, check_keys, is_hashable, is_number, stated_rope

TYPES = frozenset({"default", "linear", "dynamic", "yarn", "deepseek_yarn", "longrope", "llama3", "proportional"})
WITHOUT_TABLE = "'Phi3LongRoPEScaledRotaryEmbedding' object has no attribute 'is_neox_style'"
SUPERSEDED = ("rope_dim", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
"""Keys that a DFlash draft with a ``rope_dim`` does not hand on (``models/dflash.py:194``)."""


def check_rope(values: Mapping[str, Any], *, dflash: bool) -> None:
    """Raises Stop where SGLang raises for a draft config; ``dflash`` for the models of that family."""
    try:
        _check(values, dflash)
    except RopeFault as fault:
        raise stop(fault.stage, fault.message, "sglang.rope-parameters", key="rope_parameters") from None


def _check(values: Mapping[str, Any], dflash: bool) -> None:
    rope = stated_rope(values, flat=True)
    assert rope is not None
    nested = [key for key in rope if key in (values.get("layer_types") or ())]
    if nested and not (LAYER_TYPES | {"sparse", "dense"}).issuperset(rope):
        raise RopeFault("create", "rope_parameters by layer type and not")
    if not nested:
        rope["rope_type"] = rope.get("rope_type", rope.get("type", "default"))
        check_keys(rope, values)
        _length(rope, values.get("max_position_embeddings"))
    turned = _turned(rope, values, dflash)
    if dflash and "rope_dim" in rope:
        rope = {key: value for key, value in rope.items() if key not in SUPERSEDED}
    if not dflash:
        if "mrope_section" in rope:  # (``models/llama_eagle3.py:142``)
            rope["rope_type"] = "default"
        _of_llama(rope, values)
    _in_layer(rope, turned)
    if rope["rope_type"] == "longrope":  # it is built, and the worker asks for what it has not
        raise RopeFault("worker", WITHOUT_TABLE)


def check_target_rope(values: Mapping[str, Any], kind: str) -> None:
    """Raises Stop where SGLang raises for the text of a target, of the model type ``kind``."""
    try:
        _check_target(values, kind)
    except RopeFault as fault:
        raise stop(fault.stage, fault.message, "sglang.rope-parameters", key="rope_parameters") from None


def _check_target(values: Mapping[str, Any], kind: str) -> None:
    hybrid = kind.startswith("qwen3_5")
    rope = stated_rope(values, flat=True)
    assert rope is not None
    if hybrid and not (values.get("rope_parameters") or values.get("rope_scaling")):
        raise RopeFault("create", "Unknown RoPE scaling type, rope_scaling is {}")
    if hybrid and not ("rope_type" in rope or "type" in rope):  # counts as none at all
        rope = {"rope_theta": rope["rope_theta"]}
    rope["rope_type"] = rope.get("rope_type", rope.get("type", "default"))
    check_keys(rope, values)
    _length(rope, values.get("max_position_embeddings"))
    if kind == "llama":
        _of_llama(rope, values)
    _in_layer(rope, _target_turned(values, kind))
    if kind == "qwen3_moe" and rope["rope_type"] != "default":
        try:
            _moe_range(rope, values)
        except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
            raise RopeFault("create", f"{type(error).__name__}: {error}"[:200]) from None


def _moe_range(rope: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """What Qwen3-MoE computes for every type of rope but the default one (``models/qwen3_moe.py:115``); raises what
    Python raises there."""
    _ = int(values["head_dim"] * values.get("partial_rotary_factor", 1.0))
    length, factor = values.get("max_position_embeddings", 32768), rope.get("factor", 1.0)
    original, base = rope.get("original_max_position_embeddings", length), rope.get("rope_theta") or 10_000
    if "original_max_position_embeddings" in rope:
        factor = length / original
    if rope.get("attention_factor") is None and factor > 1:
        scales: list[Any] = [rope.get("mscale"), rope.get("mscale_all_dim")]
        _ = [0.1 * scale * math.log(factor) for scale in scales if all(scales)]
    for turns in (rope.get("beta_fast") or 32, rope.get("beta_slow") or 1):
        _ = math.floor(math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base)))


def _target_turned(values: Mapping[str, Any], kind: str) -> int:
    """How many columns of a head of a target are turned; only the part that is stated at the top counts
    (``models/llama.py:199``, ``layers/rotary_embedding/factory.py:151``)."""
    head = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
    if kind in ("qwen3", "qwen3_moe"):
        return int(head)
    part = values.get("partial_rotary_factor", 0.25 if kind != "llama" else 1)
    if not is_number(part):
        raise RopeFault("create", f"the part of a head that is turned is {part!r}"[:200])
    return _sized(int(part * head)) if kind == "llama" or part < 1.0 else int(head)


def _of_llama(rope: dict[str, Any], values: Mapping[str, Any]) -> None:
    """What the layers of a Llama change (``models/llama.py:329``), those of an EAGLE-3 too."""
    if values.get("original_max_position_embeddings"):
        rope["original_max_position_embeddings"] = values["original_max_position_embeddings"]
    if isinstance(values.get("rope_is_neox_style"), list | Mapping):
        raise RopeFault("create", "unhashable type: rope_is_neox_style is no flag")


def _length(rope: Mapping[str, Any], length: Any) -> None:
    """The longest input is the trained length times the factor."""
    factor = rope.get("factor", 1)
    if "original_max_position_embeddings" in rope or rope["rope_type"] == "llama3" or length is None:
        return
    try:
        int(factor * length)
    except (TypeError, ValueError, OverflowError):
        raise RopeFault("config", f"the factor {factor!r} is not a number") from None


def _turned(rope: Mapping[str, Any], values: Mapping[str, Any], dflash: bool) -> int:
    """How many columns of a head are turned: of ``partial_rotary_factor`` only the one at the top counts."""
    heads, hidden = values.get("num_attention_heads"), values.get("hidden_size")
    head = values["head_dim"] if values.get("head_dim") is not None else (hidden or 0) // (heads or 1)
    part = values.get("partial_rotary_factor", 1.0)
    try:
        if dflash and "rope_dim" in rope:
            float(part)
            return _sized(int(rope["rope_dim"]))
        if not dflash:
            return _sized(int(part * head))
        return int(head * float(part)) if float(part) < 1.0 else head
    except (TypeError, ValueError, OverflowError):
        raise RopeFault("create", f"the part of a head that is turned is {part!r}"[:200]) from None


def _sized(columns: int) -> int:
    if abs(columns) >= MAX_SIZE:
        raise OverflowError("int too big to convert")
    return columns


def _in_layer(rope: Mapping[str, Any], turned: int) -> None:
    """What ``get_rope`` refuses."""
    kind, base = rope.get("rope_type"), rope.get("rope_theta")
    if not all(is_hashable(value) for value in rope.values()) or isinstance(base, list):
        raise RopeFault("create", "unhashable type in rope_parameters, which no draft layer reads by layer type")
    if not isinstance(kind, str) or kind not in TYPES:
        raise RopeFault("create", f"Unknown RoPE scaling type {kind}")
    if not is_number(base):
        raise RopeFault("create", f"the base rope_theta is {base!r}, which is not a number")
    if kind == "deepseek_yarn":
        raise Unknown("a rope that is built on the GPU is not something that convertkit's tables of SGLang describe")
    if turned < 0:
        raise RopeFault("create", f"a head turns {turned} columns")
    if kind in ("default", "yarn") and "mrope_section" in rope:
        _sections(rope, turned)
    elif kind == "default" and rope.get("use_fope"):
        if "num_kv_heads" not in rope:
            raise RopeFault("create", "KeyError: 'num_kv_heads'")
        raise Unknown("Fourier rotary embeddings are not something that convertkit's tables of SGLang describe")
    check = TABLED.get(kind)
    if check is not None:
        check(rope, turned)


def _sections(rope: Mapping[str, Any], turned: int) -> None:
    """Sections are scaled until they add up; there must be three (``layers/rotary_embedding/mrope.py:119``)."""
    section = rope["mrope_section"]
    if rope.get("video_rope"):
        raise Unknown("'video_rope' is not something that convertkit's tables of SGLang describe")
    if not section and not isinstance(section, str):
        return
    if not isinstance(section, list) or not all(type(item) is int for item in section) or len(section) != 3:
        raise RopeFault("create", f"mrope_section {section!r} is not three axes summing to {turned // 2}"[:200])


def _linear(rope: Mapping[str, Any], turned: int) -> None:
    factor = rope["factor"]
    if not isinstance(factor, float) or factor < 0:
        raise RopeFault("create", f"linear takes a factor like 2.0, not {factor!r}"[:200])


def _dynamic(rope: Mapping[str, Any], turned: int) -> None:
    factor = rope["alpha"] if "alpha" in rope else rope["factor"]
    if not is_number(factor) or ("alpha" not in rope and factor < 0) or turned == 2:
        raise RopeFault("create", f"the factor {factor!r} is not a number above zero"[:200])


def _yarn(rope: Mapping[str, Any], turned: int) -> None:
    """The range of turns that are kept, which takes logarithms (``layers/rotary_embedding/yarn.py:15``)."""
    base, original, factor = rope["rope_theta"], rope.get("original_max_position_embeddings", 1), rope.get("factor", 1)
    turns = [rope.get("beta_fast", 32), rope.get("beta_slow", 1)]
    others = [rope.get("attn_factor", 1), rope.get("extrapolation_factor", 1)]
    scales = [rope.get("mscale"), rope.get("mscale_all_dim")]
    if "mrope_section" in rope and ("mscale" in rope or "mscale_all_dim" in rope):
        raise RopeFault("create", "unexpected keyword argument 'mscale' beside mrope_section")
    numbers = all(map(is_number, (*turns, *others, factor, original))) and (
        None in scales or all(map(is_number, scales))
    )
    if not numbers or factor < 0:
        raise RopeFault("create", "yarn: a factor or a number of turns is not a number above zero")
    if base <= 0 or math.log(base) == 0 or any(turn == 0 or original / turn <= 0 for turn in turns):
        raise RopeFault("create", "yarn: math domain error in the range of turns")


def _llama3(rope: Mapping[str, Any], turned: int) -> None:
    if not is_number(rope["factor"]) or rope["low_freq_factor"] == 0 or rope["high_freq_factor"] == 0:
        raise RopeFault("create", "llama3: a factor is zero or not a number")


def _longrope(rope: Mapping[str, Any], turned: int) -> None:
    """The lists of factors are as long as half of what is turned."""
    factors = [rope[key] for key in ("short_factor", "long_factor")]
    lists = all(isinstance(item, list) and all(map(is_number, item)) for item in factors)
    fits = all(len(item) in (1, turned // 2) for item in factors)
    original = rope["original_max_position_embeddings"]
    if not (lists and fits and is_number(original) and original):
        raise RopeFault("create", "longrope: the lists of factors are not as long as half of a head")


TABLED: Mapping[str, Callable[[Mapping[str, Any], int], None]] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}
"""Types whose table takes more than the base."""
