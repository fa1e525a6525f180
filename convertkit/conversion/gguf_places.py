"""The place of each weight in the GGUF that was asked for, and what has no place in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from convertkit.checkpoint import Checkpoint, TensorRef
from convertkit.containers.gguf_values import Value
from convertkit.conversion.gguf_units import Source, dtype_of, shape_of
from convertkit.conversion.identify import Identity
from convertkit.conversion.plan import Drop, Unit
from convertkit.dialects.planes import PackedModule
from convertkit.dtypes import FLOATS
from convertkit.errors import Finding, finding
from convertkit.layouts.gguf_names import (
    DROPPED_HUB,
    Arch,
    Named,
    from_hub,
    hub_name,
)
from convertkit.layouts.rules import compile_template, natural_key

PREDICTION = ("mtp", "nextn", "eh_proj", "enorm", "hnorm", "shared_head")
"""Parts of the names of blocks that predict several tokens."""


@dataclass(frozen=True)
class GgufRequest:
    """What the file shall be. ``model`` are the architecture's keys, ``vocabulary`` the ``tokenizer.*`` ones.

    ``heads`` maps config fields to numbers of heads, ``leave`` source tensors to the reason they are left out,
    ``given`` are tensors made from the config. ``experts`` is the number of experts of a layer, 0 without. ``extra``
    are units made elsewhere, which use the source tensors ``taken``.
    """

    type: str
    arch: Arch
    layers: int
    heads: Mapping[str, int]
    model: Mapping[str, Value]
    vocabulary: Mapping[str, Value]
    target_vocabulary: int
    experts: int = 0
    leave: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, bytes] = field(default_factory=dict)
    extra: Sequence[Unit] = ()
    taken: frozenset[str] = frozenset()
    name: str | None = None
    parameters: Mapping[str, object] = field(default_factory=dict)
    findings: Sequence[Finding] = ()


@dataclass(frozen=True)
class Placed:
    """One weight of the source and its place in the GGUF; ``expert`` None outside stacks."""

    source: Source
    named: Named
    expert: int | None

    @property
    def module(self) -> str:
        name = self.source.module if isinstance(self.source, PackedModule) else _name(self.source)
        return name.removesuffix(".weight")


def _name(source: Source) -> str:
    assert isinstance(source, TensorRef)
    return source.spec.name


def placed_weights(
    source: Checkpoint, identity: Identity, request: GgufRequest
) -> tuple[list[Placed], list[Drop], list[Finding]]:
    """Weights with a place, those that no GGUF holds, and E_LAYOUT_EXTRA for those that the architecture lacks."""
    placed: list[Placed] = []
    drops = [Drop(name, "scale of a quantized KV cache") for name in identity.planes.kv_scales]
    faults: list[Finding] = []
    gone = identity.planes.plane_names | set(identity.planes.kv_scales) | request.taken
    weights: list[tuple[str, Source]] = [(name, ref) for name, ref in source.tensors.items() if name not in gone]
    weights += [(f"{module}.weight", packed) for module, packed in identity.packed.items()]
    for name, weight in weights:
        reason = request.leave.get(name) or _dropped_reason(name)
        named = from_hub(request.arch, name)
        if reason is not None and isinstance(weight, TensorRef):
            drops.append(Drop(name, reason))
        elif named is None or int(named.captures.get("i", 0)) >= request.layers:
            message = f"llama.cpp's {request.arch.name} has no place for it"
            faults.append(finding("E_LAYOUT_EXTRA", "error", message, tensor=name, fix=_way_out(name)))
        else:
            expert = int(named.captures["e"]) if "e" in named.captures else None
            placed.append(Placed(weight, named, expert))
    return placed, drops, faults


def stacks_of(placed: Iterable[Placed]) -> list[tuple[str, list[Placed]]]:
    """Weights by GGUF name, experts in order."""
    stacks: dict[str, list[Placed]] = {}
    for item in placed:
        stacks.setdefault(item.named.gguf, []).append(item)
    for parts in stacks.values():
        parts.sort(key=lambda part: -1 if part.expert is None else part.expert)
    return sorted(stacks.items(), key=lambda item: natural_key(item[0]))


def stack_faults(parts: Sequence[Placed], request: GgufRequest) -> Iterable[Finding]:
    """What keeps the parts of one GGUF tensor from becoming it: E_LAYOUT_MISSING, E_LAYOUT_SHAPE, E_LAYOUT_DTYPE,
    E_WEIGHT_DTYPE, E_NAME_COLLISION."""
    first = parts[0]
    name = first.module
    if first.named.rule.stacked:
        if [part.expert for part in parts] != list(range(request.experts)):
            yield finding("E_LAYOUT_MISSING", "error", f"not all of {request.experts} experts are there", tensor=name)
        if len({(shape_of(part.source), dtype_of(part.source)) for part in parts}) > 1:
            yield finding("E_LAYOUT_SHAPE", "error", "experts of one layer differ in shape or type", tensor=name)
    elif len(parts) > 1:
        yield finding("E_NAME_COLLISION", "error", f"{len(parts)} tensors would become it", tensor=first.named.gguf)
    rule, dtype, shape = first.named.rule, dtype_of(first.source), shape_of(first.source)
    if rule.treatment == "ids":
        if dtype != "I64" or len(shape) != 1:
            yield finding("E_LAYOUT_DTYPE", "error", f"d2t is {dtype} {list(shape)}, not a list of I64", tensor=name)
    elif dtype not in (*FLOATS, "NVFP4"):
        yield finding("E_WEIGHT_DTYPE", "error", f"{dtype} is not BF16, F16 or F32", tensor=name)
    if rule.heads and (not request.heads.get(rule.heads) or shape[0] % (2 * request.heads[rule.heads])):
        yield finding("E_LAYOUT_SHAPE", "error", f"{shape[0]} rows do not divide into heads of even size", tensor=name)
    if not 1 <= len(shape) <= 3:
        yield finding("E_LAYOUT_SHAPE", "error", f"shape {list(shape)} has no place in a GGUF", tensor=name)


def _way_out(name: str) -> str:
    """What to do about blocks that predict several tokens: none of the architectures here reads them in llama.cpp."""
    predicts = any(part in name for part in PREDICTION)
    return "a block for multi-token prediction: convert the model without it" if predicts else ""


def _dropped_reason(name: str) -> str | None:
    """Why no GGUF holds a tensor of this name, or None."""
    plain = hub_name(name)
    return next((why for rule, why in DROPPED_HUB.items() if compile_template(rule).match(plain) is not None), None)
