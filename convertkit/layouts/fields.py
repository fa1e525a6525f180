"""Config fields as a table: what a value means, and the places in a config where readers look for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from convertkit.containers.folder import CONFIG
from convertkit.errors import Finding, finding, shown


@dataclass(frozen=True, slots=True)
class Via:
    """A pair of inverse functions between a config's value and its meaning."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


VIAS: Mapping[str, Via] = {
    "same": Via(lambda value: value, lambda value: value),
    "ids": Via(tuple, list),
    "plus_one": Via(lambda ids: tuple(item - 1 for item in ids), lambda ids: [item + 1 for item in ids]),
}
"""Named pairs. ``plus_one``: the config counts the inputs of layers, the meaning their outputs (one less)."""

CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "whole": lambda value: type(value) is int and value >= 0,
    "count": lambda value: type(value) is int and value > 0,
    "number": lambda value: type(value) in (int, float),
    "flag": lambda value: type(value) is bool,
    "word": lambda value: isinstance(value, str),
    "ids": lambda value: isinstance(value, list) and bool(value) and all(type(item) is int for item in value),
    "words": lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    "object": lambda value: isinstance(value, Mapping),
}
"""What a value may be."""

QWEN_HEAD = 128
"""``head_dim`` of transformers' Qwen3Config, whatever the width; its LlamaConfig divides."""

BY_BACKBONE = "=head of the backbone"

KINDS: Mapping[str, str] = {
    "whole": "a whole number",
    "count": "a whole number above 0",
    "number": "a number",
    "flag": "true or false",
    "word": "a word",
    "ids": "a list of whole numbers",
    "words": "a list of words",
    "object": "an object",
}
"""The same in words."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name here, and there the dotted places in a config, the first that is set counting.

    All places are written, or only the first if ``everywhere`` is False. ``default`` is what the reader takes when
    none is set; a text that begins with ``=`` names another field, or is ``=hidden/heads`` or ``BY_BACKBONE``. No
    place at all means that the reader always takes the default.
    """

    here: str
    there: tuple[str, ...]
    kind: str = "whole"
    via: str = "same"
    default: Any = None
    everywhere: bool = True


def look(config: Mapping[str, Any], place: str) -> Any:
    """The value at a dotted place (numbers index lists), None if it is not there or null."""
    value: Any = config
    for part in place.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def put(config: dict[str, Any], place: str, value: Any) -> None:
    """Set a dotted place; objects on the way are made."""
    *parents, last = place.split(".")
    for part in parents:
        config = config.setdefault(part, {})
    config[last] = value


def read_values(table: Iterable[Field], config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """Every field's value, defaults filled in, and E_CONFIG for each value of the wrong kind (taken as absent) and
    each field that two places state differently."""
    rows = tuple(table)
    values: dict[str, Any] = {}
    faults: list[Finding] = []
    for row in rows:
        found = [(place, value) for place in row.there if (value := look(config, place)) is not None]
        good = [(place, value) for place, value in found if CHECKS[row.kind](value)]
        faults += [_wrong_kind(row, place, value) for place, value in found if not CHECKS[row.kind](value)]
        if len({repr(value) for _, value in good}) > 1:
            faults.append(_conflict(row, good))
        values[row.here] = VIAS[row.via].read(good[0][1]) if good else row.default
    for row in rows:
        values[row.here] = _derived(values, values[row.here])
    return values, tuple(faults)


def _derived(values: Mapping[str, Any], value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith("="):
        return value
    if value == BY_BACKBONE:
        value = "=hidden/heads" if values.get("backbone") == "llama" else QWEN_HEAD
        return _derived(values, value)
    if value == "=hidden/heads":
        hidden, heads = values.get("hidden"), values.get("heads")
        return hidden // heads if hidden and heads else None
    return _derived(values, values.get(value[1:]))


def _wrong_kind(row: Field, place: str, value: Any) -> Finding:
    what = KINDS.get(row.kind, row.kind)
    return finding("E_CONFIG", "error", f"'{place}' is {shown(repr(value))}, not {what}", file=CONFIG, key=place)


def _conflict(row: Field, found: Iterable[tuple[str, Any]]) -> Finding:
    said = " and ".join(f"'{place}' is {shown(repr(value))}" for place, value in found)
    return finding(
        "E_CONFIG",
        "error",
        f"{said}: readers disagree about which one counts",
        file=CONFIG,
        key=row.there[0],
        fix="make them equal, or remove the wrong one",
    )


def write_values(config: dict[str, Any], table: Iterable[Field], values: Mapping[str, Any]) -> None:
    """Write every value at every place of its field; None and fields without a value are left out."""
    for row in table:
        value = values.get(row.here)
        if value is not None:
            for place in row.there if row.everywhere else row.there[:1]:
                put(config, place, VIAS[row.via].write(value))


def changed(table: Iterable[Field], **defaults: Any) -> tuple[Field, ...]:
    """A table with other defaults."""
    return tuple(replace(row, default=defaults[row.here]) if row.here in defaults else row for row in table)


def moved(table: Iterable[Field], **places: tuple[str, ...]) -> tuple[Field, ...]:
    """A table whose reader looks elsewhere; no place at all means that it does not look."""
    return tuple(replace(row, there=places[row.here]) if row.here in places else row for row in table)


def places_of(table: Iterable[Field]) -> frozenset[str]:
    """Every place that a table reads."""
    return frozenset(place for row in table for place in row.there)
