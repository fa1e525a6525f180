"""Pieces of REPORT.html: escaped text, tables, heat maps, bars. Each chart stands beside its numbers as a table."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convertkit.errors import plain


def text(value: object) -> str:
    """A value as HTML text: nothing of it is markup, and no character steers the reader's eye."""
    return html.escape(plain(str(value)), quote=True)


@dataclass(frozen=True)
class Cell:
    """One cell: what it says, whether it is a number, a colour behind it, a class."""

    value: object
    number: bool = False
    colour: str = ""
    kind: str = ""
    markup: str = ""

    def html(self, head: bool = False) -> str:
        names = [self.kind, "n" if self.number else "", "heat" if self.colour else ""]
        attributes = f' class="{" ".join(filter(None, names))}"' if any(names) else ""
        attributes += f' style="background:{self.colour}"' if self.colour else ""
        inside = self.markup or text(self.value)
        return f'<th scope="row"{attributes}>{inside}</th>' if head else f"<td{attributes}>{inside}</td>"


def number(value: float | int | None, form: str = ",") -> Cell:
    """A cell that is set flush right; a dash for None."""
    return Cell("–" if value is None else format(value, form), number=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Iterator[str]:
    """A table that scrolls on its own where the page is narrow. The first cell of a row is its heading."""
    yield f'<div class="scroll" role="region" tabindex="0" aria-label="{text(title)}"><table>'
    yield f"<caption>{text(title)}</caption><thead><tr>"
    numbers = [bool(rows) and row.number for row in (rows[0] if rows else [])] or [False] * len(columns)
    for name, right in zip(columns, numbers, strict=True):
        yield f'<th scope="col"{" class=n" if right else ""}>{text(name)}</th>'
    yield "</tr></thead><tbody>"
    for row in rows:
        yield f"<tr>{row[0].html(head=True)}{''.join(cell.html() for cell in row[1:])}</tr>"
    yield "</tbody></table></div>"


def download(name: str, values: Any) -> str:
    """A link that saves the numbers of a chart as JSON, from inside the page."""
    data = json.dumps(values, indent=1, sort_keys=True, ensure_ascii=False).encode()
    encoded = base64.b64encode(data).decode()
    return (f'<p class="download"><a download="{text(name)}.json" href="data:application/json;base64,{encoded}">'
            f"Save these numbers as {text(name)}.json</a></p>")  # fmt: skip


def _shade(value: float | None, least: float, most: float, *, high_is_good: bool) -> str:
    """A colour from pale green (good) over pale yellow to orange (bad); dark text is readable on each."""
    if value is None:
        return "#cfeedd"
    span = most - least
    place = 0.5 if span <= 0 else (value - least) / span
    bad = 1 - place if high_is_good else place
    bad = min(1.0, max(0.0, bad))
    hue = round(150 - 125 * bad)
    return f"hsl({hue} 65% {round(84 - 8 * bad)}%)"


def heat_map(
    title: str,
    columns: Sequence[str],
    rows: Sequence[tuple[str, Sequence[float | str | None]]],
    form: str,
    *,
    high_is_good: bool,
) -> Iterator[str]:
    """Rows of layers, columns of modules. None is exact, an empty string means that there is no such weight."""
    found = [value for _, values in rows for value in values if isinstance(value, (int, float))]
    least, most = (min(found), max(found)) if found else (0.0, 0.0)
    cells = [
        [Cell(name), *(_heat_cell(value, least, most, form, high_is_good) for value in values)] for name, values in rows
    ]
    yield from table(title, ("layer", *columns), cells)


def _heat_cell(value: float | str | None, least: float, most: float, form: str, high_is_good: bool) -> Cell:
    if value == "":
        return Cell("")
    said = "exact" if value is None else format(value, form)
    shown = value if not isinstance(value, str) else None
    return Cell(said, colour=_shade(shown, least, most, high_is_good=high_is_good))


def bars(title: str, items: Sequence[tuple[str, float, str]], *, second: bool = False) -> Iterator[str]:
    """Horizontal bars: (label, value, value as text)."""
    most = max((value for _, value, _ in items), default=0) or 1
    height = 26 * len(items) + 4
    yield f"<figure><figcaption>{text(title)}</figcaption>"
    yield f'<svg viewBox="0 0 460 {height}" role="img" aria-label="{text(title)}">'
    for place, (label, value, said) in enumerate(items):
        top, width = 26 * place + 3, 230 * value / most
        kind = "b2" if second else "b"
        yield f'<text x="132" y="{top + 14}" text-anchor="end">{text(_cut(label))}</text>'
        yield f'<rect class="{kind}" x="140" y="{top}" width="{width:.1f}" height="19" rx="2"/>'
        yield f'<text x="{146 + width:.1f}" y="{top + 14}">{text(said)}</text>'
    yield "</svg></figure>"


def columns_chart(title: str, items: Sequence[tuple[str, float]]) -> Iterator[str]:
    """A histogram: one column per bin."""
    most = max((value for _, value in items), default=0) or 1
    step = 450 / max(1, len(items))
    yield f"<figure><figcaption>{text(title)}</figcaption>"
    yield f'<svg viewBox="0 0 460 190" role="img" aria-label="{text(title)}">'
    yield '<line class="axis" x1="5" x2="455" y1="160" y2="160"/>'
    for place, (label, value) in enumerate(items):
        left, height = 5 + step * place, 150 * value / most
        place_ = f'x="{left + 1:.1f}" y="{160 - height:.1f}" width="{step - 2:.1f}" height="{height:.1f}"'
        yield f'<rect class="b" {place_}/>'
        if place % 2 == 0 or len(items) <= 8:  # every other bin has room for its name; the table names them all
            yield f'<text x="{left + step / 2:.1f}" y="178" text-anchor="middle">{text(label)}</text>'
    yield "</svg></figure>"


def _cut(label: str, most: int = 18) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"


def facts(title: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Names and values as a table."""
    rows = [(Cell(name.replace("_", " ")), Cell(_said(value))) for name, value in values.items()]
    yield from table(title, ("field", "value"), rows)


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "–"
    if isinstance(value, (list, Mapping)):
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    return str(value)
