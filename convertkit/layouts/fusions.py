"""Matrices that some layouts store in parts and others as one: which parts, in which order, under which names.

Two-dimensional fusions join linears row after row (vLLM 0.33 ``QKVParallelLinear``, ``MergedColumnParallelLinear``).
Expert forms hold all experts of a layer in one three-dimensional tensor, the gate half before the up half
(transformers 5.15 ``Qwen3MoeExperts.gate_up_proj`` [experts, 2 * intermediate, hidden] and ``down_proj`` [experts,
hidden, intermediate]; vLLM 0.33 ``FusedMoE`` calls them ``w13`` and ``w2``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SCALARS = frozenset(("weight_scale_2", "weight_global_scale", "input_scale", "input_global_scale"))
"""Leaves with one value per linear; fused matrices have one per part or one for all."""

ROWS = frozenset(("weight", "bias", "weight_packed", "weight_scale"))
"""Leaves with one row per output feature."""


def scalar_shape(leaf: str) -> tuple[int, ...]:
    """The shape with which a scalar is written: ``[1]`` in compressed-tensors, ``[]`` in ModelOpt."""
    return (1,) if "global" in leaf else ()


@dataclass(frozen=True, slots=True)
class Fusion:
    """Linears whose rows are one matrix."""

    name: str
    parts: tuple[str, ...]
    fused: str


FUSIONS: Mapping[str, Fusion] = {
    row.name: row
    for row in (
        Fusion("qkv", ("q_proj", "k_proj", "v_proj"), "qkv_proj"),
        Fusion("gate-up", ("gate_proj", "up_proj"), "gate_up_proj"),
    )
}


@dataclass(frozen=True, slots=True)
class ExpertForm:
    """How the experts of a layer are called when they are stored together: the stem of the gate-and-up and of the down
    tensor, and what stands between a stem and a leaf. ``bare_weight``: the weight has no leaf."""

    name: str
    gate_up: str
    down: str
    bare_weight: bool

    def tensor(self, stem: str, leaf: str) -> str:
        """The last name of the tensor that holds one leaf of all experts."""
        return stem if self.bare_weight and leaf == "weight" else f"{stem}_{leaf}"

    def leaf(self, stem: str, last: str) -> str | None:
        """The leaf that a last name stands for, or None if it is not one of this stem."""
        if self.bare_weight and last == stem:
            return "weight"
        leaf = last.removeprefix(f"{stem}_")
        known = leaf in ROWS | SCALARS and not (self.bare_weight and leaf == "weight")
        return leaf if leaf != last and known else None


EXPERT_FORMS: Mapping[str, ExpertForm] = {
    form.name: form
    for form in (
        ExpertForm("experts", "gate_up_proj", "down_proj", bare_weight=True),
        ExpertForm("w13", "w13", "w2", bare_weight=False),
    )
}

INPUT_FIRST = frozenset(
    (
        *("llama4", "llama4_text", "gpt_oss", "aria", "aria_text", "openai_privacy_filter"),
        *("qwen3_vl_moe", "qwen3_vl_moe_text"),
    )
)
"""``model_type`` of models whose checkpoints hold stacks as [experts, in, out], those of gpt-oss with gate and up in
turn (transformers 5.15: ``use_experts_implementation(is_transposed=True)``, ``Llama4TextExperts``; the ``Transpose``
of ``conversion_mapping.py`` for Qwen3-VL-MoE)."""

GATE, UP, DOWN = "gate_proj", "up_proj", "down_proj"
KINDS = (*FUSIONS, *EXPERT_FORMS)
"""What can be fused and split."""
