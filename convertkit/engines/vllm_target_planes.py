"""The stored tensors of one linear by how vLLM 0.33 builds it, and what each plane of it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from convertkit.engines.model import Fresh
from convertkit.engines.quantized import Grid


@dataclass(frozen=True, slots=True)
class Plane:
    """One stored tensor of a linear: the leaf of its name, its dtype, columns of the weight per column (0: one value),
    what it holds if nothing fills it; ``unread``: the kernel of this grid never reads it."""

    leaf: str
    dtype: str
    divisor: int
    rule: str
    fresh: Fresh = "uninitialised"
    unread: bool = False


def _modelopt(reads_inputs: bool) -> tuple[Plane, ...]:
    return (
        Plane("weight", "U8", 2, "vllm.linear"),
        Plane("weight_scale", "F8_E4M3", 16, "vllm.block-scale", "refused later"),
        Plane("weight_scale_2", "F32", 0, "vllm.global-scale"),
        Plane("input_scale", "F32", 0, "vllm.input-scale", unread=not reads_inputs),
    )


_CT = (
    Plane("weight_packed", "U8", 2, "vllm.linear"),
    Plane("weight_scale", "F8_E4M3", 16, "vllm.block-scale"),
    Plane("weight_global_scale", "F32", 0, "vllm.global-scale"),
)
_CT_INPUT = Plane("input_global_scale", "F32", 0, "vllm.input-scale")

LINEAR: Mapping[Grid, tuple[Plane, ...]] = {
    "dense": (Plane("weight", "BF16", 1, "vllm.silent"),),
    "mo-a16": _modelopt(False),
    "mo-a4": _modelopt(True),
    "ct-a16": _CT,
    "ct-a4": (*_CT, _CT_INPUT),
}
"""Planes of a linear."""

EXPERTS: Mapping[Grid, tuple[Plane, ...]] = {
    **LINEAR,
    "ct-a16": (*_CT, Plane("input_global_scale", "F32", 0, "vllm.input-scale", unread=True)),
}
"""Planes of the routed experts, which have activation scales always, and whose block scales nobody checks."""
