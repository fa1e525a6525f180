"""``convert``: the general verb; a named format decides which planner runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from convertkit.checks.fidelity import DEFAULT_LIMITS
from convertkit.containers.folder import open_checkpoint
from convertkit.conversion.drafters import ROUTES
from convertkit.conversion.identify import Identity, identify
from convertkit.conversion.place import check_place
from convertkit.conversion.plan import DEFAULT_SHARD_BYTES, Plan
from convertkit.conversion.planners import ExpandRequest, Files, PackRequest, plan_expand, plan_pack, plan_respell
from convertkit.errors import refusal
from convertkit.formats import FORMATS
from convertkit.hub.arguments import from_hub
from convertkit.verbs.case import Options, Reporter, Result
from convertkit.verbs.drafters import to_drafter
from convertkit.verbs.foresight import foreseen_output
from convertkit.verbs.line import carry_out
from convertkit.verbs.pack_report import gate_report
from convertkit.verbs.planned import DryRun
from convertkit.verbs.reporting import audit_report, dequant_report
from convertkit.verbs.target import target_layers
from convertkit.verbs.to_gguf import to_gguf


@from_hub("source", "target_model")
def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    to: str,
    target_model: str | os.PathLike[str] | None = None,
    target_id: str | None = None,
    allow_loss: Sequence[str] = (),
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    header_slack_bytes: int = 0,
    only_plan: bool = False,
    options: Options = Options(),
) -> Result | DryRun:
    """Convert ``source`` to the format ``to`` (a row of ``convertkit.formats.FORMATS``) in the new folder ``out``.

    ``target_id`` and ``allow_loss`` are for formats of drafters, see ``verbs.drafters``.

    Raises:
        ConvertError: see ``docs/errors.md``.
    """
    row = FORMATS.get(to)
    if row is None:
        raise refusal("E_USAGE", f"no format is called '{to}'", fix=f"one of: {', '.join(FORMATS)}")
    if row.layout in ROUTES:
        return to_drafter(
            source,
            out,
            to=row.layout,
            verb="convert",
            target_model=target_model,
            target_id=target_id,
            allow_loss=allow_loss,
            max_shard_bytes=max_shard_bytes,
            header_slack_bytes=header_slack_bytes,
            only_plan=only_plan,
            options=options,
        )
    checkpoint = open_checkpoint(source)
    identity = identify(checkpoint)
    if row.container == "gguf":
        return to_gguf(
            source, out, type=kept_type(identity), target_model=target_model, only_plan=only_plan, options=options
        )
    check_place(Path(out), checkpoint.paths, force=options.force or only_plan)
    layers = None if target_model is None else target_layers(target_model)
    files = Files(max_shard_bytes, header_slack_bytes)
    reporters: list[Reporter] = [audit_report(options.engines, target_model)]
    plan: Plan
    if row.grid != "NVFP4":
        plan = plan_expand(checkpoint, identity, ExpandRequest(row.grid, cast=True, verb="convert"), files)
        reporters = [dequant_report(None, options.workers), *reporters] if identity.packed else reporters
    elif identity.packed:
        plan = plan_respell(checkpoint, identity, row.dialect, layers, files)
        reporters = [dequant_report(None, options.workers), *reporters]
    else:
        plan = plan_pack(checkpoint, identity, PackRequest(row.dialect, target_layers=layers), files)
        reporters = [gate_report(DEFAULT_LIMITS), *reporters]
    if only_plan:
        return foreseen_output(plan, options.engines, target_model)
    return carry_out(plan, Path(out), reporters, options)


def kept_type(identity: Identity) -> str:
    """The GGUF type that keeps a checkpoint as it is: ``nvfp4`` if anything is packed, else that of most linears."""
    if identity.packed:
        return "nvfp4"
    counts = Counter(spec.dtype.lower() for spec in identity.linears.values())
    return counts.most_common(1)[0][0] if counts else "bf16"
