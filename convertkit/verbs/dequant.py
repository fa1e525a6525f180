"""``dequant``: expand NVFP4 linears to dense weights and report how exact that is."""

from __future__ import annotations

import os
from pathlib import Path

from convertkit.containers.folder import open_checkpoint
from convertkit.conversion.identify import identify
from convertkit.conversion.place import check_place
from convertkit.conversion.plan import DEFAULT_SHARD_BYTES
from convertkit.conversion.planners import ExpandRequest, Files, plan_expand
from convertkit.conversion.units import EXPANSIONS
from convertkit.dtypes import FLOAT_WORDS
from convertkit.errors import refusal
from convertkit.hub.arguments import from_hub
from convertkit.verbs.case import Options, Result
from convertkit.verbs.foresight import foreseen_output
from convertkit.verbs.line import carry_out
from convertkit.verbs.planned import DryRun
from convertkit.verbs.reporting import audit_report, dequant_report


@from_hub("source", "against")
def dequant(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    dtype: str = "bf16",
    arithmetic: str = "exact",
    kv_scales: str = "drop",
    against: str | os.PathLike[str] | None = None,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    header_slack_bytes: int = 0,
    only_plan: bool = False,
    options: Options = Options(),
) -> Result | DryRun:
    """Expand ``source`` (either dialect) into the new folder ``out``.

    The exact value of an element is code * block scale * global scale (ModelOpt) or code * block scale / global
    scale (compressed-tensors), rounded once to ``dtype``; ``arithmetic`` repeats a package's own steps instead.
    ``against`` is an existing dense copy: any differing element makes the verdict fail (status 1).

    Raises:
        ConvertError: see ``docs/errors.md``.
    """
    if dtype not in FLOAT_WORDS or arithmetic not in EXPANSIONS or kv_scales not in ("drop", "keep"):
        raise refusal("E_USAGE", f"unknown dtype '{dtype}', arithmetic '{arithmetic}' or kv_scales '{kv_scales}'")
    checkpoint = open_checkpoint(source)
    check_place(Path(out), checkpoint.paths, force=options.force or only_plan)
    request = ExpandRequest(FLOAT_WORDS[dtype], arithmetic, kv_scales)
    plan = plan_expand(checkpoint, identify(checkpoint), request, Files(max_shard_bytes, header_slack_bytes))
    if only_plan:
        return foreseen_output(plan, options.engines)
    reference = None if against is None else open_checkpoint(against)
    return carry_out(
        plan, Path(out), [dequant_report(reference, options.workers), audit_report(options.engines)], options
    )
