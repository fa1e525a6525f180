"""``to-speculators``, ``to-dflash``, ``to-dspark``: a drafter in another format, with the same meaning."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.checks.mask_embedding import mask_embedding_findings
from convertkit.containers.folder import open_checkpoint
from convertkit.conversion.drafter_tensors import DrafterRequest
from convertkit.conversion.drafters import plan_drafter
from convertkit.conversion.identify import identify
from convertkit.conversion.place import check_place
from convertkit.conversion.plan import DEFAULT_SHARD_BYTES, Plan
from convertkit.conversion.planners import Files
from convertkit.drafter import DrafterSpec
from convertkit.engines.agreement import Statement, agreement, loss
from convertkit.errors import Finding, refusal
from convertkit.hub.arguments import from_hub
from convertkit.layouts.layout import Layout
from convertkit.verbs.case import Options, Result
from convertkit.verbs.foresight import foreseen_output
from convertkit.verbs.line import carry_out
from convertkit.verbs.planned import DryRun
from convertkit.verbs.reporting import audit_report
from convertkit.verbs.target import HUB_NAME, open_target

PathLike = str | os.PathLike[str]


@from_hub("source", "target_model")
def to_drafter(
    source: PathLike,
    out: PathLike,
    *,
    to: str,
    verb: str,
    target_model: PathLike | None = None,
    target_id: str | None = None,
    allow_loss: Sequence[str] = (),
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    header_slack_bytes: int = 0,
    only_plan: bool = False,
    options: Options = Options(),
) -> Result | DryRun:
    """Convert the drafter ``source`` to the format ``to`` (a key of ``conversion.drafters.ROUTES``) in folder ``out``.

    Tensors are copied byte for byte under the names of the format, packed ones too; the config is written anew from
    what it means. ``target_model`` is the folder of the target: its config is read, and its weights, if there, to
    leave out equal copies and to borrow what the format wants to hold. ``target_id`` is the target's hub name.
    ``allow_loss`` names fields that may be lost; each is recorded.

    Raises:
        ConvertError: E_LOSS and others, see ``docs/errors.md``; nothing is written unless the whole output is.
    """
    _require_hub_name(target_id)
    checkpoint = open_checkpoint(source)
    check_place(Path(out), checkpoint.paths, force=options.force or only_plan)
    plan = plan_to_drafter(
        checkpoint,
        to=to,
        verb=verb,
        target_model=target_model,
        target_id=target_id,
        allow_loss=allow_loss,
        files=Files(max_shard_bytes, header_slack_bytes),
    )
    if only_plan:
        return foreseen_output(plan, options.engines, target_model)
    return carry_out(plan, Path(out), [audit_report(options.engines, target_model)], options)


def plan_to_drafter(
    checkpoint: Checkpoint,
    *,
    to: str,
    verb: str,
    target_model: PathLike | None = None,
    target_id: str | None = None,
    allow_loss: Sequence[str] = (),
    files: Files,
) -> Plan:
    """The plan of ``to_drafter`` for an opened drafter; its words and errors are those."""
    _require_hub_name(target_id)
    identity = identify(checkpoint)
    target = None if target_model is None else open_target(target_model)
    request = DrafterRequest(to, verb, target_id, tuple(allow_loss))
    stated = Statement(identity.layout, checkpoint.config, checkpoint.tensors)

    def judge(
        config: Mapping[str, Any], names: Collection[str], layout: Layout, meant: DrafterSpec
    ) -> Iterable[Finding]:
        yield from agreement(stated, Statement(layout, config, names), meant, request.allow_loss)
        yield from mask_embedding_findings(checkpoint, meant)

    return plan_drafter(checkpoint, identity, request, target, judge, loss, files)


def _require_hub_name(target_id: str | None) -> None:
    if target_id is not None and not HUB_NAME.fullmatch(target_id):
        raise refusal("E_USAGE", f"'{target_id}' is not a hub name such as ORG/NAME")


def to_speculators(source: PathLike, out: PathLike, **words: Any) -> Result | DryRun:
    """``to_drafter`` to speculators: DFlash, DFlash 2, DSpark and EAGLE-3 drafters."""
    return to_drafter(source, out, to="speculators", verb="to-speculators", **words)


def to_dflash(source: PathLike, out: PathLike, **words: Any) -> Result | DryRun:
    """``to_drafter`` to z-lab's layout of DFlash and DFlash 2."""
    return to_drafter(source, out, to="dflash", verb="to-dflash", **words)


def to_dspark(source: PathLike, out: PathLike, **words: Any) -> Result | DryRun:
    """``to_drafter`` to DeepSpec's layout of DSpark, which vLLM 0.33 and SGLang 0.5.23 serve."""
    return to_drafter(source, out, to="dspark", verb="to-dspark", **words)
