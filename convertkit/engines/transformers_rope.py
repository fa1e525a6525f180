"""Rotary embeddings in transformers 5.19: which ``rope_parameters`` its classes and its models refuse.

The config checks the keys (``modeling_rope_utils.py:845``), the model computes its table when it is built
(``modeling_rope_utils.py:130``, ``models/qwen3/modeling_qwen3.py:85``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from convertkit.engines.model import stop
from convertkit.engines.rope import NEEDED, RopeFault, check_keys, is_number, stated_rope


def check_rope(values: Mapping[str, Any], *, hybrid: bool = False) -> None:
    """Raises Stop where transformers raises for a config; ``hybrid`` for Qwen3.5, whose part of a head that is turned
    counts for every type of rope (``models/qwen3_5/modeling_qwen3_5.py``)."""
    try:
        _check(values, hybrid)
    except RopeFault as fault:
        raise stop(fault.stage, fault.message, "transformers.rope-parameters", key="rope_parameters") from None


def _check(values: Mapping[str, Any], hybrid: bool) -> None:
    rope = stated_rope(values, flat=True)
    assert rope is not None
    if any(key in (values.get("layer_types") or ()) for key in rope):
        raise RopeFault("load_weights", "KeyError: 'rope_type': the parameters are by layer type")
    rope["rope_type"] = kind = rope.get("rope_type", rope.get("type", "default"))
    check_keys(rope, values)
    if not isinstance(kind, str) or kind not in ("default", *NEEDED):
        raise RopeFault("load_weights", f"KeyError: {kind!r} is no type of rope"[:200])
    if not is_number(rope["rope_theta"]):
        raise RopeFault("load_weights", f"the base rope_theta is {rope['rope_theta']!r}, which is not a number"[:200])
    if kind == "default" and hybrid:
        _turned(rope, values)
    elif kind != "default":
        length, turned = values.get("max_position_embeddings"), _turned(rope, values)
        try:
            TABLED[kind](rope, turned, length if isinstance(length, int) else 0)
        except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
            raise RopeFault("load_weights", f"{type(error).__name__}: {error}"[:200]) from None


def _turned(rope: Mapping[str, Any], values: Mapping[str, Any]) -> int:
    """How many columns of a head are turned."""
    part, heads = rope.get("partial_rotary_factor", 1.0), values.get("num_attention_heads") or 1
    head = values.get("head_dim") or (values.get("hidden_size") or 0) // heads
    if not is_number(part) or part < 0:
        raise RopeFault("load_weights", f"the part of a head that is turned is {part!r}"[:200])
    return int(head * part)


def _numbers(*values: Any) -> None:
    """Raises TypeError for what torch does not compute with."""
    for value in values:
        if not is_number(value):
            raise TypeError(f"{value!r} is not a number")


def _linear(rope: Mapping[str, Any], turned: int, length: int) -> None:
    _numbers(rope["factor"])


def _dynamic(rope: Mapping[str, Any], turned: int, length: int) -> None:
    _numbers(rope["factor"])
    _ = (length / length, turned / (turned - 2))


def _proportional(rope: Mapping[str, Any], turned: int, length: int) -> None:
    _numbers(rope.get("factor", 1.0))


def _yarn(rope: Mapping[str, Any], turned: int, length: int) -> None:
    """The range of turns that are kept, which takes logarithms."""
    base, original = rope["rope_theta"], rope["original_max_position_embeddings"]
    factor = length / original if rope["factor"] is None else rope["factor"]
    turns = [rope.get("beta_fast") or 32, rope.get("beta_slow") or 1]
    _numbers(factor, *turns)
    scales = [rope.get("mscale"), rope.get("mscale_all_dim")]
    if rope.get("attention_factor") is None and all(scales) and factor > 1:
        _numbers(*scales)
    _ = [math.log(original / (turn * 2 * math.pi)) / math.log(base) for turn in turns]


def _longrope(rope: Mapping[str, Any], turned: int, length: int) -> None:
    original, short = rope["original_max_position_embeddings"], rope["short_factor"]
    factor = length / original if rope.get("factor") is None else rope["factor"]
    if rope.get("attention_factor") is None and factor > 1.0:
        _ = math.log(factor) / math.log(original)
    if not isinstance(short, list) or not all(map(is_number, short)) or len(short) not in (1, (turned + 1) // 2):
        raise ValueError("the list of factors is not as long as half of a head")


def _llama3(rope: Mapping[str, Any], turned: int, length: int) -> None:
    _numbers(rope["factor"])
    original = rope["original_max_position_embeddings"]
    _ = (original / rope["low_freq_factor"], original / rope["high_freq_factor"])


TABLED: Mapping[str, Callable[[Mapping[str, Any], int, int], None]] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "proportional": _proportional,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}
"""Types whose table takes more than the base; what Python raises there is what transformers raises."""
