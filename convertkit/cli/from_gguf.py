"""``convertkit from-gguf IN.gguf OUT``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from convertkit.cli.common import DIALECTS, SourcePath, folder_argument, shared_options, source_argument
from convertkit.cli.runner import Shared, run
from convertkit.cli.writing import outcome, writing_options
from convertkit.dtypes import FLOAT_WORDS


@click.command("from-gguf", epilog="Example: convertkit from-gguf drafter.gguf drafter --config-from original")
@source_argument("source")
@folder_argument("out")
@click.option(
    "--dtype",
    type=click.Choice(tuple(FLOAT_WORDS)),
    default="bf16",
    show_default=True,
    help="Type of dense weights.",
)
@click.option("--dialect", type=click.Choice(DIALECTS), help="Keep NVFP4 weights packed, in this spelling.")
@click.option(
    "--config-from",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Take config.json from here; its numbers must be those of the GGUF.",
)
@click.option(
    "--target-model",
    type=SourcePath(headers_only=True),
    metavar="DIR",
    help="Folder of the drafter's target, for the audit; EAGLE-3 needs it.",
)
@writing_options
@shared_options
def command(
    source: Path,
    out: Path,
    dtype: str,
    dialect: str | None,
    config_from: Path | None,
    target_model: Path | None,
    dry_run: bool,
    make_options: Callable[..., Any],
    sizes: Mapping[str, int],
    shared: Shared,
) -> int:
    """Convert the GGUF file SOURCE to safetensors in the new folder OUT.

    Names, row orders and layer numbers become those of the original layout; the config is put together from the
    metadata. What a GGUF does not hold is listed.
    """
    from convertkit.verbs.from_gguf import from_gguf

    return run(
        shared,
        lambda progress: outcome(
            from_gguf(
                source, out, dtype=dtype, dialect=dialect, config_from=config_from, target_model=target_model,
                only_plan=dry_run, options=make_options(progress), **sizes,
            ),
            "converted",
        ),
    )  # fmt: skip
