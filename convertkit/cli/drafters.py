"""Options and body that ``to-speculators``, ``to-dflash`` and ``to-dspark`` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from convertkit.cli.common import SourcePath, folder_argument, shared_options, source_argument
from convertkit.cli.runner import Shared, run
from convertkit.cli.writing import outcome, writing_options

target_model_option = click.option(
    "--target-model",
    type=SourcePath(),
    metavar="DIR",
    help="Folder of the target model: its config, and its weights if they are there.",
)
target_id_option = click.option("--target-id", metavar="ORG/NAME", help="Hub name of the target model.")
allow_loss_option = click.option(
    "--allow-loss",
    multiple=True,
    metavar="FIELD",
    help="Convert although the format cannot express this field; may be repeated.",
)


def drafter_command(name: str, example: str, text: str) -> click.Command:
    """The command ``name``; ``text`` is its help."""

    @click.command(name, epilog=f"Example: {example}", help=text)
    @source_argument("source")
    @folder_argument("out")
    @target_model_option
    @target_id_option
    @allow_loss_option
    @writing_options
    @shared_options
    def command(
        source: Path,
        out: Path,
        target_model: Path | None,
        target_id: str | None,
        allow_loss: tuple[str, ...],
        dry_run: bool,
        make_options: Callable[..., Any],
        sizes: Mapping[str, int],
        shared: Shared,
    ) -> int:
        from convertkit.verbs import drafters

        verb = getattr(drafters, name.replace("-", "_"))
        words = {"target_model": target_model, "target_id": target_id, "allow_loss": allow_loss}
        return run(
            shared,
            lambda progress: outcome(
                verb(source, out, only_plan=dry_run, options=make_options(progress), **words, **sizes), "converted"
            ),
        )

    return command
