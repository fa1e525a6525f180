"""Which texts are parts of dotted names, in time linear in the names: lists of a hundred thousand are normal."""

from __future__ import annotations

from collections.abc import Iterable

_Ends = dict[str, dict[str, str]]
"""Text by how the segment before its whole segments ends, then by how the one after them begins."""


def names_around(texts: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """Each text that is a part of a name, with the first such name.

    A text with dots is the end of a segment, whole segments, and the beginning of a segment, so it is looked up by its
    whole segments. One without dots is compared with every segment that occurs.
    """
    runs: dict[tuple[str, ...], _Ends] = {}
    inside: list[str] = []
    for text in texts:
        first, *whole = text.split(".")
        if whole:
            runs.setdefault(tuple(whole[:-1]), {}).setdefault(first, {})[whole[-1]] = text
        else:
            inside.append(text)
    lengths = sorted({len(run) for run in runs})
    found: dict[str, str] = {}
    segments: dict[str, str] = {}
    for name in names:
        parts = tuple(name.split("."))
        for part in parts:
            segments.setdefault(part, name)
        for length in lengths:
            for place in range(len(parts) - length - 1):
                ends = runs.get(parts[place + 1 : place + 1 + length])
                for text in () if ends is None else _meeting(ends, parts[place], parts[place + 1 + length]):
                    found.setdefault(text, name)
    for text in inside:
        first_name = next((name for part, name in segments.items() if text in part), None)
        if first_name is not None:
            found[text] = first_name
    return found


def _meeting(ends: _Ends, before: str, after: str) -> Iterable[str]:
    """Texts whose first segment ends ``before`` and whose last one begins ``after``."""
    for cut in range(len(before) + 1):
        starts = ends.get(before[cut:])
        if starts is not None:
            yield from (starts[after[:size]] for size in range(len(after) + 1) if after[:size] in starts)
