"""``convertkit from-torch SRC OUT``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from convertkit.cli.common import folder_argument, shared_options, source_argument
from convertkit.cli.runner import Shared, run
from convertkit.cli.writing import outcome, writing_options


@click.command("from-torch", epilog="Example: convertkit from-torch drafter/pytorch_model.bin drafter-safetensors")
@source_argument("source")
@folder_argument("out")
@writing_options
@shared_options
def command(
    source: Path,
    out: Path,
    dry_run: bool,
    make_options: Callable[..., Any],
    sizes: Mapping[str, int],
    shared: Shared,
) -> int:
    """Copy weights that PyTorch pickled to safetensors in the new folder OUT.

    SOURCE is a folder with pytorch_model.bin, or with its shards, or one file of torch.save. Every tensor keeps its
    name and its bytes. The pickle is read and not run: what is no tensor is refused.
    """
    from convertkit.verbs.from_torch import from_torch

    return run(
        shared,
        lambda progress: outcome(
            from_torch(source, out, only_plan=dry_run, options=make_options(progress), **sizes), "converted"
        ),
    )
