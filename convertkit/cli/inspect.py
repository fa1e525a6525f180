"""``convertkit inspect SRC [--tensors] [--scan]``: what a checkpoint is and what is odd about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from convertkit.cli.common import shared_options, source_argument
from convertkit.cli.drafter_text import drafter_lines
from convertkit.cli.runner import Outcome, Shared, document_of, run
from convertkit.cli.text import count_text, cut, findings_text, pairs, size_text, table
from convertkit.errors import Finding, Where, shown

TEXT_WIDTH = 84
"""Columns for a value beside its label."""

SHOWN_NAMES = 6


@click.command("inspect")
@source_argument("src", headers_only=True)
@click.option("--tensors", is_flag=True, help="List all tensors, grouped into families.")
@click.option("--scan", is_flag=True, help="Read weights too: which of them lie on an NVFP4 grid?")
@shared_options
def command(src: Path, tensors: bool, scan: bool, shared: Shared) -> int:
    """Tell what the checkpoint SRC is: a folder or a .safetensors file. Only headers and config are read, but
    with --scan.
    """
    from convertkit.verbs.inspect import inspect

    def work(progress: object) -> Outcome:
        seen = inspect(src, tensors=tensors, scan=scan)
        return Outcome(document_of("inspect", seen), "\n".join(lines(seen)))

    return run(shared, work)


def lines(document: Mapping[str, Any]) -> Iterator[str]:
    """The document as text that fits a page."""
    yield pairs(_summary(document), indent=0)
    yield ""
    yield _grids(document["grids"])
    if document.get("drafter"):
        yield ""
        yield from drafter_lines(document["drafter"])
    if document["packed"]:
        yield ""
        yield _packed(document["packed"])
    if "families" in document:
        yield ""
        yield _families(document["families"])
    if document["findings"]:
        yield ""
        yield _findings(document["findings"])


def _summary(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    layout = document["layout"]
    yield "path", cut(shown(document["path"]), TEXT_WIDTH)
    kind = "" if layout["kind"] == layout["name"] else f" ({layout['kind']})"
    yield "layout", f"{layout['name']}{kind}, {layout['confidence']}"
    for number, reason in enumerate(layout["reasons"]):
        yield "" if number else "because", cut(reason, TEXT_WIDTH)
    yield "dialect", _dialect(document)
    yield "parameters", count_text(document["parameters"])
    files = count_text(len(document["files"]), "file")
    size = size_text(document["size_bytes"])
    yield "weights", f"{count_text(document['tensors'], 'tensor')}, {size} in {files} ({document['container']})"
    packable = document["packable"]
    if packable["linears"]:
        default = packable["by_default"]
        yield "packable", f"{count_text(packable['linears'], 'dense linear')}, {count_text(default)} of them by default"
    yield from _named("side files", document["side_files"])
    yield from _named("not copied", [f"{name} ({why})" for name, why in document["not_copied"].items()])


def _grids(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        (
            row["grid"],
            count_text(row["tensors"]),
            count_text(row["parameters"]),
            f"{100 * row['share']:.2f} %",
            size_text(row["size_bytes"]),
        )
        for row in rows
    ]
    return table(("grid", "tensors", "parameters", "share", "size"), cells, right=(1, 2, 3, 4))


def _packed(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [(row["template"], count_text(row["count"]), _shapes(row["shapes"])) for row in rows]
    return table(("packed linears", "count", "shape [out, in]"), cells, right=(1,))


def _families(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        (
            row["template"],
            count_text(row["count"]),
            row["role"],
            ", ".join(row["dtypes"]),
            _shapes(row["shapes"]),
            size_text(row["size_bytes"]),
        )
        for row in rows
    ]
    return table(("tensors", "count", "role", "dtype", "shape", "size"), cells, right=(1, 5))


def _dialect(document: Mapping[str, Any]) -> str:
    scheme = document["quantization"]
    if scheme is None:
        return str(document["dialect"])
    kv_cache = f", KV cache {shown(scheme['kv_cache'])}" if scheme["kv_cache"] else ""
    return f"{document['dialect']} ({', '.join(scheme['algorithms'])}{kv_cache}; stated in {scheme['file']})"


def _named(label: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    if names:
        yield label, named(names)


def named(names: Sequence[str]) -> str:
    """As many whole names as fit, at least one, and the number of the others: two cut names would look like one."""
    for count in range(min(len(names), SHOWN_NAMES), 1, -1):
        more = f", and {len(names) - count} more" if len(names) > count else ""
        text = ", ".join(shown(name) for name in names[:count]) + more
        if len(text) <= TEXT_WIDTH:
            return text
    more = f", and {len(names) - 1} more" if len(names) > 1 else ""
    return cut(shown(names[0]), TEXT_WIDTH - len(more)) + more


def _shapes(shapes: Sequence[Sequence[int]]) -> str:
    more = f" and {len(shapes) - 1} more" if len(shapes) > 1 else ""
    return f"{list(shapes[0])}{more}"


def _findings(findings: Sequence[Mapping[str, Any]]) -> str:
    return findings_text(
        Finding(item["code"], item["severity"], item["message"], Where(**item["where"]), item["fix"], item["data"])
        for item in findings
    )
