"""``convertkit formats``: the named output formats."""

from __future__ import annotations

from dataclasses import asdict

import click

from convertkit.cli.common import shared_options
from convertkit.cli.runner import Outcome, Shared, document_of, run
from convertkit.cli.text import pairs


@click.command("formats")
@shared_options
def command(shared: Shared) -> int:
    """List the formats that `convertkit convert --to` knows."""
    from convertkit.formats import FORMATS

    def work(progress: object) -> Outcome:
        text = pairs(((row.name, row.meaning) for row in FORMATS.values()), indent=0)
        return Outcome(document_of("formats", {"formats": [asdict(row) for row in FORMATS.values()]}), text)

    return run(shared, work)
