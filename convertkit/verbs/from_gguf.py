"""``from-gguf``: a GGUF as a safetensors folder, dense or with its NVFP4 weights as planes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from convertkit.containers.files import read_small
from convertkit.containers.folder import CONFIG, open_any
from convertkit.containers.strict_json import parse_json
from convertkit.conversion.gguf_back import BackRequest, plan_back
from convertkit.conversion.place import check_place
from convertkit.conversion.plan import DEFAULT_SHARD_BYTES
from convertkit.dialects.writing import DIALECTS
from convertkit.dtypes import FLOAT_WORDS
from convertkit.errors import refusal
from convertkit.hub.arguments import from_hub
from convertkit.verbs.case import Options, Result
from convertkit.verbs.gguf_report import gguf_report
from convertkit.verbs.line import carry_out
from convertkit.verbs.planned import DryRun, dry_run
from convertkit.verbs.reporting import audit_report
from convertkit.verbs.target import target_layers


@from_hub("source", headers=("config_from", "target_model"))
def from_gguf(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    dtype: str = "bf16",
    dialect: str | None = None,
    config_from: str | os.PathLike[str] | None = None,
    target_model: str | os.PathLike[str] | None = None,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    header_slack_bytes: int = 0,
    only_plan: bool = False,
    options: Options = Options(),
) -> Result | DryRun:
    """Convert the GGUF ``source`` (a file, a part, or a folder with one) to the new safetensors folder ``out``.

    Args:
        dtype: ``bf16``, ``f16`` or ``f32`` for every dense weight; block types are decoded as ggml does and rounded
            once.
        dialect: keep NVFP4 weights packed, spelled so; None expands them.
        config_from: folder whose ``config.json`` is taken, after its numbers were compared with the GGUF's.
        target_model: folder of the target; only EAGLE-3 drafters in ModelOpt spelling need it.

    Raises:
        ConvertError: see ``docs/errors.md``; nothing is written unless the whole output is.
    """
    if dtype not in FLOAT_WORDS or dialect not in (None, *DIALECTS):
        raise refusal("E_USAGE", f"unknown dtype '{dtype}' or dialect '{dialect}'",
                      fix=f"dtypes: {', '.join(FLOAT_WORDS)}; dialects: {', '.join(DIALECTS)}")  # fmt: skip
    checkpoint = open_any(source)
    if checkpoint.container != "gguf":
        raise refusal("E_CONTAINER", "this command reads a GGUF", file=checkpoint.files[0].name,
                      fix="name the .gguf file")  # fmt: skip
    check_place(Path(out), checkpoint.paths, force=options.force or only_plan)
    config = None if config_from is None else _config_of(Path(config_from))
    layers = None if target_model is None else target_layers(target_model)
    request = BackRequest(FLOAT_WORDS[dtype], dialect, config, layers)
    plan = plan_back(checkpoint, request, max_shard_bytes, header_slack_bytes)
    if only_plan:
        return dry_run(plan)
    reporters = [gguf_report(written=False), audit_report(options.engines, target_model)]
    return carry_out(plan, Path(out), reporters, options)


def _config_of(folder: Path) -> dict[str, Any]:
    value = parse_json(read_small(folder, CONFIG), CONFIG)
    if not isinstance(value, dict):
        raise refusal("E_JSON", "the file does not hold a JSON object", file=CONFIG)
    return value
