"""Is a checkpoint a drop-in for a reference: the same names, shapes and dtypes, packed linears taken as one weight?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convertkit.checkpoint import Checkpoint, TensorSpec
from convertkit.containers.folder import CONFIG
from convertkit.conversion.identify import Identity
from convertkit.drafter import differences, value_text
from convertkit.dtypes import FLOATS
from convertkit.errors import Finding, finding
from convertkit.layouts.reading import stated_spec
from convertkit.layouts.rules import Family, families

MAX_LISTED = 2_000
"""Names kept in the data of one finding: all of them, but for models of many experts."""

PACKED = "NVFP4"


def against_findings(here: tuple[Checkpoint, Identity], there: tuple[Checkpoint, Identity]) -> Iterator[Finding]:
    """Every departure from the reference, by family: E_AGAINST; a weight that is packed here and dense there, or in
    another float type, is a note (N_AGAINST)."""
    ours, theirs = _logical(*here, there[1]), _logical(*there, here[1])
    missing = [name for name in theirs if name not in ours]
    extra = [name for name in ours if name not in theirs]
    yield from _lost(missing, extra, ours, theirs, here[0], there[0])
    yield from _specs(ours, theirs)
    yield from _meanings(here, there)


def _logical(checkpoint: Checkpoint, identity: Identity, other: Identity) -> dict[str, TensorSpec]:
    """Weights by their dense name, and activation scales of linears that both sides have packed."""
    taken = {ref.spec.name for module in identity.packed.values() for ref in module.refs}
    view = {name: ref.spec for name, ref in checkpoint.tensors.items() if name not in taken}
    for name, module in identity.packed.items():
        if module.input_scale is not None and name in other.packed:  # an engine that misses it takes 1
            view[f"{name}.input_scale"] = TensorSpec(f"{name}.input_scale", "F32", ())
        view[f"{name}.weight"] = TensorSpec(f"{name}.weight", PACKED, (module.out_features, module.in_features))
    return view


def _lost(
    missing: list[str], extra: list[str], ours: Mapping[str, TensorSpec], theirs: Mapping[str, TensorSpec],
    here: Checkpoint, there: Checkpoint,
) -> Iterator[Finding]:  # fmt: skip
    """Missing and extra families; those that pair by numbers and shapes are told as renamings."""
    lost, new = families(missing), families(extra)
    renamed = dict(_renamings(lost, new, ours, theirs))
    for old, name in renamed.items():
        count = len(lost[old].names)
        message = f"{count} x '{old}' is called '{name}' here"
        yield _found(message, lost[old].names[0], {"count": count, "from": old, "to": name, "kind": "renamed"})
    for template, family in lost.items():
        if template not in renamed:
            count = len(family.names)
            data = {"count": count, "kind": "missing", "tensors": list(family.names[:MAX_LISTED])}
            yield _found(f"{count} x '{template}' is in the reference and not here", family.names[0], data)
    for template, family in new.items():
        if template not in renamed.values():
            count = len(family.names)
            data = {"count": count, "kind": "extra", "tensors": list(family.names[:MAX_LISTED])}
            yield _found(f"{count} x '{template}' is here and not in the reference", family.names[0], data)
    if len(missing) > len(extra):
        data = {"tensors": [len(ours), len(theirs)], "weight_bytes": [here.weight_bytes, there.weight_bytes]}
        message = (
            f"{len(ours)} tensors of {here.weight_bytes} bytes here, {len(theirs)} of {there.weight_bytes} bytes there"
        )
        yield finding("N_AGAINST", "note", message, data=data)


def _renamings(
    lost: Mapping[str, Family], new: Mapping[str, Family], ours: Mapping[str, TensorSpec],
    theirs: Mapping[str, TensorSpec],
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """Families that differ in their template only. The closest name wins where several have the same shapes."""
    free = dict(new)
    for old, family in lost.items():
        shapes = [theirs[name].shape for name in family.names]
        fitting = [
            name
            for name, other in free.items()
            if other.indices == family.indices and [ours[item].shape for item in other.names] == shapes
        ]
        if fitting:
            best = max(fitting, key=lambda name: (_common(old, name), name))
            if _common(old, best):
                del free[best]
                yield old, best


def _common(one: str, other: str) -> int:
    """Segments that two names end in alike."""
    pairs = zip(reversed(one.split(".")), reversed(other.split(".")), strict=False)
    count = 0
    for a, b in pairs:
        if a != b:
            break
        count += 1
    return count


def _found(message: str, tensor: str, data: Mapping[str, Any]) -> Finding:
    return finding("E_AGAINST", "error", message, tensor=tensor, data=data)


def _specs(ours: Mapping[str, TensorSpec], theirs: Mapping[str, TensorSpec]) -> Iterator[Finding]:
    shapes = [name for name in theirs if name in ours and ours[name].shape != theirs[name].shape]
    for family in families(shapes).values():
        first, count = family.names[0], len(family.names)
        message = (
            f"{count} x '{family.template}': the shape is {list(ours[first].shape)}, there {list(theirs[first].shape)}"
        )
        yield _found(message, first, {"count": count, "kind": "shape"})
    dtypes = [name for name in theirs if name in ours and ours[name].dtype != theirs[name].dtype]
    for family in families(dtypes).values():
        first, count = family.names[0], len(family.names)
        pair = (ours[first].dtype, theirs[first].dtype)
        message = f"{count} x '{family.template}' is {pair[0]} here, {pair[1]} there"
        data = {"count": count, "kind": "dtype"}
        if all(dtype in (*FLOATS, PACKED) for dtype in pair):
            yield finding("N_AGAINST", "note", message, tensor=first, data=data)
        else:
            yield _found(message, first, data)


def _meanings(here: tuple[Checkpoint, Identity], there: tuple[Checkpoint, Identity]) -> Iterator[Finding]:
    """What two drafters' configs mean, field by field: a drop-in may state it otherwise, not mean otherwise."""
    specs = [
        stated_spec(identity.layout, checkpoint.config, checkpoint.tensors) for checkpoint, identity in (here, there)
    ]
    if specs[0] is None or specs[1] is None:
        return
    for field in differences(specs[0][0], specs[1][0]):
        ours, theirs = (getattr(spec[0], field) for spec in specs if spec is not None)
        message = f"{field}: {value_text(field, ours)} here, {value_text(field, theirs)} in the reference"
        choice = field in ("block_size", "draft_tokens", "target_layers", "borrowed")
        yield finding("N_AGAINST" if choice else "E_AGAINST", "note" if choice else "error", message,
                      file=CONFIG, data={"field": field, "kind": "meaning"})  # fmt: skip
