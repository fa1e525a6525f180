"""The charts of REPORT.html: error by layer and module, block scales, size by module."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from convertkit.layouts.rules import natural_key
from convertkit.release.page_parts import Cell, bars, columns_chart, download, heat_map, number, table
from convertkit.release.summary import AUDIT, GATE, View
from convertkit.release.words import size_text

LAYER = re.compile(r"(?P<head>.*?\b(?:layers|blk|blocks|h)\.)(?P<layer>[0-9]+)\.(?P<module>.+)")
EXPERT = re.compile(r"\.[0-9]+\.")
MAX_LAYERS = 200

Grid = Mapping[tuple[str, str], float | None]


def place_of(name: str) -> tuple[str, str]:
    """(layer, module) of a weight; experts of a layer share a module. ``other`` is the layer of what has none."""
    match = LAYER.fullmatch(name.removesuffix(".weight"))
    if match is None:
        return "other", name.removesuffix(".weight")
    return match["layer"], EXPERT.sub(".*.", match["module"])


def grid_of(rows: Iterable[Mapping[str, Any]], metric: str, worst: Any) -> dict[tuple[str, str], float | None]:
    """A metric of every tensor row by layer and module: of several weights the worst, None where it is exact."""
    found: dict[tuple[str, str], list[float | None]] = {}
    for row in rows:
        if row["scope"] == "tensor" and "metrics" in row:
            value = None if row["metrics"]["exact"] else row["metrics"].get(metric)
            found.setdefault(place_of(row["name"]), []).append(value)
    return {
        place: worst([value for value in values if value is not None], default=None) for place, values in found.items()
    }


def as_rows(grid: Grid) -> tuple[list[str], list[tuple[str, list[float | str | None]]]]:
    """Columns and rows of a heat map in natural order."""
    modules = sorted({module for _, module in grid}, key=natural_key)
    layers = sorted({layer for layer, _ in grid}, key=natural_key)[:MAX_LAYERS]
    rows: list[tuple[str, list[float | str | None]]] = []
    for layer in layers:
        rows.append((layer, [grid.get((layer, module), "") for module in modules]))
    return modules, rows


def fidelity_section(view: View) -> Iterator[str]:
    """Heat maps of SQNR and relative RMS, and the histogram of block scales, for every FIDELITY_GATE."""
    for folder, part in view.parts.items():
        report = part.get(GATE)
        if report is None or not report.get("rows") or "whole" not in report["summary"]:
            continue  # a forward gate's rows are not about weights
        where = f" of {folder}/" if folder else ""
        key = f"-{folder.replace('/', '-')}" if folder else ""
        whole = report["summary"]["whole"]
        if whole["exact"]:
            yield f"<p>No value{where} differs from the reference.</p>"
        for title, metric, form, good in (
            ("SQNR in dB, higher is better", "sqnr_db", ".1f", True),
            ("Relative RMS error, lower is better", "rel_rms", ".4f", False),
        ):
            grid = grid_of(report["rows"], metric, min if good else max)
            modules, rows = as_rows(grid)
            yield from heat_map(f"{title}{where}", modules, rows, form, high_is_good=good)
            values = {f"{layer}|{module}": value for (layer, module), value in sorted(grid.items())}
            yield download(f"{metric}{key}", values)
        yield from _block_scales(whole.get("block_scales"), where, key)
        yield from _codes(view, folder, where, key)


def _block_scales(scales: Mapping[str, Any] | None, where: str, key: str) -> Iterator[str]:
    """How many block scales lie in each power of two."""
    if not scales or not any(scales["exponents"]):
        return
    items = [("sub" if place == 0 else f"2^{place - 7}", count) for place, count in enumerate(scales["exponents"])]
    yield from columns_chart(f"Block scales by power of two{where}", items)
    rows = [(Cell(label), number(count)) for label, count in items]
    yield from table(f"Block scales by power of two{where}; sub: subnormal", ("exponent", "blocks"), rows)
    yield download(f"block-scales{key}", dict(scales))


E2M1 = ("0", "0.5", "1", "1.5", "2", "3", "4", "6")
"""Magnitudes of the codes 0 to 7; 8 to 15 are the same with a minus sign (OCP Microscaling Formats 1.0, table 1)."""


def _codes(view: View, folder: str, where: str, key: str) -> Iterator[str]:
    """How often each code occurs, in the order of its value."""
    title = f"{folder}/" if folder else "."
    counts = next((row["codes"] for row in view.variants if row["folder"] == title), None)
    if counts is None:
        return
    order = [*range(15, 7, -1), *range(8)]
    items = [(("−" if code >= 8 else "") + E2M1[code % 8], counts[code]) for code in order]
    yield from columns_chart(f"Codes by value{where}", items)
    rows = [(Cell(label), number(count)) for label, count in items]
    yield from table(f"Codes by value{where}", ("value", "weights"), rows)
    yield download(f"codes{key}", dict(zip(map(str, range(16)), counts, strict=True)))


STORED_BITS = {"BF16": 16, "F16": 16, "F32": 32, "F8_E4M3": 8, "U8": 8, "I8": 8, "I32": 32, "I64": 64, "BOOL": 8}


def size_section(view: View) -> Iterator[str]:
    """Bytes by role of the weights, for every folder that has an audit."""
    by_folder = {folder: _sizes(part[AUDIT]["rows"]) for folder, part in view.parts.items() if part.get(AUDIT)}
    by_folder = {folder: sizes for folder, sizes in by_folder.items() if sizes}
    if not by_folder:
        return
    most = max(max(sizes.values()) for sizes in by_folder.values())
    roles = sorted({role for sizes in by_folder.values() for role in sizes})
    for place, (folder, sizes) in enumerate(by_folder.items()):
        items = [(role, float(sizes.get(role, 0)), size_text(sizes.get(role, 0))) for role in roles]
        scaled = [*items] if max(sizes.values()) == most else items
        yield from bars(f"Bytes by kind of weight in {folder + '/' if folder else 'the root'}", scaled,
                        second=bool(place % 2))  # fmt: skip
    rows = [(Cell(role), *(number(sizes.get(role, 0)) for sizes in by_folder.values())) for role in roles]
    rows.append((Cell("all"), *(number(sum(sizes.values())) for sizes in by_folder.values())))
    names = [f"{folder}/" if folder else "." for folder in by_folder]
    yield from table("Bytes of tensors by kind of weight", ("kind", *names), rows)
    yield download("sizes", {folder or ".": sizes for folder, sizes in by_folder.items()})


def _sizes(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Bytes of tensors by role, from the families that an audit lists."""
    sizes: dict[str, int] = {}
    for row in rows:
        elements = 1
        for length in row["shape"]:
            elements *= length
        if row.get("planes") and row.get("grid") == "nvfp4":
            size = elements // 2 + elements // 16 + 4
        else:
            size = elements * STORED_BITS.get(row["dtype"], 16) // 8
        role = str(row.get("role") or "other")
        sizes[role] = sizes.get(role, 0) + size * row["count"]
    return dict(sorted(sizes.items()))
