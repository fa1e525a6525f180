"""``pack-nvfp4``: quantize dense linears of a checkpoint to NVFP4 W4A16."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from convertkit.checks.fidelity import DEFAULT_LIMITS, check_limits
from convertkit.checks.served import ENGINES
from convertkit.containers.folder import open_checkpoint
from convertkit.conversion.identify import identify
from convertkit.conversion.place import check_place
from convertkit.conversion.plan import DEFAULT_SHARD_BYTES
from convertkit.conversion.planners import Files, PackRequest, plan_pack
from convertkit.conversion.scales import SCALES, read_hints
from convertkit.dialects.writing import DIALECTS
from convertkit.errors import refusal
from convertkit.hub.arguments import from_hub
from convertkit.verbs.case import Options, Result
from convertkit.verbs.line import carry_out
from convertkit.verbs.pack_report import gate_report
from convertkit.verbs.planned import DryRun, dry_run
from convertkit.verbs.reporting import audit_report
from convertkit.verbs.target import target_layers


@from_hub("source", "global_scales_from", headers=("target_model",))
def pack_nvfp4(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    dialect: str | None = None,
    scales: str = "auto",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    fuse: Sequence[str] = (),
    reversible_scale: bool = False,
    allow_loss: bool = False,
    marlin_safe: bool = False,
    global_scales_from: str | os.PathLike[str] | None = None,
    target_model: str | os.PathLike[str] | None = None,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    header_slack_bytes: int = 0,
    as_served: str | None = None,
    limits: Mapping[str, float | None] = DEFAULT_LIMITS,
    only_plan: bool = False,
    options: Options = Options(),
) -> Result | DryRun:
    """Pack ``source`` into the new folder ``out``: weights, config, side files, reports, manifest.

    Weights of shape [out, in] with in % 16 == 0 become codes [out, in/2] U8, block scales [out, in/16] E4M3 and one
    FP32 global scale, shared by fused groups. Without ``include`` the layout's policy chooses (a drafter: its MLP
    linears). ``only_plan`` writes nothing and returns the plan.

    Args:
        dialect: ``modelopt-mixed``, ``modelopt`` or ``compressed-tensors``; None for the layout's default.
        scales: a word of ``conversion.scales.SCALES``: ``auto`` packs groups that lie on an NVFP4 grid without loss and
            others by ``amax`` (ModelOpt's arithmetic); ``lossless`` refuses the others; ``amax-llmcompressor``;
            ``mse``, ``four-over-six``: block scales of less squared error.
        allow_loss: with ``lossless``, also take weights that lie on a grid in part or not at all.
        marlin_safe: no block scale below 2^-6, which Marlin kernels serve as zero.
        global_scales_from: a packed checkpoint whose global scales are tried first when a grid is searched.
        fuse: more fused groups, each ``a.{i}.to_q,a.{i}.to_k``.
        reversible_scale: choose global scales whose reciprocal inverts back, so that re-spelling is exact.
        as_served: judge the planes as this engine (a row of ``checks.served.ENGINES``) would serve them.
        target_model: folder of the target; only EAGLE-3 drafters in ModelOpt spelling need it, every audit reads it.

    Raises:
        ConvertError: see ``docs/errors.md``; nothing is written unless the whole output is.
    """
    if scales not in SCALES or dialect not in (None, *DIALECTS):
        raise refusal(
            "E_USAGE",
            f"unknown scales '{scales}' or dialect '{dialect}'",
            fix=f"scales: {', '.join(SCALES)}; dialects: {', '.join(DIALECTS)}",
        )
    check_limits(limits)
    if as_served is not None and as_served not in ENGINES:
        raise refusal("E_USAGE", f"unknown engine '{as_served}'", fix=f"one of {', '.join(ENGINES)}")
    searched = SCALES[scales].search != "no"
    if (allow_loss and scales != "lossless") or (global_scales_from is not None and not searched):
        raise refusal(
            "E_USAGE",
            "--allow-loss goes with --scales lossless, --global-scales-from with lossless or auto",
        )
    checkpoint = open_checkpoint(source)
    check_place(Path(out), checkpoint.paths, force=options.force or only_plan)
    layers = None if target_model is None else target_layers(target_model)
    hints = {} if global_scales_from is None else read_hints(open_checkpoint(global_scales_from))
    request = PackRequest(
        dialect,
        scales,
        tuple(include),
        tuple(exclude),
        tuple(fuse),
        reversible_scale,
        layers,
        allow_loss,
        marlin_safe,
        hints,
    )
    plan = plan_pack(checkpoint, identify(checkpoint), request, Files(max_shard_bytes, header_slack_bytes))
    if only_plan:
        return dry_run(plan)
    reporters = [gate_report(limits, as_served, options.workers), audit_report(options.engines, target_model)]
    return carry_out(plan, Path(out), reporters, options)
