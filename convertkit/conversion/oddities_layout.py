"""What is odd about how a checkpoint is laid out and that ``fix-keys`` or ``repair`` can put right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.dtypes import FLOATS, STORED_TYPES
from convertkit.errors import Finding, finding
from convertkit.layouts.fusions import FUSIONS
from convertkit.layouts.layout import Layout, config_value
from convertkit.layouts.models import VISION_SEGMENTS
from convertkit.layouts.rules import compile_template

LANGUAGE_PREFIXES = ("model.language_model.", "language_model.")
LAYERS = (("model.layers.", "model.language_model.layers."), ("model.layers.", "language_model.model.layers."))
"""Prefixes of layers that no class reads side by side."""

STACKED = (".experts.gate_up_proj", ".experts.down_proj", ".experts.w13_weight", ".experts.w2_weight")

_EXPERT = compile_template("{rest}.experts.{e}.{x}.weight")


def layout_oddities(checkpoint: Checkpoint, layout: Layout) -> Iterator[Finding]:
    """Findings of severity warning or note. Names, shapes and config only."""
    yield from _label(checkpoint)
    yield from _two_prefixes(checkpoint)
    yield from _ranks(checkpoint)
    yield from _stacks(checkpoint)
    yield from _fused_scalars(checkpoint)
    yield from _misaligned(checkpoint)
    if layout.kind in ("causal-lm", "multimodal-lm"):
        yield from _head(checkpoint)


def _warning(code: str, message: str, **place: Any) -> Finding:
    return finding(code, "warning", message, **place)


def _label(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Names of two classes, or of a multimodal class under the label of a text-only one: it loads, and then fails."""
    labels = checkpoint.config.get("architectures") or ()
    label = labels[0] if isinstance(labels, list) and labels and isinstance(labels[0], str) else ""
    towers = tuple(f"model.{segment}." for segment in VISION_SEGMENTS)
    plain = [name for name in checkpoint.tensors if name.startswith("model.layers.")]
    if plain and any(name.startswith(towers) for name in checkpoint.tensors):
        message = "the tower is named as in a multimodal class, the language model as in a text-only one"
        fix = "fix-keys --preset add-language-model"
        yield _warning("W_LAYOUT_LABEL", message, tensor=plain[0], fix=fix, data={"count": len(plain)})
    nested = [name for name in checkpoint.tensors if name.startswith(LANGUAGE_PREFIXES)]
    if label.endswith("ForCausalLM") and nested and not isinstance(checkpoint.config.get("vision_config"), Mapping):
        message = f"the config says {label}, and {len(nested)} names are those of a multimodal class"
        fix = "fix-keys --preset strip-language-model, or correct 'architectures'"
        yield _warning("W_LAYOUT_LABEL", message, tensor=nested[0], fix=fix, data={"count": len(nested)})


def _two_prefixes(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Layers under two prefixes: a part of the model was saved in the names of another class."""
    for plain, nested in LAYERS:
        one = [name for name in checkpoint.tensors if name.startswith(plain)]
        two = [name for name in checkpoint.tensors if name.startswith(nested)]
        if one and two:
            few, many = (one, nested) if len(one) <= len(two) else (two, plain)
            message = f"layers lie under '{plain}' and '{nested}': readers of one do not find the other"
            rule = f"{plain if few is one else nested}{{rest}}={many}{{rest}}"
            fix = f"fix-keys --rename '{rule}' ({len(few)} of {len(few)} names)"
            yield _warning("W_NAME_PREFIX", message, tensor=few[0], fix=fix, data={"count": len(few), "rule": rule})


def _ranks(checkpoint: Checkpoint) -> Iterator[Finding]:
    """A stack of experts under the name of one: readers take it for that one, or for a fused tensor."""
    wrong = [
        name
        for name, ref in checkpoint.tensors.items()
        if ".experts." in name and len(ref.spec.shape) > 2 and _EXPERT.match(name) is not None
    ]
    if wrong:
        shape = list(checkpoint.tensors[wrong[0]].spec.shape)
        message = f"the name is that of one expert, the shape {shape} that of a stack"
        yield _warning("W_EXPERT_RANK", message, tensor=wrong[0], data={"count": len(wrong)})


ENGINE_STACKED = ("experts.w13_weight", "experts.w2_weight")
"""Names that vLLM's own parameters have; ``repair --split w13`` takes those apart."""


def _stacks(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Dense experts of a layer in one tensor: right for transformers 5, and no linear that could be packed."""
    found = [
        name
        for name, ref in checkpoint.tensors.items()
        if name.endswith(STACKED) and len(ref.spec.shape) == 3 and ref.spec.dtype in FLOATS
    ]
    if found:
        message = f"{len(found)} tensors hold all experts of a layer; experts are packed one by one"
        kind = "w13" if found[0].endswith(ENGINE_STACKED) else "experts"
        fix = f"to pack them: repair --split {kind} first"
        yield finding("N_EXPERTS_STACKED", "note", message, tensor=found[0], fix=fix, data={"count": len(found)})


def _fused_scalars(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Matrices that are fused on disk and packed with one scalar, where engines have one slot per part."""
    counts = {fusion.fused: len(fusion.parts) for fusion in FUSIONS.values()}
    wrong: dict[int, list[str]] = {}
    for name, ref in checkpoint.tensors.items():
        module, _, leaf = name.rpartition(".")
        slots = counts.get(module.rpartition(".")[2])
        if slots and leaf in ("weight_scale_2", "weight_global_scale") and ref.spec.elements == 1:
            wrong.setdefault(slots, []).append(name)
    for slots, names in wrong.items():
        message = (
            f"one global scale for a matrix of {slots} parts: an engine with a slot for each may fill one only "
            "(vLLM 0.33 and SGLang 0.5.23 fill all)"
        )
        data = {"count": len(names), "slots": slots}
        yield _warning("W_FUSED_SCALAR", message, tensor=names[0], fix="repair --split-fused-scalars", data=data)


def _misaligned(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Tensors that do not start at a multiple of their element: readers must copy them."""
    if checkpoint.container != "safetensors":
        return
    odd = [
        name
        for name, ref in checkpoint.tensors.items()
        if ref.size_bytes and ref.start % max(1, STORED_TYPES[ref.spec.dtype].bits // 8)
    ]
    if odd:
        message = f"{len(odd)} tensors do not start at a multiple of their element size, so readers must copy them"
        fix = "any converted output is aligned: repair --merge, or --shard SIZE"
        yield finding("W_MISALIGNED", "note", message, tensor=odd[0], fix=fix, data={"count": len(odd)})


def _head(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Where the output head comes from, in the two cases in which readers differ."""
    modules = {name.rpartition(".")[0] for name in checkpoint.tensors}
    stored = any(module.rpartition(".")[2] == "lm_head" for module in modules)
    embedded = any(module.rpartition(".")[2] == "embed_tokens" for module in modules)
    tied = config_value(checkpoint.config, "tie_word_embeddings")
    if not stored and embedded and tied is True:
        yield finding("N_TIED_HEAD", "note", "no head is stored: it comes from the embeddings")
    elif not stored and embedded and tied is False:
        fix = "repair --set-config says that it comes from the embeddings; if it does not, the head is lost: fetch it"
        yield _warning(
            "W_HEAD_MISSING", "no head is stored, and the config says that it is not the embeddings", fix=fix
        )
    elif stored and tied is True:
        fix = "repair --drop-tied drops it if it equals the embeddings, --set-config corrects the config if not"
        yield finding("N_TIED_HEAD", "note", "a head is stored, and the config says that it is the embeddings", fix=fix)
