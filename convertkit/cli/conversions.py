"""Options and body that ``convert``, ``to-speculators``, ``to-dflash`` and ``to-dspark`` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from convertkit.cli.common import SourcePath, folder_argument, shared_options, source_argument
from convertkit.cli.runner import Shared, run
from convertkit.cli.writing import outcome, writing_options

Command = Callable[..., int]

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


def conversion_command(
    name: str, module: str, example: str, text: str, option: Callable[[Command], Command] = lambda command: command
) -> click.Command:
    """The command ``name``. Its verb is the function of that name in ``convertkit.verbs.MODULE``, which gets the
    options under their names; ``text`` is its help, ``option`` one that it has besides."""

    @click.command(name, epilog=f"Example: {example}", help=text)
    @source_argument("source")
    @folder_argument("out")
    @option
    @target_model_option
    @target_id_option
    @allow_loss_option
    @writing_options
    @shared_options
    def command(
        source: Path,
        out: Path,
        dry_run: bool,
        make_options: Callable[..., Any],
        sizes: Mapping[str, int],
        shared: Shared,
        **words: Any,
    ) -> int:
        verb = getattr(import_module(f"convertkit.verbs.{module}"), name.replace("-", "_"))
        return run(
            shared,
            lambda progress: outcome(
                verb(source, out, only_plan=dry_run, options=make_options(progress), **words, **sizes), "converted"
            ),
        )

    return command
