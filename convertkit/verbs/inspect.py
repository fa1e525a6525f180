"""``inspect``: what a checkpoint is, how sure that is, and what is odd about it. Headers and config only."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from convertkit.checkpoint import Checkpoint, TensorRef
from convertkit.containers.folder import open_any
from convertkit.conversion.identify import Identity, identify
from convertkit.dialects.linears import default_packed, roles_of
from convertkit.dialects.planes import PackedModule
from convertkit.dialects.scheme import Scheme
from convertkit.dtypes import BLOCK_TYPES
from convertkit.errors import Finding
from convertkit.hub.arguments import from_hub
from convertkit.layouts.rules import Family, families
from convertkit.verbs.drafter_view import drafter_view

GRIDS: Mapping[str, str] = {
    "BF16": "bf16",
    "F16": "f16",
    "F32": "f32",
    "F64": "f64",
    "F8_E4M3": "fp8",
    "F8_E5M2": "fp8",
    "BOOL": "bool",
}
"""What a stored dtype means as a grid; block types of ggml mean themselves, other dtypes are integers."""


@dataclass(slots=True)
class _Share:
    """Running totals of one grid."""

    tensors: int = 0
    parameters: int = 0
    size_bytes: int = 0


@from_hub(headers=("path",))
def inspect(path: str | os.PathLike[str], *, tensors: bool = False, scan: bool = False) -> dict[str, Any]:
    """Describe a folder, a safetensors file or a GGUF as JSON values; with ``tensors`` also every family of tensors.

    With ``scan`` the values of BF16 linears are read too, to tell which of them lie on an NVFP4 grid (in ``findings``).

    Parameters are counted as the model has them: a packed linear counts out x in, scales do not count.
    Raises ``ConvertError`` only where the container itself cannot be read; every other fault is in ``findings``.
    """
    checkpoint = open_any(path)
    identity = identify(checkpoint)
    drafter, notes = drafter_view(checkpoint, identity)
    document: dict[str, Any] = {
        "path": os.fspath(path),
        "container": checkpoint.container,
        "layout": {
            "name": identity.layout.name,
            "kind": identity.kind,
            "confidence": identity.confidence,
            "reasons": list(identity.reasons),
        },
        "dialect": "ggml" if checkpoint.container == "gguf" else identity.dialect,
        "quantization": _scheme(identity.scheme),
        "parameters": 0,
        "tensors": len(checkpoint.tensors),
        "size_bytes": checkpoint.weight_bytes,
        "files": [{"path": file.name, "size_bytes": file.size_bytes} for file in checkpoint.files],
        "grids": _grids(checkpoint, identity),
        "packed": _packed(identity.packed),
        "packable": _packable(identity),
        "kv_scales": len(identity.planes.kv_scales),
        "side_files": list(checkpoint.side_files),
        "not_copied": dict(sorted(checkpoint.skipped.items())),
        "drafter": drafter,
        "findings": [item.as_json() for item in (*identity.findings, *notes)],
    }
    document["parameters"] = sum(row["parameters"] for row in document["grids"])
    if tensors:
        document["families"] = _families(checkpoint, identity)
    if scan:
        document["findings"] += [item.as_json() for item in _grid_findings(checkpoint, identity)]
    return document


def _grid_findings(checkpoint: Checkpoint, identity: Identity) -> list[Finding]:
    from convertkit.checks.grid_scan import grid_findings  # brings the compiled kernels
    from convertkit.containers.reader import Reader

    if checkpoint.container == "gguf":
        return []
    with Reader(checkpoint) as reader:
        return list(grid_findings(checkpoint, identity.linears, identity.layout, reader))


def _scheme(scheme: Scheme | None) -> dict[str, Any] | None:
    if scheme is None:
        return None
    return {
        "dialect": scheme.dialect,
        "algorithms": list(scheme.algorithms),
        "kv_cache": scheme.kv_cache,
        "ignored": len(scheme.ignore),
        "listed": len(scheme.layers),
        "file": scheme.place,
    }


def _grids(checkpoint: Checkpoint, identity: Identity) -> list[dict[str, Any]]:
    """Tensors, parameters and bytes per grid, the one with most bytes first."""
    shares: dict[str, _Share] = {}
    planes = identity.planes.plane_names
    for module in identity.packed.values():
        share = shares.setdefault("nvfp4", _Share())
        share.tensors += len(module.refs)
        share.parameters += module.out_features * module.in_features
        share.size_bytes += sum(ref.size_bytes for ref in module.refs)
    taken = {ref.spec.name for module in identity.packed.values() for ref in module.refs}
    kv_scales = frozenset(identity.planes.kv_scales)
    for name, ref in checkpoint.tensors.items():
        if name in taken:
            continue
        grid = ref.spec.dtype.lower() if ref.spec.dtype in BLOCK_TYPES else GRIDS.get(ref.spec.dtype, "integer")
        share = shares.setdefault(grid, _Share())
        share.tensors += 1
        share.size_bytes += ref.size_bytes
        scale = name in kv_scales or (name in planes and not name.endswith(".weight"))
        share.parameters += 0 if scale or grid in ("integer", "bool") else ref.spec.elements
    total = sum(share.parameters for share in shares.values())
    rows = [
        {
            "grid": grid,
            "tensors": share.tensors,
            "parameters": share.parameters,
            "share": float(format(share.parameters / total, ".9g")) if total else 0.0,
            "size_bytes": share.size_bytes,
        }
        for grid, share in shares.items()
    ]
    return sorted(rows, key=lambda row: (-int(row["size_bytes"]), str(row["grid"])))


def _packed(packed: Mapping[str, PackedModule]) -> list[dict[str, Any]]:
    """Packed linears by family; shapes are logical, [out, in]."""
    return [
        {
            "template": family.template,
            "count": len(family.names),
            "shapes": _shapes((packed[name].out_features, packed[name].in_features) for name in family.names),
            "activation_scales": sum(packed[name].input_scale is not None for name in family.names),
        }
        for family in families(packed).values()
    ]


def _packable(identity: Identity) -> dict[str, Any]:
    """Dense linears that could be packed, and those that are by default."""
    default = default_packed(identity.linears, identity.layout)
    return {
        "linears": len(identity.linears),
        "by_default": len(default),
        "default_templates": list(families(default)),
    }


def _shapes(shapes: Iterable[tuple[int, ...]]) -> list[list[int]]:
    return [list(shape) for shape in dict.fromkeys(shapes)]


def _families(checkpoint: Checkpoint, identity: Identity) -> list[dict[str, Any]]:
    """Every family of stored tensors with its role, dtypes, shapes and bytes."""
    roles = roles_of(checkpoint.tensors, identity.layout)
    owners = {ref.spec.name: module for module in identity.packed.values() for ref in module.refs}
    packed_roles = roles_of((f"{module}.weight" for module in identity.packed), identity.layout)

    def role(name: str) -> str:
        return packed_roles[f"{owners[name].module}.weight"] if name in owners else roles[name]

    return [
        _family(family, checkpoint.tensors, role(family.names[0]), family.names[0] in owners)
        for family in families(checkpoint.tensors).values()
    ]


def _family(family: Family, tensors: Mapping[str, TensorRef], role: str, plane: bool) -> dict[str, Any]:
    refs = [tensors[name] for name in family.names]
    return {
        "template": family.template,
        "count": len(refs),
        "role": role,
        "plane": plane,
        "dtypes": sorted({ref.spec.dtype for ref in refs}),
        "shapes": _shapes(ref.spec.shape for ref in refs),
        "size_bytes": sum(ref.size_bytes for ref in refs),
    }
