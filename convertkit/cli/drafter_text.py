"""A drafter's meaning and its readers as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convertkit.cli.text import cut, pairs, table
from convertkit.drafter import LayerAttention, attention_text
from convertkit.errors import shown

WIDTH = 76

QUIET = ("algorithm", "borrowed", "vocabulary_map")
"""Fields that are printed elsewhere, or only with --json."""

SCALES = ("embedding_scale", "output_multiplier")


def drafter_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """The spec, then one line per reader; what a reader understands otherwise is spelled out below it."""
    spec = document["spec"]
    yield "drafter"
    rows = [
        (name.replace("_", " "), cut(shown(_text(name, value)), WIDTH))
        for name, value in spec.items()
        if _said(name, value)
    ]
    yield pairs(rows)
    yield ""
    yield table(("reader", "understands"), [(_title(row), _verdict(row)) for row in document["readers"]])
    for row in document["readers"]:
        for name, value in row["differs"].items():
            meant = _text(name, spec.get(name))
            yield cut(f"  {_title(row)} takes {name} for {shown(_text(name, value))}, meant is {shown(meant)}", 100)
        for item in row["refuses"]:
            yield cut(f"  {_title(row)}, {item['field']}: {item['why']}", 100)


def _title(row: Mapping[str, Any]) -> str:
    return f"{row['name']} {row['version']}"


def _verdict(row: Mapping[str, Any]) -> str:
    if not row["reads"]:
        return str(row["why"])
    given = ", ".join(f"--{key.replace('_', '-')} {value}" for key, value in row["give"].items())
    told = f"; give {given}" if given else ""
    wrong = len(row["differs"]) + len(row["refuses"])
    return ("what is meant" if not wrong else f"{wrong} field{'s' * (wrong > 1)} otherwise, see below") + told


def _said(name: str, value: Any) -> bool:
    return name not in QUIET and value is not False and value != [] and not (name in SCALES and value == 1.0)


def _text(name: str, value: Any) -> str:
    if value is None:
        return "not stated"
    if name == "attention":
        return attention_text(tuple(LayerAttention(**layer) for layer in value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(key, item)}" for key, item in value.items() if item not in ({}, 1.0))
    if isinstance(value, list):
        return ", ".join(_text("", item) for item in value) or "none"
    if isinstance(value, float):
        return f"{value:.9g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
