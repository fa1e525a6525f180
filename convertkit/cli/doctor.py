"""``convertkit doctor``: what is installed and what this machine and disk can do."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import click

from convertkit.cli.common import shared_options
from convertkit.cli.runner import Outcome, Shared, document_of, run
from convertkit.cli.text import table


@click.command("doctor")
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@shared_options
def command(folder: Path, shared: Shared) -> int:
    """Tell what is installed, which optional parts are missing, and what the disk of FOLDER can do.

    Exit status 1 if something is missing that every conversion needs.
    """
    from convertkit.verbs.doctor import doctor

    def work(progress: object) -> Outcome:
        checks = doctor(folder)
        bad = any(item.state == "missing" for item in checks)
        lines = []
        for group, items in groupby(checks, key=lambda item: item.group):
            rows = [(item.name, item.found or item.state, item.hint) for item in items]
            lines += [table((group, "found", "for"), rows), ""]
        lines.append("something is missing" if bad else "ready")
        values = {"checks": [asdict(item) for item in checks], "ready": not bad}
        return Outcome(document_of("doctor", values), "\n".join(lines), int(bad))

    return run(shared, work)
