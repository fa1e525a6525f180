"""Which tensors are linear layers, as quantization configs count them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from convertkit.checkpoint import TensorSpec
from convertkit.dtypes import FLOATS
from convertkit.layouts.layout import Layout
from convertkit.layouts.rules import families

NOT_LINEAR = frozenset({"embedding", "codebook", "norm", "bias", "vocabulary map"})
"""Roles of matrices that no config can quantize as a linear layer."""

FUSED_ALIASES: Mapping[str, str] = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
"""What vLLM 0.33 and SGLang 0.5.23 call the matrix that a linear becomes part of."""


def fused_alias(module: str) -> str | None:
    """The name of the fused matrix a module goes into, or None."""
    parent, dot, leaf = module.rpartition(".")
    alias = FUSED_ALIASES.get(leaf)
    return None if alias is None else f"{parent}{dot}{alias}"


def roles_of(names: Iterable[str], layout: Layout) -> dict[str, str]:
    """The role of every tensor name (dense spelling). The layout's rules are asked once per family, or where the last
    layer has another role than the first, once per layer of it."""
    roles: dict[str, str] = {}
    for family in families(names).values():
        by_layer = {numbers[:1]: name for numbers, name in zip(family.indices, family.names, strict=True)}
        first = layout.role_of(family.names[0])
        if len(by_layer) == 1 or first == layout.role_of(family.names[-1]):
            roles.update(dict.fromkeys(family.names, first))
            continue
        of_layer = {numbers: layout.role_of(name) for numbers, name in by_layer.items()}
        roles.update((name, of_layer[numbers[:1]]) for numbers, name in zip(family.indices, family.names, strict=True))
    return roles


def dense_linears(specs: Iterable[TensorSpec], layout: Layout) -> dict[str, TensorSpec]:
    """Modules with a dense matrix ``module.weight`` that could be a quantized linear, in the order given."""
    matrices = [spec for spec in specs if _is_matrix(spec)]
    roles = roles_of((spec.name for spec in matrices), layout)
    return {spec.name.removesuffix(".weight"): spec for spec in matrices if roles[spec.name] not in NOT_LINEAR}


def embeddings(specs: Iterable[TensorSpec], layout: Layout) -> Iterator[str]:
    """Modules of token embeddings, which ModelOpt lists among the modules it leaves out."""
    matrices = [spec.name for spec in specs if _is_matrix(spec)]
    roles = roles_of(matrices, layout)
    yield from (name.removesuffix(".weight") for name in matrices if roles[name] == "embedding")


def default_packed(linears: Mapping[str, TensorSpec], layout: Layout) -> tuple[str, ...]:
    """The linears that ``pack-nvfp4`` packs when the user does not choose: those whose role the layout packs."""
    roles = roles_of((spec.name for spec in linears.values()), layout)
    return tuple(module for module, spec in linears.items() if roles[spec.name] in layout.packed_roles)


def _is_matrix(spec: TensorSpec) -> bool:
    return len(spec.shape) == 2 and spec.dtype in FLOATS and spec.name.endswith(".weight") and 0 not in spec.shape
