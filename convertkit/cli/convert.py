"""``convertkit convert SRC OUT --to FORMAT``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from convertkit.cli.common import folder_argument, shared_options, source_argument
from convertkit.cli.drafters import allow_loss_option, target_id_option, target_model_option
from convertkit.cli.runner import Shared, run
from convertkit.cli.writing import outcome, writing_options
from convertkit.formats import FORMATS


@click.command("convert", epilog="Example: convertkit convert drafter-nvfp4 drafter-ct --to nvfp4-ct")
@source_argument("source")
@folder_argument("out")
@click.option("--to", "format_name", type=click.Choice(tuple(FORMATS)), required=True, help="See `convertkit formats`.")
@target_model_option
@target_id_option
@allow_loss_option
@writing_options
@shared_options
def command(
    source: Path,
    out: Path,
    format_name: str,
    target_model: Path | None,
    target_id: str | None,
    allow_loss: tuple[str, ...],
    dry_run: bool,
    make_options: Callable[..., Any],
    sizes: Mapping[str, int],
    shared: Shared,
) -> int:
    """Convert SOURCE to a named format in the new folder OUT.

    Packed weights are re-spelled without decoding where the format is packed, and expanded where it is dense; dense
    weights are packed by the default policy where the format is packed.
    """
    from convertkit.verbs.convert import convert

    return run(
        shared,
        lambda progress: outcome(
            convert(
                source,
                out,
                to=format_name,
                target_model=target_model,
                target_id=target_id,
                allow_loss=allow_loss,
                only_plan=dry_run,
                options=make_options(progress),
                **sizes,
            ),
            "converted",
        ),
    )
