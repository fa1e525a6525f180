"""``convertkit report DIR [--compare B]``: a page from the reports of a folder."""

from __future__ import annotations

from pathlib import Path

import click

from convertkit.cli.common import folder_argument, force_option, shared_options
from convertkit.cli.runner import Outcome, Shared, document_of, run
from convertkit.cli.text import count_text, path_text


@click.command("report", epilog="Example: convertkit report drafter-nvfp4 --compare drafter-amax --output both.html")
@folder_argument("folder")
@click.option("--compare", type=click.Path(path_type=Path), metavar="B", help="Show this folder beside it.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("REPORT.html"),
    show_default=True,
    metavar="FILE",
    help="The page to write.",
)
@force_option
@shared_options
def command(folder: Path, compare: Path | None, output: Path, force: bool, shared: Shared) -> int:
    """Write one HTML page from the reports in FOLDER and its subfolders.

    The page needs no network and no script. Weights are not read.
    """
    from convertkit.verbs.report import report

    def work(progress: object) -> Outcome:
        view = report(folder, output, compare=compare, force=force)
        count = sum(len(part) for part in view.parts.values()) + (view.release is not None)
        said = document_of("report-page", {"page": path_text(output), "reports": count})
        return Outcome(said, f"page: {path_text(output)}, from {count_text(count, 'report')}")

    return run(shared, work)
