"""``convertkit formats``: the named output formats, and what else is known: layouts, GGUF, engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any

import click

from convertkit.cli.common import shared_options
from convertkit.cli.runner import Outcome, Shared, document_of, run
from convertkit.cli.text import pairs

WIDTH = 80
"""Columns for a list of words beside its label."""


@click.command("formats")
@shared_options
def command(shared: Shared) -> int:
    """List the formats that `convertkit convert --to` knows; the layouts that are recognised; the architectures and
    types of GGUF; the engines that `--engine` asks, in the versions that are described.
    """

    def work(progress: object) -> Outcome:
        known = supported()
        parts = [
            pairs(((row["name"], row["meaning"]) for row in known["formats"]), indent=0),
            "layouts\n" + pairs((row["name"], row["kind"]) for row in known["layouts"]),
            "GGUF\n" + pairs(row for name, words in known["gguf"].items() for row in _wrapped(name, words)),
            "engines\n"
            + pairs((row["name"], f"{', '.join(row['versions'])} ({row['how']})") for row in known["engines"]),
        ]
        return Outcome(document_of("formats", known), "\n\n".join(parts))

    return run(shared, work)


def _wrapped(name: str, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    lines = wrap(", ".join(words), WIDTH)
    yield from zip((name, *[""] * (len(lines) - 1)), lines, strict=True)


def supported() -> dict[str, Any]:
    """Rows of the tables, as JSON values."""
    from convertkit.engines.rules import ENGINES
    from convertkit.formats import FORMATS
    from convertkit.layouts.gguf_names import ARCHS
    from convertkit.layouts.gguf_types import TYPE_NAMES
    from convertkit.layouts.tables import LAYOUTS

    return {
        "formats": [asdict(row) for row in FORMATS.values()],
        "layouts": [{"name": row.name, "kind": row.kind} for row in LAYOUTS if row.kind != "unknown"],
        "gguf": {"architectures": sorted(ARCHS), "types": list(TYPE_NAMES)},
        "engines": [
            {"name": row.name, "title": row.title, "versions": list(row.proven), "how": row.how}
            for row in ENGINES.values()
        ],
    }
