"""Two folders side by side on one page: what each lost, module by module, and what each weighs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convertkit.release.page_charts import as_rows, grid_of
from convertkit.release.page_parts import Cell, download, heat_map, number, table
from convertkit.release.summary import EXPANSION, GATE, View
from convertkit.release.words import size_text

METRICS = (("rel_rms", "relative RMS", ".4f"), ("sqnr_db", "SQNR dB", ".2f"), ("cosine", "cosine", ".5f"),
           ("max_abs_error", "largest error", ".3g"), ("changed", "changed elements", ","))  # fmt: skip


def compare_section(view: View, other: View) -> Iterator[str]:
    """A table of both, and a heat map of the difference in SQNR for the gates in the same folders."""
    names = (f"A: {view.title}", f"B: {other.title}")
    rows = list(_rows(view, other))
    yield from table("A and B", ("what", *names), rows)
    for folder in sorted(set(view.parts) & set(other.parts)):
        mine, theirs = view.parts[folder].get(GATE), other.parts[folder].get(GATE)
        if mine is None or theirs is None:
            continue
        one, two = (grid_of(report.get("rows", ()), "sqnr_db", min) for report in (mine, theirs))
        both = {
            place: two_value - one_value
            for place in one
            if place in two and (one_value := one[place]) is not None and (two_value := two[place]) is not None
        }
        if both:
            modules, lines = as_rows(both)
            title = f"SQNR of B minus that of A in dB{', ' + folder + '/' if folder else ''}; above 0: B is better"
            yield from heat_map(title, modules, lines, "+.2f", high_is_good=True)
            values = {f"{layer}|{module}": value for (layer, module), value in sorted(both.items())}
            yield download("sqnr-difference", values)


def _rows(view: View, other: View) -> Iterator[tuple[Cell, ...]]:
    yield Cell("all files"), *(Cell(size_text(sum(item.size_bytes for item in one.files))) for one in (view, other))
    for folder in sorted({*view.parts, *other.parts}):
        name = f"{folder}/" if folder else "root"
        for report, what in ((GATE, _gate), (EXPANSION, _expansion)):
            found = [one.parts.get(folder, {}).get(report) for one in (view, other)]
            if any(item is not None for item in found):
                yield from what(name, found)


def _gate(name: str, found: list[Mapping[str, Any] | None]) -> Iterator[tuple[Cell, ...]]:
    for metric, said, form in METRICS:
        values = [None if item is None else item["summary"].get("whole", {}).get(metric) for item in found]
        yield Cell(f"{name}: {said}"), *(number(value, form) for value in values)


def _expansion(name: str, found: list[Mapping[str, Any] | None]) -> Iterator[tuple[Cell, ...]]:
    values = [None if item is None else item["summary"]["differing"] for item in found]
    yield Cell(f"{name}: differing elements"), *(number(value) for value in values)
