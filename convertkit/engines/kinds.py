"""Values of the wrong kind in a drafter's config: what an engine's tables say of each, and the walk that settles them.

A flat config goes through transformers' typed classes in every engine, which refuse most. The tables are in
``vllm_kinds.py`` and ``sglang_kinds.py``. Run: every case of ``tests/engines/kind_cases.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from convertkit.engines.config_kinds import KIND_OF, MAX_SIZE, is_kind
from convertkit.engines.model import Unknown, Wrong, stop

Outcome = Literal["served", "whole", "wholes", "numbers", "real", "none", "apart", "unread"]
"""``served``: it loads, and what it does with the value shows later. ``whole``, ``wholes``, ``numbers``, ``real``: the
same, and it counts as a whole number, as a list of them, of numbers, or as a number; what does not is refused.
``none``: the same, and it counts as zero. ``apart``: the same, and the sizes of parameters that follow are not
described. ``unread``: nothing reads it."""

EVERY = ("word", "fraction", "flag", "list", "object", "negative", "number")
SIZES = ("counted", "whole", "any whole")
"""Kinds of keys that hold numbers, so that a number of the wrong kind is one of no model's size."""


@dataclass(frozen=True, slots=True)
class Row:
    """The stage at which a strange value is refused, the kinds of values that are not, and the stage of kinds that are
    refused at another one."""

    stage: str = "config"
    loads: Mapping[str, Outcome] = field(default_factory=dict)
    stages: Mapping[str, str] = field(default_factory=dict)


def row(stage: str, **loads: Outcome) -> Row:
    return Row(stage, loads)


def later(stage: str, *kinds: str) -> Row:
    """Refused by transformers' class, but for ``kinds``, which are refused at a later stage."""
    return Row(stages=dict.fromkeys(kinds, stage))


CONFIG, CREATE = Row(), Row("create")
SERVED, UNREAD = Row(loads=dict.fromkeys(EVERY, "served")), Row(loads=dict.fromkeys(EVERY, "unread"))
Table = Mapping[str, Row]

TYPED: Table = dict.fromkeys(
    ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim",
     "max_position_embeddings", "hidden_act", "rms_norm_eps", "layer_types", "rope_parameters", "text_config",
     "model_type", "architectures", "quantization_config"), CONFIG)  # fmt: skip
"""A flat config of any class, in every engine."""
TYPED_OF: Mapping[str, Table] = {
    "qwen3": {"max_window_layers": row("config", negative="unread"), "sliding_window": CONFIG},
    "llama": {},
}
"""More by ``model_type``."""

STANDS_FOR: Mapping[str, Any] = {"rms_norm_eps": 1e-6, "mask_token_id": 0, "selector_top_k": 1}
"""A value that a class needs, in place of one that loads whatever it is."""

_VALUE_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "flag"), (int, "number"), (str, "word"), (float, "fraction"), (list, "list"), (Mapping, "object"),
)  # fmt: skip


def value_kind(value: Any) -> str:
    """What a value of the wrong kind is, one of ``EVERY``."""
    found = next(kind for of, kind in _VALUE_KINDS if isinstance(value, of))
    return "negative" if found == "number" and value < 0 else found


@dataclass
class Settled:
    """A config without values that engines do not read or count otherwise, and what they would do with the others.
    ``apart`` means that sizes follow from such a value."""

    config: dict[str, Any]
    wrongs: list[Wrong] = field(default_factory=list)
    apart: bool = False


Sections = Iterable[tuple[str | None, Table]]
"""Names of sections of a config, None for its top, with the table of each."""


def settle(config: Mapping[str, Any], sections: Sections, engine: str) -> Settled:
    """Raises Stop where ``engine`` stops at a value of the wrong kind, Unknown for one that its tables do not
    describe."""
    settled = Settled(dict(config))
    for place, table in sections:
        section = settled.config if place is None else settled.config.get(place)
        if isinstance(section, Mapping):
            kept = dict(section)
            for key in [key for key, value in section.items() if is_strange(key, value)]:
                _settle(key, kept, table, settled, engine)
            settled.config = kept if place is None else {**settled.config, place: kept}
    return settled


def is_strange(key: str, value: Any) -> bool:
    """Whether a value is not of the kind that its key has; null is as absent."""
    return key in KIND_OF and value is not None and not is_kind(KIND_OF[key], value)


def _settle(key: str, kept: dict[str, Any], table: Table, settled: Settled, engine: str) -> None:
    """One value: refused, or taken out of ``kept`` or replaced there."""
    value = kept.pop(key)
    found, kind, rule = table.get(key, UNREAD), value_kind(value), f"{engine.lower()}.config-type"
    if kind == "number" and KIND_OF[key] in SIZES:
        raise Unknown(f"'{key}' in the config is {value}, which is no size of a model")
    outcome = found.loads.get(kind)
    counted = COUNTED[outcome](value) if outcome in COUNTED else None
    if outcome is None or (outcome in COUNTED and counted is None):
        message = f"'{key}' is {value!r}, which is of the wrong kind"[:200]
        raise stop(found.stages.get(kind, found.stage), message, rule, key=key)
    if outcome == "unread":
        return
    as_what = "as it is" if counted is None else f"as {counted}"
    message = f"'{key}' is {value!r}, which is of the wrong kind; {engine} loads it {as_what}"[:200]
    settled.wrongs.append(Wrong("E_CONFIG", message, rule, key=key))
    settled.apart |= outcome == "apart"
    if counted is not None:
        if any(abs(one) >= MAX_SIZE for one in (counted if isinstance(counted, list) else [counted])):
            raise Unknown(f"'{key}' in the config is {value!r}, which is no size of a model"[:200])
        kept[key] = counted
    elif key in STANDS_FOR:
        kept[key] = STANDS_FOR[key]


def _number(of: Callable[[Any], Any], value: Any) -> Any:
    try:
        return of(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _wholes(value: Any) -> list[int] | None:
    found = [_number(int, item) for item in value] if isinstance(value, list) else [None]
    return None if None in found else [item for item in found if item is not None]


def _numbers(value: Any) -> list[int] | None:
    """A list of numbers without words."""
    return _wholes(value) if isinstance(value, list) and not any(isinstance(item, str) for item in value) else None


COUNTED: Mapping[str | None, Callable[[Any], Any]] = {
    "whole": lambda value: _number(int, value),
    "real": lambda value: _number(float, value),
    "wholes": _wholes,
    "numbers": _numbers,
    "none": lambda value: 0,
}
"""What Python's own conversions make of a value; None where they raise."""
