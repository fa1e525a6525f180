"""Global scales that parts of a fused matrix should share: what an engine keeps of them, and what it serves wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

import numpy as np

from convertkit.checkpoint import Checkpoint
from convertkit.checks.reference import FORMATS, bits_of, float_of, widened
from convertkit.containers.reader import Reader
from convertkit.conversion.identify import Identity
from convertkit.conversion.selection import untied_findings
from convertkit.dialects.planes import PackedModule
from convertkit.dialects.spelling import SPELLINGS
from convertkit.dialects.writing import partial_groups
from convertkit.errors import MAX_LISTED, Finding, finding
from convertkit.layouts.fused import Group, fused_groups, idle_members
from convertkit.layouts.rules import families, module_of


def global_bits(reader: Reader, packed: Mapping[str, PackedModule]) -> dict[str, int]:
    """The stored FP32 bits of every global scale, sound or not."""
    return {name: reader.f32_bits(module.global_scale) for name, module in packed.items()}


def fused_groups_of(identity: Identity, fuse: Sequence[Group] = ()) -> dict[str, Sequence[str]]:
    """Fused groups of several packed linears."""
    groups = fused_groups(identity.packed, identity.layout, fuse)
    return {lead: members for lead, members in groups.items() if len(members) > 1}


def grouping_findings(
    checkpoint: Checkpoint,
    identity: Identity,
    groups: Mapping[str, Sequence[str]],
    bits: Mapping[str, int],
    fuse: Sequence[Group] = (),
) -> Iterator[Finding]:
    """What groups there are, whatever their scales: E_PATTERN_EMPTY for names in ``fuse`` that nothing has,
    E_FUSED_SPLIT for groups that are packed in part, W_UNTIED for unequal scales of what only looks like a group."""
    yield from idle_members(fuse, {module_of(name) for name in checkpoint.tensors})
    dense = {module: None for module in identity.linears if module not in identity.packed}
    yield from partial_groups((*identity.packed, *identity.planes.foreign), dense, identity.layout)
    grouped = {module for members in groups.values() for module in members}
    alone = [(module,) for module in identity.packed if module not in grouped]
    for item in untied_findings(alone):
        unequal = [row for row in item.data["groups"] if len({bits[module] for module in row}) > 1]
        if unequal:
            yield item


def fused_scale_findings(
    checkpoint: Checkpoint,
    identity: Identity,
    reader: Reader,
    packed_groups: Mapping[str, Sequence[str]],
    bits: Mapping[str, int],
    fuse: Sequence[Group] = (),
) -> Iterator[Finding]:
    """E_FUSED_SCALE for each family of fused groups whose members do not share one global scale: ``packed_groups`` as
    ``fused_groups_of`` and ``bits`` as ``global_bits`` give them. Scales in another float type, which engines copy into
    FP32, count by their values."""
    senses: dict[str, str] = {name: module.spelling.sense for name, module in identity.packed.items()}
    cure = "repair --tie-scales" + (" with --group for names of --fuse" if fuse else "")
    yield from _unequal(packed_groups, bits, senses, cure)
    if not any(item.code == "E_SCALE_DTYPE" for item in identity.findings):
        return
    others = _other_scales(checkpoint, identity, reader)
    known = {**bits, **{name: value for name, (value, _) in others.items()}}
    senses |= {name: sense for name, (_, sense) in others.items()}
    groups = fused_groups(known, identity.layout, fuse)
    yield from _unequal(
        {lead: group for lead, group in groups.items() if set(group) & set(others)}, known, senses, cure
    )


def _other_scales(checkpoint: Checkpoint, identity: Identity, reader: Reader) -> dict[str, tuple[int, str]]:
    """FP32 bits and senses of the global scales that are not stored as FP32, by module."""
    leaves = {spelling.global_scale: spelling.sense for spelling in SPELLINGS.values()}
    found: dict[str, tuple[int, str]] = {}
    for name, ref in checkpoint.tensors.items():
        module, _, leaf = name.rpartition(".")
        if leaf in leaves and module not in identity.packed and ref.spec.elements == 1 and ref.spec.dtype in FORMATS:
            stored = np.frombuffer(reader.bytes_of(name), FORMATS[ref.spec.dtype].storage)
            found[module] = (bits_of(widened(stored, ref.spec.dtype)[0]), leaves[leaf])
    return found


def _unequal(
    groups: Mapping[str, Sequence[str]], bits: Mapping[str, int], senses: Mapping[str, str], cure: str
) -> Iterator[Finding]:
    unequal = [lead for lead, members in groups.items() if len({bits[module] for module in members}) > 1]
    for family in families(unequal).values():
        lead = family.names[0]
        parts = ", ".join(f"{module.rpartition('.')[2]} {float_of(bits[module]):.9g}" for module in groups[lead])
        count, served = len(family.names), _served(groups[lead], bits, senses[lead])
        message = f"{count} fused {'group has' if count == 1 else 'groups have'} unequal global scales: {parts}"
        wrong = ", ".join(f"{part} times {factor:.6g}" for part, factor in served.items() if factor != 1)
        yield finding(
            "E_FUSED_SCALE",
            "error",
            f"{message}; engines keep one for all" + (f" and serve {wrong}" if wrong else ""),
            tensor=f"{lead}.weight",
            fix=f"{cure}, or pack the group again with one shared scale",
            data={
                "count": count,
                "template": family.template,
                "groups": list(family.names[:MAX_LISTED]),
                "served": served,
            },
        )


def _served(members: Sequence[str], bits: Mapping[str, int], sense: str) -> dict[str, float]:
    """By which factor vLLM 0.33 and SGLang 0.5.23 serve each part of a dense fused matrix: ModelOpt's loader keeps the
    largest multiplier, that of compressed-tensors the largest divisor (run: ``docs/audit.md``)."""
    values = {module: float(float_of(bits[module])) for module in members}
    if not all(isfinite(value) and value > 0 for value in values.values()):
        return {}  # a bad scale is a finding of its own
    kept = max(values.values())
    divides = sense == "divisor"
    return {name.rpartition(".")[2]: value / kept if divides else kept / value for name, value in values.items()}
