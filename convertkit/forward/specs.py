"""Which drafters can be run, and which two can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from convertkit.checkpoint import Checkpoint
from convertkit.containers.folder import CONFIG
from convertkit.conversion.identify import identify
from convertkit.conversion.target import eagle_taps
from convertkit.drafter import DrafterSpec, differences, value_text
from convertkit.errors import ConvertError, Finding, finding, refusal
from convertkit.layouts.expected import expected_tensors, fits
from convertkit.layouts.reading import stated_spec
from convertkit.layouts.rules import without_model

ALGORITHMS = ("dflash", "dflash2", "dspark", "eagle3")
BACKBONES = {"eagle3": ("llama", "qwen3")}
"""Draft layers that are implemented; for the others ``qwen3``."""

OWN = frozenset({
    "attention", "rope", "taps", "mask_token", "embedding_scale", "output_multiplier", "softcap",
})  # fmt: skip
"""Fields in which two drafters may differ and still be run side by side, each in its own way."""

IDLE = frozenset({"backbone", "target_layers", "draft_tokens", "vocabulary_map", "borrowed"})
"""Fields that say nothing about what a pass computes."""

NEEDED = ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocabulary", "draft_vocabulary")


def spec_of(checkpoint: Checkpoint, side: str, target_layers: int | None) -> DrafterSpec:
    """What a drafter's config means. ``target_layers`` decides about the taps of an EAGLE-3 that names none.

    Raises E_FORWARD for a checkpoint whose pass is not implemented, and what is wrong with its config.
    """
    from convertkit.forward.arithmetic import ACTIVATIONS
    from convertkit.forward.rope import rope_fault

    identity = identify(checkpoint)
    stated = stated_spec(identity.layout, checkpoint.config, checkpoint.tensors)
    if stated is None or stated[0].algorithm not in ALGORITHMS:
        message = f"the {side} is '{identity.layout.name}'; the pass of {', '.join(ALGORITHMS)} can be run"
        raise refusal("E_FORWARD", message)
    spec, faults = stated
    if faults:
        raise ConvertError(faults)
    if spec.taps is None and spec.algorithm == "eagle3":
        spec = replace(spec, taps=_chosen_taps(spec.target_layers or target_layers, side))
    backbones = BACKBONES.get(spec.algorithm, ("qwen3",))
    absent = [name for name in (*NEEDED, "taps") if getattr(spec, name) is None]
    absent += [name for name in ("block_size", "mask_token") if spec.algorithm != "eagle3" and not _given(spec, name)]
    wrong = None
    if absent:
        wrong = f"does not state {', '.join(absent)}"
    elif spec.backbone not in (None, *backbones):
        wrong = f"has layers of '{spec.backbone}'; {', '.join(backbones)} can be run"
    elif spec.activation not in (None, *ACTIVATIONS):
        wrong = f"has the activation '{spec.activation}'; {', '.join(ACTIVATIONS)} can be run"
    elif spec.rope is not None:
        wrong = rope_fault(spec.rope)
    if wrong is not None:
        raise refusal("E_FORWARD", f"the {side}: {wrong}", file=CONFIG)
    return spec


def weight_findings(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Finding]:
    """E_LAYOUT_MISSING and E_LAYOUT_SHAPE for weights that a pass could not be run with; ``shapes`` by dense name."""
    table = expected_tensors(identify(checkpoint).layout, checkpoint.config) or {}
    plain = {without_model(name): shape for name, shape in shapes.items()}
    for name, row in table.items():
        shape = plain.get(name)
        if shape is None:
            if row.required and name != "t2d" and not name.startswith("candidate_selector."):
                yield finding(
                    "E_LAYOUT_MISSING", "error", "the drafter's pass needs it and it is not there", tensor=name
                )
        elif row.shape is not None and not fits(shape, row.shape):
            wanted = [size if size is not None else "any" for size in row.shape]
            message = f"the shape is {list(shape)}, the config means {wanted}"
            yield finding("E_LAYOUT_SHAPE", "error", message, tensor=name)


def _given(spec: DrafterSpec, name: str) -> bool:
    return getattr(spec, name) is not None


def _chosen_taps(target_layers: int | None, side: str) -> tuple[int, ...]:
    if target_layers is None:
        message = f"the {side} names no target layers that it taps, and engines choose them by the target's depth"
        raise refusal("E_NEEDS_TARGET", message, fix="name the target's folder with --target-model")
    return eagle_taps(target_layers)


def spec_findings(reference: DrafterSpec, candidate: DrafterSpec) -> Iterator[Finding]:
    """E_REFERENCE for every field in which the two cannot be run side by side, and E_GATE for those in which each is
    run in its own way. Different taps are left to the rows about inputs."""
    for name in differences(reference, candidate):
        if name in IDLE or name == "taps":
            continue
        mine, yours = value_text(name, getattr(reference, name)), value_text(name, getattr(candidate, name))
        message = f"'{name}' of the candidate is {yours}, of the reference {mine}"
        if name in OWN:
            yield finding("E_GATE", "error", f"{message}: the candidate is run with its own", file=CONFIG,
                          fix="correct the config, if the two are meant to be the same drafter")  # fmt: skip
        else:
            yield finding("E_REFERENCE", "error", message, file=CONFIG)
