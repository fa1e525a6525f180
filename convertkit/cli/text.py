"""Text for people: tables that fit the page, sizes, counts and findings. Plain strings, no terminal needed."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from convertkit.errors import Finding, shown

PAGE_WIDTH = 100
"""Columns that every table fits into."""

MIN_CELL_WIDTH = 8
"""A column is not made narrower than this to fit the page."""

SIZE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def size_text(size_bytes: int) -> str:
    """``3848862208`` as ``3.85 GB``: powers of 1000, as model hubs print sizes."""
    value, unit = float(size_bytes), 0
    while value >= 999.5 and unit < len(SIZE_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    digits = 0 if unit == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {SIZE_UNITS[unit]}"


def count_text(number: int, noun: str = "", plural: str = "") -> str:
    """``1924404480`` as ``1,924,404,480``; with a noun ``1 file`` or ``3 files``."""
    text = f"{number:,}"
    if not noun:
        return text
    return f"{text} {noun if number == 1 else plural or noun + 's'}"


def path_text(path: str | os.PathLike[str]) -> str:
    """A path as the user may type it: relative when it lies under the working directory."""
    whole = os.path.abspath(path)
    here = os.path.join(os.getcwd(), "")
    return shown_cell(whole.removeprefix(here) or whole)


def cell_width(text: str) -> int:
    """Terminal columns that a text takes: wide characters take two, combining ones none."""
    return sum(0 if unicodedata.combining(ch) else 2 if unicodedata.east_asian_width(ch) in "WF" else 1 for ch in text)


def cut(text: str, width: int) -> str:
    """A text cut in its middle to ``width`` columns: both ends of a tensor name tell more than its start alone."""
    if cell_width(text) <= width:
        return text
    head, tail = text[: (width - 1) // 2], text[len(text) - (width - 1 - (width - 1) // 2) :]
    while cell_width(head) + cell_width(tail) > width - 1:
        head, tail = head[:-1], tail[1:]
    return f"{head}…{tail}"


def table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[int] = (), indent: int = 0
) -> str:
    """Aligned columns in at most ``PAGE_WIDTH`` columns: the widest ones are cut in the middle until all fit.

    ``right`` are the numbers of the columns set flush right. Names in cells are made safe to print.
    """
    cells = [[shown_cell(value) for value in row] for row in rows]
    lines = [list(headers), *cells]
    widths = _fitted([max(cell_width(line[i]) for line in lines) for i in range(len(headers))], PAGE_WIDTH - indent)
    flush_right = frozenset(right)
    lines.insert(1, ["─" * width for width in widths])
    return "\n".join(" " * indent + _row_text(line, widths, flush_right) for line in lines)


def shown_cell(value: object) -> str:
    """A cell as safe text; unlike ``shown`` it is cut only by the width of the page."""
    return "".join(shown(ch) for ch in str(value))


def _fitted(widths: Sequence[int], page: int) -> list[int]:
    """Column widths that sum (with two spaces between) to at most ``page``, taking from the widest first."""
    result = list(widths)
    excess = sum(result) + 2 * (len(result) - 1) - page
    while excess > 0 and max(result) > MIN_CELL_WIDTH:
        widest = result.index(max(result))
        result[widest] -= 1
        excess -= 1
    return result


def _row_text(cells: Sequence[str], widths: Sequence[int], flush_right: frozenset[int]) -> str:
    """One line of a table: cells cut and padded to their widths, numbers flush right."""
    parts = []
    for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        text = cut(cell, width)
        space = " " * (width - cell_width(text))
        parts.append(space + text if number in flush_right else text + space)
    return "  ".join(parts).rstrip()


def pairs(rows: Iterable[tuple[str, object]], *, indent: int = 2) -> str:
    """Labels and values in two aligned columns, without headers; long values are not cut."""
    lines = [(label, str(value)) for label, value in rows]
    width = max((cell_width(label) for label, _ in lines), default=0)
    return "\n".join(f"{' ' * indent}{label}{' ' * (width - cell_width(label))}  {value}" for label, value in lines)


def finding_text(item: Finding) -> str:
    """``error E_X: what [where]`` and, if there is a cure, a ``fix:`` line."""
    return f"{item.severity} {item}"


def _kind(item: Finding) -> tuple[object, ...]:
    """What neighbours must share to be told as one: all but their cure and the numbers in the tensor's name. Of a
    limit that many weights do not keep the first is told with its value."""
    family = None if item.where.tensor is None else re.sub(r"[0-9]+", "0", item.where.tensor)
    message: object = item.message
    if item.code == "E_GATE" and item.data.get("scope") in ("tensor", "group"):
        message = (item.data["scope"], re.sub(r"[0-9]+", "0", item.data["name"]), item.data["metric"])
    return item.code, item.severity, message, replace(item.where, tensor=family)


def findings_text(findings: Iterable[Finding]) -> str:
    """One line for each kind of finding, and the cure below; neighbours with the same cure share one line of it. What
    source and output have in common is said once; what is said of tensors that differ in numbers only, of the first."""
    lines: list[str] = []
    each = {(item.code, item.severity, item.message, item.where, item.fix): item for item in findings}
    for fix, group in groupby(each.values(), key=lambda item: item.fix):
        same = list(group)
        kinds: dict[tuple[object, ...], list[Finding]] = {}
        for item in same:
            kinds.setdefault(_kind(item), []).append(item)
        lines.extend(
            finding_text(replace(first, fix="")) + (f" and {len(more)} more like it" if more else "")
            for first, *more in kinds.values()
        )
        if fix:
            lines.append(f"  fix: {fix}" if len(same) == 1 else f"  fix for these {len(same)}: {fix}")
    return "\n".join(lines)
