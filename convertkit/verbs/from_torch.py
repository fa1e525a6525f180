"""``from-torch``: weights that PyTorch pickled as a safetensors folder, byte for byte."""

from __future__ import annotations

import os
from pathlib import Path

from convertkit.conversion.from_torch import open_torch, plan_from_torch
from convertkit.conversion.place import check_place
from convertkit.conversion.plan import DEFAULT_SHARD_BYTES
from convertkit.errors import refusal
from convertkit.hub.arguments import from_hub
from convertkit.verbs.beside import Beside
from convertkit.verbs.case import Options, Result
from convertkit.verbs.line import carry_out
from convertkit.verbs.planned import DryRun


@from_hub("source")
def from_torch(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    header_slack_bytes: int = 0,
    only_plan: bool = False,
    options: Options = Options(),
) -> Result | DryRun:
    """Copy the tensors of ``source`` into the new safetensors folder ``out``.

    ``source`` is a folder with ``pytorch_model.bin`` or its shards, or a file of ``torch.save``. Nothing in it is run.

    Raises:
        ConvertError: see ``docs/errors.md``; nothing is written unless the whole output is.
    """
    path = Path(source)
    if not path.exists():
        raise refusal("E_NOT_FOUND", f"no such file or folder: {path}", fix="check the path")
    checkpoint = open_torch(path)
    check_place(Path(out), checkpoint.paths, force=options.force or only_plan)
    plan = plan_from_torch(checkpoint, max_shard_bytes, header_slack_bytes)
    beside = Beside(checkpoint, engines=options.engines)
    return beside.foreseen(plan) if only_plan else carry_out(plan, Path(out), [beside.report], options)
