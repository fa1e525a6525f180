"""The lines of a model card as a reader of rendered Markdown meets them: rows of tables, running text, code.

Fences and tables are those of CommonMark 0.31 (4.5) and GitHub Flavored Markdown 0.29 (4.10), so that what is shown as
a table is read as one: outer pipes may be missing, and a rule may have a single dash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})(.*)$")
BLOCK = re.compile(r" {0,3}(#{1,6}( |$)|>|[-*+] )")
"""Starts of blocks that end a table; an empty line does too."""


@dataclass(frozen=True)
class Line:
    """``row`` are the cells of a table's row by the lower-case title of their column; ``is_text`` is running text."""

    text: str
    is_text: bool = False
    row: Mapping[str, str] = field(default_factory=dict)


def card_lines(text: str) -> Iterator[Line]:
    """The lines below the front matter."""
    lines = _without_front_matter(text.splitlines())
    fence = ""
    columns: list[str] | None = None
    for number, line in enumerate(lines):
        mark = FENCE.match(line)
        if fence:
            closes = mark is not None and mark[1].startswith(fence) and not mark[2].strip()
            fence = "" if closes else fence
            yield Line(line)
            continue
        if not line.strip() or mark is not None or (BLOCK.match(line) and not _is_rule(line)):
            columns = None
        if mark is not None:
            fence = mark[1]
            yield Line(line)
        elif columns is not None and _is_rule(line):
            yield Line(line)
        elif columns is not None and "|" in line:
            yield Line(line, row=dict(zip(columns, cells(line), strict=False)))
        elif columns is None and _is_header(line, lines[number + 1 : number + 2]):
            columns = [cell.lower() for cell in cells(line)]
            yield Line(line)
        else:
            yield Line(line, is_text=True)


def cells(line: str) -> list[str]:
    """The cells of a row, without marks of code and emphasis."""
    inner = line.strip().removeprefix("|")
    inner = re.sub(r"(?<!\\)\|$", "", inner)
    parts = re.split(r"(?<!\\)\|", inner)
    return [part.strip().strip("*`").replace("\\|", "|").strip() for part in parts]


def _is_rule(line: str) -> bool:
    """Whether this is the line of dashes below the titles of a table."""
    return "|" in line and all(re.fullmatch(r":?-+:?", cell) for cell in cells(line))


def _is_header(line: str, following: Sequence[str]) -> bool:
    rule = following[0] if following else ""
    return "|" in line and _is_rule(rule) and len(cells(rule)) == len(cells(line))


def _without_front_matter(lines: list[str]) -> list[str]:
    if lines and lines[0].strip() == "---" and "---" in lines[1:]:
        return lines[lines.index("---", 1) + 1 :]
    return lines
