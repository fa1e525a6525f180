"""Planning to fuse and split: which rows of which stored tensors make each new one. Names, shapes and scalars only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from convertkit.checkpoint import Checkpoint, TensorRef, TensorSpec
from convertkit.containers.folder import CONFIG
from convertkit.containers.reader import Reader
from convertkit.conversion.surgery_units import Piece, Rearrange, whole
from convertkit.errors import ConvertError, refusal
from convertkit.layouts.fusions import EXPERT_FORMS, FUSIONS, SCALARS, Fusion, scalar_shape
from convertkit.layouts.layout import config_value

Leaves = dict[str, TensorRef]


def plan_surgery(source: Checkpoint, reader: Reader, direction: str, kind: str, option: str) -> list[Rearrange]:
    """Units that ``fuse`` or ``split`` everything of one kind (a row of ``KINDS``).

    Raises ``ConvertError``: E_PATTERN_EMPTY (there is nothing of the kind), E_FUSED_SCALE (parts of a packed matrix
    have different scalars), E_LAYOUT_SHAPE (parts do not fit), E_CONFIG (heads are not stated).
    """
    if kind in FUSIONS:
        modules = _modules(source)
        work = _fuse_rows if direction == "fuse" else _split_rows
        units = list(work(source, reader, modules, FUSIONS[kind], option))
    elif direction == "fuse":
        from convertkit.conversion.surgery_experts import fuse_experts

        units = list(fuse_experts(source, EXPERT_FORMS[kind], option))
    else:
        from convertkit.conversion.surgery_experts import split_experts

        units = list(split_experts(source, EXPERT_FORMS[kind], option))
    if not units:
        what = "fuse into" if direction == "fuse" else "split"
        raise refusal("E_PATTERN_EMPTY", f"there is nothing to {what} '{kind}' here")
    return units


def _modules(source: Checkpoint) -> dict[str, Leaves]:
    """Modules with their tensors by leaf."""
    modules: dict[str, Leaves] = {}
    for name, ref in source.tensors.items():
        module, _, leaf = name.rpartition(".")
        modules.setdefault(module, {})[leaf] = ref
    return modules


def _fuse_rows(
    source: Checkpoint, reader: Reader, modules: Mapping[str, Leaves], fusion: Fusion, option: str
) -> Iterator[Rearrange]:
    for module in modules:
        parent, _, leaf = module.rpartition(".")
        if leaf != fusion.parts[0]:
            continue
        members = [f"{parent}.{part}" if parent else part for part in fusion.parts]
        if any(member not in modules for member in members):
            continue
        fused = f"{parent}.{fusion.fused}" if parent else fusion.fused
        leaves = [modules[member] for member in members]
        for name in leaves[0]:
            refs = [part[name] for part in leaves if name in part]
            if len(refs) < len(leaves) or any(part.keys() != leaves[0].keys() for part in leaves):
                raise _unlike(members[0], "its parts have different tensors")
            yield _joined(f"{fused}.{name}", name, refs, reader, option, fused)


def _joined(name: str, leaf: str, refs: Sequence[TensorRef], reader: Reader, option: str, bundle: str) -> Rearrange:
    first = refs[0].spec
    if any(ref.spec.dtype != first.dtype or ref.spec.shape[1:] != first.shape[1:] for ref in refs):
        raise _unlike(first.name, "its parts have different dtypes or widths")
    if leaf in SCALARS or first.elements == 1:
        values = {reader.bytes_of(ref.spec.name) for ref in refs}
        if len(values) > 1:
            message = "parts of a fused matrix have different scales, which one scalar cannot hold"
            raise refusal("E_FUSED_SCALE", message, tensor=first.name, fix="repair --tie-scales first")
        return Rearrange(TensorSpec(name, first.dtype, first.shape), (whole(refs[0]), *_also(refs[1:])), option, bundle)
    rows = sum(ref.spec.shape[0] for ref in refs)
    spec = TensorSpec(name, first.dtype, (rows, *first.shape[1:]))
    return Rearrange(spec, tuple(whole(ref) for ref in refs), option, bundle)


def _also(refs: Iterable[TensorRef]) -> tuple[Piece, ...]:
    """No rows of tensors that hold the same value: they are accounted for as inputs."""
    return tuple(Piece(ref, 0, 0) for ref in refs)


def _unlike(tensor: str, what: str) -> ConvertError:
    return refusal("E_LAYOUT_SHAPE", f"cannot be fused: {what}", tensor=tensor, status=3)


def _split_rows(
    source: Checkpoint, reader: Reader, modules: Mapping[str, Leaves], fusion: Fusion, option: str
) -> Iterator[Rearrange]:
    del reader
    for module, leaves in modules.items():
        parent, _, last = module.rpartition(".")
        if last != fusion.fused:
            continue
        matrix = leaves.get("weight") or leaves.get("weight_packed")
        if matrix is None or len(matrix.spec.shape) != 2:
            raise _not_split(module, "it holds no matrix")
        sizes = _part_rows(source.config, fusion, matrix)
        for leaf, ref in leaves.items():
            yield from _parted(parent, leaf, ref, fusion.parts, sizes, option)


def _part_rows(config: Mapping[str, Any], fusion: Fusion, matrix: TensorRef) -> list[int]:
    """Rows of each part: equal ones of gate and up, by the heads of the config for q, k and v.

    q may hold a gate beside each head (Qwen3-Next: twice the rows), so it gets what k and v leave."""
    rows = matrix.spec.shape[0]
    if fusion.name != "qkv":
        if rows % len(fusion.parts):
            raise _not_split(matrix.spec.name, f"{rows} rows are not {len(fusion.parts)} equal parts")
        return [rows // len(fusion.parts)] * len(fusion.parts)
    heads, kv_heads = (config_value(config, key) for key in ("num_attention_heads", "num_key_value_heads"))
    width = config_value(config, "head_dim")
    if not isinstance(heads, int):
        fix = "state num_attention_heads, num_key_value_heads and head_dim in config.json"
        raise refusal("E_CONFIG", "the config does not state the attention heads", file=CONFIG, fix=fix)
    kv_heads = kv_heads if isinstance(kv_heads, int) else heads
    if not isinstance(width, int):
        hidden = config_value(config, "hidden_size")
        width = hidden // heads if isinstance(hidden, int) else rows // (heads + 2 * kv_heads)
    query = rows - 2 * kv_heads * width
    if query not in (heads * width, 2 * heads * width):
        message = f"{rows} rows are not {heads} heads of {width} and twice {kv_heads}"
        raise _not_split(matrix.spec.name, message)
    return [query, kv_heads * width, kv_heads * width]


def _parted(
    parent: str, leaf: str, ref: TensorRef, parts: Sequence[str], sizes: Sequence[int], option: str
) -> Iterator[Rearrange]:
    """One unit per part for one stored tensor of the fused matrix."""
    shape, rows = ref.spec.shape, sum(sizes)
    by_row = len(shape) > 0 and shape[0] == rows and leaf not in SCALARS
    slots = shape == (len(parts),) and not by_row
    if not (by_row or slots or ref.spec.elements == 1):
        raise _not_split(ref.spec.name, f"shape {list(shape)} is neither rows nor scalars of its parts")
    start = 0
    for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        module = f"{parent}.{part}" if parent else part
        if by_row:
            spec = TensorSpec(f"{module}.{leaf}", ref.spec.dtype, (size, *shape[1:]))
            piece = Piece(ref, start, size)
        else:
            spec = TensorSpec(
                f"{module}.{leaf}", ref.spec.dtype, shape if ref.spec.elements == 1 else scalar_shape(leaf)
            )
            piece = Piece(ref, number if slots else 0, 1)
        yield Rearrange(spec, (piece,), option, module)
        start += size


def _not_split(tensor: str, what: str) -> ConvertError:
    return refusal("E_LAYOUT_SHAPE", f"cannot be split: {what}", tensor=tensor, status=3)
