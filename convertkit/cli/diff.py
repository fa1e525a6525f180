"""``convertkit diff A B``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from convertkit.cli.common import shared_options, source_argument, workers_option
from convertkit.cli.runner import Outcome, Shared, run
from convertkit.cli.text import count_text, table

MAX_ROWS = 20


@click.command("diff", epilog="Example: convertkit diff drafter-nvfp4 drafter-ct")
@source_argument("a", headers_if="headers")
@source_argument("b", headers_if="headers")
@click.option(
    "--headers", is_flag=True, is_eager=True, help="Compare names, shapes, dtypes and config; read no weights."
)
@workers_option
@shared_options
def command(a: Path, b: Path, headers: bool, workers: int, shared: Shared) -> int:
    """Show how two checkpoints differ: names, shapes, dtypes, values, config and side files.

    Either may be dense or packed in any dialect. Exit status 1 when they differ.
    """
    from convertkit.verbs.diff import diff

    def outcome(progress: Any) -> Outcome:
        made = diff(a, b, headers=headers, workers=workers, progress=progress)
        return Outcome(made.document, "\n".join(_parts(made.document)), made.status)

    return run(shared, outcome)


def _parts(document: Mapping[str, Any]) -> Iterator[str]:
    names, summary = document["names"], document["summary"]
    rows: list[tuple[Any, ...]]
    if names["renamed"]:
        rows = [(row["from"], row["to"], count_text(row["count"])) for row in names["renamed"]]
        yield _shown(("renamed", "is now", "such"), rows, (2,))
    for side in ("a", "b"):
        if names[f"only_{side}"]:
            rows = [(row["first"], count_text(row["count"])) for row in names[f"only_{side}"]]
            yield _shown((f"only in {side.upper()}", "such"), rows, (1,))
    if document["shapes"]:
        yield _shown(("shape of", "A", "B"), [(row["name"], row["a"], row["b"]) for row in document["shapes"]], ())
    if document["dtypes"]:
        rows = [(row["first"], row["a"], row["b"], count_text(row["count"])) for row in document["dtypes"]]
        yield _shown(("dtype of", "A", "B", "such"), rows, (3,))
    if document["values"]:
        yield _shown(
            ("values of", "differing", "of", "first at", "largest", "codes", "scales", "global"),
            [_value_row(row) for row in document["values"]],
            (1, 2, 4, 5, 6, 7),
        )
    swapped = sum(row["nibbles_swapped"] for row in document["values"])
    if swapped:
        yield f"{count_text(swapped, 'weight')} would be equal with nibbles exchanged: repair --swap-nibbles"
    if document["config"]:
        rows = [(f"{row['file']}: {row['key']}", *(_cell(row, side) for side in "ab")) for row in document["config"]]
        yield _shown(("config", "A", "B"), rows, ())
    if document["side_files"]:
        yield _shown(("file", ""), [(row["path"], row["what"]) for row in document["side_files"]], ())
    if document["verdict"] == "same":
        what = "" if document["values_compared"] else "; values were not compared"
        yield f"the same: {count_text(summary['common'], 'weight')}{what}"
    else:
        yield "different: " + ", ".join(
            f"{count_text(count)} {'weights' if name == 'values' else name.replace('_', ' ')}"
            for name, count in summary.items()
            if count and name not in ("common", "elements")
        )


def _value_row(row: Mapping[str, Any]) -> tuple[object, ...]:
    largest = "-" if row["largest"] is None else f"{row['largest']:.3g}"
    planes = tuple("" if row[key] is None else count_text(row[key]) for key in ("codes", "scales"))
    first = "" if row["first"] is None else row["first"]
    scale = "" if row["global_scale"] is None else count_text(int(row["global_scale"]))
    return (row["name"], count_text(row["differing"]), count_text(row["elements"]), first, largest, *planes, scale)


def _cell(row: Mapping[str, Any], side: str) -> str:
    if row["only"] is not None and row["only"] != side:
        return "-"
    return json.dumps(row[side], ensure_ascii=False)


def _shown(headers: tuple[str, ...], rows: list[tuple[Any, ...]], right: tuple[int, ...]) -> str:
    text = table(headers, rows[:MAX_ROWS], right=right)
    return text if len(rows) <= MAX_ROWS else f"{text}\n… {count_text(len(rows) - MAX_ROWS)} more in --json"
