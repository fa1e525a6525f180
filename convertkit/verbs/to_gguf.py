"""``to-gguf``: a checkpoint as one GGUF file that llama.cpp loads and drafts with."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from convertkit.checkpoint import Checkpoint
from convertkit.containers.folder import MASK_EMBEDDING, open_checkpoint
from convertkit.containers.gguf_parts import SUFFIX
from convertkit.conversion.gguf_planner import plan_gguf
from convertkit.conversion.gguf_request import drafter_request, drafter_spec, model_request
from convertkit.conversion.gguf_split import WHOLE, Split
from convertkit.conversion.gguf_target import open_target
from convertkit.conversion.identify import identify
from convertkit.conversion.place import Kind, check_place
from convertkit.conversion.plan import Plan
from convertkit.errors import check_text, refusal
from convertkit.hub.arguments import from_hub
from convertkit.layouts.gguf_types import TYPE_NAMES
from convertkit.verbs.case import Options, Result
from convertkit.verbs.gguf_report import gguf_report
from convertkit.verbs.line import carry_out
from convertkit.verbs.planned import DryRun, dry_run
from convertkit.verbs.reporting import audit_report


@from_hub("source", headers=("target_model",))
def to_gguf(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    type: str = "bf16",
    target_model: str | os.PathLike[str] | None = None,
    pre: str | None = None,
    name: str | None = None,
    split_max_bytes: int | None = None,
    split_max_tensors: int | None = None,
    only_plan: bool = False,
    options: Options = Options(),
) -> Result | DryRun:
    """Convert ``source`` (safetensors: BF16, F16, F32 or NVFP4) to GGUF.

    ``out`` ending in ``.gguf`` is one file; otherwise a new folder with ``model.gguf``, side files, report and
    manifest.

    Args:
        type: a row of ``layouts.gguf_types.TYPES`` or ``ALIASES``; where it does not fit a tensor, the report says
            what was stored instead.
        target_model: folder or GGUF of the target that a drafter drafts for, or of the model whose vocabulary is
            taken. Drafters need it.
        pre: llama.cpp's name of the pre-tokenizer, where it is not recognised.
        name: ``general.name``.
        split_max_bytes, split_max_tensors: where a part ends, at most one of the two; parts are
            ``model-00001-of-0000N.gguf`` in a folder, which appears whole or not at all.

    Raises:
        ConvertError: see ``docs/errors.md``; nothing is written unless the whole output is.
    """
    if type not in TYPE_NAMES:
        raise refusal("E_USAGE", f"unknown type '{type}'", fix=f"one of: {', '.join(TYPE_NAMES)}")
    kind: Kind = "file" if Path(out).name.endswith(SUFFIX) else "folder"
    split = Split(split_max_bytes, split_max_tensors)
    if split.wanted and kind == "file":
        raise refusal("E_USAGE", "the parts of a GGUF need a folder, so that all appear or none",
                      fix="let OUT be a folder: no .gguf at its end")  # fmt: skip
    checkpoint = open_checkpoint(source)
    check_place(Path(out), checkpoint.paths, force=options.force or only_plan, kind=kind)
    file_name = Path(out).name if kind == "file" else f"model{SUFFIX}"
    plan = plan_to_gguf(
        checkpoint, type=type, target_model=target_model, pre=pre, name=name, file_name=file_name, split=split
    )  # fmt: skip
    if kind == "file":
        told = tuple(item for item in plan.findings if item.code != "N_LEFT_BEHIND")
        plan = replace(plan, side_files=(), findings=told)
    if only_plan:
        return dry_run(plan)
    return carry_out(plan, Path(out), [gguf_report(written=True), audit_report(options.engines)], options, kind)


def plan_to_gguf(
    checkpoint: Checkpoint,
    *,
    type: str = "bf16",
    target_model: str | os.PathLike[str] | None = None,
    pre: str | None = None,
    name: str | None = None,
    file_name: str = f"model{SUFFIX}",
    split: Split = WHOLE,
) -> Plan:
    """The plan of ``to_gguf`` for an opened checkpoint; its words and errors are those."""
    for text, what in ((pre, "--pre"), (name, "--name")):
        check_text(text or "", what)
    identity = identify(checkpoint)
    drafter = identity.kind == "drafter"
    if drafter and target_model is None:
        raise refusal("E_NEEDS_TARGET", "a drafter's vocabulary and layers are those of its target",
                      fix="--target-model DIR or --target-model TARGET.gguf")  # fmt: skip
    target = open_target(checkpoint.root if target_model is None else Path(target_model))
    make = drafter_request if drafter else model_request
    request = make(checkpoint, identity, target, type, pre, name)
    if drafter and MASK_EMBEDDING in checkpoint.side_files:
        from convertkit.verbs.gguf_mask import with_mask_embedding

        spec = drafter_spec(identity.layout.name, checkpoint.config)
        request = with_mask_embedding(checkpoint, request, spec, target)
    parameters = {"pre": pre, "name": name, **split.parameters}
    return plan_gguf(checkpoint, identity, replace(request, parameters=parameters), file_name, split)
