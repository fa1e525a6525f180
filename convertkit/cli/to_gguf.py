"""``convertkit to-gguf SRC OUT.gguf``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from convertkit.cli.common import SourcePath, folder_argument, shared_options, size_option_value, source_argument
from convertkit.cli.runner import Shared, run
from convertkit.cli.writing import outcome, writing_options
from convertkit.layouts.gguf_types import TYPE_NAMES


def _part_size(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """A size, also as ``gguf-split`` spells it: ``300M``, ``2G``."""
    spelt = text + "B" if text is not None and text.endswith(("M", "G")) else text
    return size_option_value(context, option, spelt)


@click.command("to-gguf", epilog="Example: convertkit to-gguf drafter drafter.gguf --type q8_0 --target-model target")
@source_argument("source")
@folder_argument("out")
@click.option(
    "--type",
    "type_name",
    type=click.Choice(TYPE_NAMES),
    default="bf16",
    show_default=True,
    help="Type of the matrices.",
)
@click.option(
    "--target-model",
    type=SourcePath(headers_only=True),
    metavar="PATH",
    help="Folder or GGUF of the target that the drafter drafts for: it gives the vocabulary.",
)
@click.option("--pre", metavar="NAME", help="llama.cpp's name of the pre-tokenizer, if it is not recognised.")
@click.option("--name", metavar="NAME", help="Name of the model to state in the file.")
@click.option(
    "--split-max-size",
    "split_max_bytes",
    callback=_part_size,
    metavar="SIZE",
    help="Cut the GGUF into parts with at most so many bytes of tensors, e.g. 2G or 500M; OUT is a folder.",
)
@click.option(
    "--split-max-tensors",
    type=click.IntRange(min=1),
    metavar="N",
    help="Cut the GGUF into parts of N tensors; OUT is a folder.",
)
@writing_options
@shared_options
def command(
    source: Path,
    out: Path,
    type_name: str,
    target_model: Path | None,
    pre: str | None,
    name: str | None,
    split_max_bytes: int | None,
    split_max_tensors: int | None,
    dry_run: bool,
    make_options: Callable[..., Any],
    sizes: Mapping[str, int],
    shared: Shared,
) -> int:
    """Convert SOURCE to GGUF for llama.cpp and check what was written.

    OUT ending in .gguf is one file (--report-dir keeps its report), otherwise a new folder. NVFP4 weights are carried
    over without loss with --type nvfp4.
    """
    from convertkit.conversion.plan import DEFAULT_SHARD_BYTES
    from convertkit.verbs.to_gguf import to_gguf

    if dict(sizes) != {"max_shard_bytes": DEFAULT_SHARD_BYTES, "header_slack_bytes": 0}:
        raise click.UsageError(
            "a GGUF has no shards or spare bytes: not --max-shard-size, --header-slack but --split-max-size"
        )
    return run(
        shared,
        lambda progress: outcome(
            to_gguf(
                source, out, type=type_name, target_model=target_model, pre=pre, name=name,
                split_max_bytes=split_max_bytes, split_max_tensors=split_max_tensors, only_plan=dry_run,
                options=make_options(progress),
            ),
            "converted",
        ),
    )  # fmt: skip


for _option in command.params:  # they belong to safetensors; whoever gives one is told what to give instead
    if isinstance(_option, click.Option) and _option.name in ("max_shard_bytes", "header_slack_bytes"):
        _option.hidden = True
