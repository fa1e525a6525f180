"""``convertkit pack-nvfp4 SRC OUT``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from convertkit.cli.common import (
    DIALECTS,
    SourcePath,
    exclude_option,
    folder_argument,
    include_option,
    shared_options,
    source_argument,
)
from convertkit.cli.gate import ENGINES
from convertkit.cli.runner import Shared, run
from convertkit.cli.thresholds import threshold_options
from convertkit.cli.writing import outcome, writing_options
from convertkit.conversion.scales import SCALES


@click.command("pack-nvfp4", epilog="Example: convertkit pack-nvfp4 drafter-bf16 drafter-nvfp4")
@source_argument("source")
@folder_argument("out")
@click.option(
    "--dialect", type=click.Choice(DIALECTS), help="Spelling of planes and config; by default that of the kind."
)
@click.option(
    "--scales",
    type=click.Choice(tuple(SCALES)),
    default="auto",
    show_default=True,
    help="auto: lossless where a group lies on an NVFP4 grid, amax elsewhere. lossless: refuse the others. amax is "
    "ModelOpt's arithmetic, amax-llmcompressor that of llm-compressor. mse, four-over-six: least squared error.",
)
@click.option("--allow-loss", is_flag=True, help="With lossless: pack weights that are not wholly on a grid too.")
@click.option(
    "--global-scales-from",
    type=click.Path(path_type=Path),
    metavar="REF",
    help="A packed checkpoint whose global scales are tried first: gives back its bytes.",
)
@click.option("--marlin-safe", is_flag=True, help="No block scale below 2^-6, which Marlin kernels serve as zero.")
@include_option
@exclude_option
@click.option("--fuse", multiple=True, metavar="A,B", help="Modules that an engine fuses: they share one global scale.")
@click.option("--reversible-scale", is_flag=True, help="Choose global scales whose reciprocal inverts back exactly.")
@click.option(
    "--target-model",
    type=SourcePath(headers_only=True),
    metavar="DIR",
    help="Folder of the drafter's target, for the audit; EAGLE-3 needs it.",
)
@click.option("--as-served", type=click.Choice(ENGINES), help="Judge the pack as this engine would serve it.")
@threshold_options
@writing_options
@shared_options
def command(
    source: Path,
    out: Path,
    dialect: str | None,
    scales: str,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    fuse: tuple[str, ...],
    reversible_scale: bool,
    allow_loss: bool,
    global_scales_from: Path | None,
    marlin_safe: bool,
    target_model: Path | None,
    as_served: str | None,
    limits: Mapping[str, float | None],
    dry_run: bool,
    make_options: Callable[..., Any],
    sizes: Mapping[str, int],
    shared: Shared,
) -> int:
    """Pack the linear layers of SOURCE to NVFP4 W4A16 in the new folder OUT, with proof.

    A drafter packs its MLP linears, a language model all linears but embeddings, head, routers and the like; choose
    with --include and --exclude (whole module names; {i} layer, {e} expert, {x} one part, {rest} any parts).
    Everything else is copied byte for byte.
    """
    from convertkit.verbs.pack import pack_nvfp4

    return run(
        shared,
        lambda progress: outcome(
            pack_nvfp4(
                source,
                out,
                dialect=dialect,
                scales=scales,
                include=include,
                exclude=exclude,
                fuse=fuse,
                reversible_scale=reversible_scale,
                allow_loss=allow_loss,
                global_scales_from=global_scales_from,
                marlin_safe=marlin_safe,
                target_model=target_model,
                as_served=as_served,
                limits=limits,
                only_plan=dry_run,
                options=make_options(progress),
                **sizes,
            ),
            "packed",
        ),
    )
