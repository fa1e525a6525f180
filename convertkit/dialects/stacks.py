"""Packed experts that lie in one tensor per layer instead of one linear each. Found from headers, never expanded.

What stores them so: ``repair --fuse``; ModelOpt 0.47 for the experts of Llama 4 and gpt-oss, with the input first
(``export/hf_export_handlers.py: _export_bmm_experts``, ``maybe_transpose_expert_weight_dimensions``: codes [experts,
in/2, out], block scales [experts, in/16, out], one global scale for all). ModelOpt writes all other experts apart.
vLLM 0.33 finds no parameter for planes of a stack outside of Llama 4 (``routed_experts.py``: ``gate_up_proj`` becomes
``w13_weight``, so ``gate_up_proj_weight_scale`` becomes ``w13_weight_weight_scale``). Reading them as a dense U8 tensor
would lose the scales without a word, so every verb that reads values refuses them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from convertkit.checkpoint import TensorRef
from convertkit.dialects.spelling import GROUP
from convertkit.errors import Finding, finding
from convertkit.layouts.fusions import EXPERT_FORMS, ExpertForm
from convertkit.layouts.rules import families

GLOBALS = ("weight_scale_2", "weight_global_scale")
CODES = ("weight", "weight_packed")
FP8 = ("F8_E4M3", "F8_E5M2")
MXFP4_ENDINGS = ("_blocks", "_scales")
"""Planes of gpt-oss as published (``gate_up_proj_blocks`` U8)."""


@dataclass(frozen=True)
class Stack:
    """The planes of one stack by leaf. ``name`` is the home with the stem, as in ``mlp.experts.gate_up_proj``."""

    name: str
    form: ExpertForm
    leaves: Mapping[str, TensorRef]

    @property
    def codes(self) -> TensorRef | None:
        return next((self.leaves[leaf] for leaf in CODES if leaf in self.leaves), None)

    @property
    def is_packed(self) -> bool:
        """Whether planes of NVFP4 are there, whole or not."""
        bytes_ = self.codes is not None and self.codes.spec.dtype == "U8"
        return bytes_ or "weight_packed" in self.leaves or any(leaf in self.leaves for leaf in GLOBALS)

    @property
    def is_transposed(self) -> bool:
        """Whether the input runs along the second dimension, as the shapes of codes and block scales show."""
        scale = self.leaves.get("weight_scale")
        if self.codes is None or scale is None or len(self.codes.spec.shape) != 3:
            return False
        experts, rows, columns = self.codes.spec.shape
        straight = scale.spec.shape == (experts, rows, columns * 2 // GROUP)
        return not straight and scale.spec.shape == (experts, rows * 2 // GROUP, columns)


def stacks_of(refs: Iterable[TensorRef]) -> tuple[list[Stack], dict[str, str]]:
    """Stacks among tensors that lie directly under ``experts``, and those of other quantizations: name to kind."""
    found: dict[tuple[str, str], dict[str, TensorRef]] = {}
    foreign: dict[str, str] = {}
    for ref in refs:
        home, _, last = ref.spec.name.rpartition(".")
        if ref.spec.dtype == "U8" and last.endswith(MXFP4_ENDINGS):
            foreign[f"{home}.{last.rpartition('_')[0]}"] = "MXFP4"
            continue
        for form in EXPERT_FORMS.values():
            for stem in (form.gate_up, form.down):
                leaf = form.leaf(stem, last)
                if leaf is not None:
                    found.setdefault((f"{home}.{stem}", form.name), {})[leaf] = ref
    stacks = [Stack(name, EXPERT_FORMS[form], leaves) for (name, form), leaves in found.items()]
    foreign.update({stack.name: "FP8" for stack in stacks if stack.codes and stack.codes.spec.dtype in FP8})
    return [stack for stack in stacks if stack.is_packed and stack.name not in foreign], foreign


def stack_findings(stacks: Iterable[Stack]) -> Iterator[Finding]:
    """One E_PACK_STACKED per family, with the way to linears where there is one."""
    by_name = {stack.name: stack for stack in stacks}
    for family in families(by_name).values():
        stack = by_name[family.names[0]]
        ref = stack.codes or next(iter(stack.leaves.values()))
        way = f"take them apart first: repair --split {stack.form.name}; readers of packed experts want them apart"
        if stack.is_transposed:
            way = "they are stored input first, as ModelOpt does for Llama 4 and gpt-oss; convertkit does not read that"
        yield finding(
            "E_PACK_STACKED",
            "error",
            f"{len(family.names)} stacks '{family.template}' hold packed experts, here {list(ref.spec.shape)}",
            file=ref.file,
            tensor=ref.spec.name,
            fix=way,
            data={"count": len(family.names), "transposed": stack.is_transposed},
        )
