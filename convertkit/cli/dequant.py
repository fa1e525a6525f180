"""``convertkit dequant SRC OUT``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from convertkit.cli.common import SourcePath, folder_argument, shared_options, source_argument
from convertkit.cli.runner import Shared, run
from convertkit.cli.writing import outcome, writing_options
from convertkit.conversion.units import EXPANSIONS
from convertkit.dtypes import FLOAT_WORDS


@click.command("dequant", epilog="Example: convertkit dequant drafter-nvfp4 drafter-bf16 --against original-bf16")
@source_argument("source")
@folder_argument("out")
@click.option(
    "--dtype", type=click.Choice(tuple(FLOAT_WORDS)), default="bf16", show_default=True, help="Type to expand to."
)
@click.option(
    "--arithmetic",
    type=click.Choice(EXPANSIONS),
    default="exact",
    show_default=True,
    help="exact rounds the product once; the others repeat the steps of that package.",
)
@click.option(
    "--kv-scales",
    type=click.Choice(("drop", "keep")),
    default="drop",
    show_default=True,
    help="What becomes of the scales of a quantized KV cache.",
)
@click.option(
    "--against",
    type=SourcePath(),
    metavar="DIR",
    help="Compare with this copy; a difference is status 1.",
)
@writing_options
@shared_options
def command(
    source: Path,
    out: Path,
    dtype: str,
    arithmetic: str,
    kv_scales: str,
    against: Path | None,
    dry_run: bool,
    make_options: Callable[..., Any],
    sizes: Mapping[str, int],
    shared: Shared,
) -> int:
    """Expand the NVFP4 linears of SOURCE to dense weights in the new folder OUT.

    DEQUANT_REPORT.json counts, per tensor, the elements that differ from the exact value rounded once.
    """
    from convertkit.verbs.dequant import dequant

    return run(
        shared,
        lambda progress: outcome(
            dequant(
                source,
                out,
                dtype=dtype,
                arithmetic=arithmetic,
                kv_scales=kv_scales,
                against=against,
                only_plan=dry_run,
                options=make_options(progress),
                **sizes,
            ),
            "expanded",
        ),
    )
