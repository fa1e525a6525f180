"""Carrying out the units of ``gguf_units``: read, decode, reorder, encode, write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from convertkit.checkpoint import TensorRef
from convertkit.conversion.gguf_mask import Reembed, run_reembed
from convertkit.conversion.gguf_tiles import (
    Tile,
    dense_rows,
    head_rows_of,
    matrix_shape,
    planes_rows,
    read_rows,
    reordered,
    row_ranges,
    scalar_bits,
    stored_row_bytes,
)
from convertkit.conversion.gguf_units import (
    BlockWeight,
    Given,
    Ids,
    Membership,
    Order,
    Quantize,
    Recode,
    Regroup,
    Source,
    Ungroup,
    shape_of,
)
from convertkit.conversion.outputs import Job, TensorOut
from convertkit.conversion.survey import INFINITY
from convertkit.conversion.tiles import bytes_view
from convertkit.dialects.planes import PackedModule
from convertkit.dialects.spelling import GROUP
from convertkit.errors import ConvertError, refusal
from convertkit.grids.dense import FLOAT_TYPES

MULTIPLIER = "multiplier"


def _refuse_nonfinite(ref: TensorRef) -> ConvertError:
    return refusal("E_WEIGHT_NONFINITE", "the weight holds NaN or infinity", file=ref.file, tensor=ref.spec.name,
                   fix="repair the checkpoint: engines would load it and give nonsense")  # fmt: skip


def _check_finite(tile: Tile, dtype: str, source: Source) -> None:
    if not isinstance(source, TensorRef) or dtype not in INFINITY or not tile.size:
        return
    magnitudes = tile & tile.dtype.type(FLOAT_TYPES[dtype].magnitude)
    if magnitudes.max() >= INFINITY[dtype]:
        raise _refuse_nonfinite(source)


def global_bits_of(job: Job, source: Source) -> int:
    """FP32 bits of the scale of a whole NVFP4 weight; 0 for others."""
    if isinstance(source, PackedModule):
        return job.facts.global_bits[source.module]
    return scalar_bits(job.desk, source.scale) if isinstance(source, BlockWeight) else 0


def _run_recode(job: Job, unit: Recode) -> dict[str, str]:
    out = TensorOut(job, unit.spec, copied=unit.promise == "bytes", known=_known(job, unit))
    for source in unit.sources:
        _recode_source(job, unit, source, out)
    return {unit.spec.name: out.close()}


def _known(job: Job, unit: Recode) -> str | None:
    """The digest of a tensor that is copied byte for byte, if somebody has taken it."""
    source = unit.sources[0]
    copied = unit.promise == "bytes" and len(unit.sources) == 1 and isinstance(source, TensorRef)
    return job.known.get(source.spec.name) if copied and isinstance(source, TensorRef) else None


def _recode_source(job: Job, unit: Recode, source: Source, out: TensorOut) -> None:
    desk = job.desk
    shape = shape_of(source)
    rows, width = matrix_shape(shape)
    head_rows = head_rows_of(shape, unit.heads)
    bits = global_bits_of(job, source)
    for first, last in row_ranges(rows, width, head_rows):
        desk.stop.check()
        if unit.promise in ("bytes", "elements") and isinstance(source, TensorRef):
            tile = reordered(read_rows(desk, source, first, last), unit.order, head_rows)
            _check_finite(tile, source.spec.dtype, source)
            out.write(bytes_view(np.ascontiguousarray(tile)))
        else:
            from convertkit.grids.ggml.encode import encode_rows

            tile, dtype = dense_rows(desk, source, bits, first, last, unit.spec.dtype)
            _check_finite(tile, dtype, source)
            tile = shifted(reordered(tile, unit.order, head_rows), dtype, unit.shift)
            data = encode_rows(tile, "F32" if unit.shift else dtype, unit.spec.dtype)
            out.write(bytes_view(data))
        desk.progress.advance((last - first) * stored_row_bytes(source))


def shifted(tile: Tile, dtype: str, shift: int) -> Tile:
    """Values plus ``shift`` as FP32 bits, or the tile as it is if that is 0."""
    if not shift:
        return tile
    from convertkit.grids.dense import to_float32

    values: Tile = to_float32(tile, dtype) + np.float32(shift)
    return values.view(np.uint32)


def _run_regroup(job: Job, unit: Regroup) -> dict[str, str]:
    from convertkit.grids.ggml.nvfp4 import join_planes
    from convertkit.grids.nvfp4.decode import swap_sense

    desk = job.desk
    weight, *scalars = (TensorOut(job, spec) for spec in unit.outputs)
    for module in unit.modules:
        head_rows = head_rows_of((module.out_features,), unit.heads)
        for first, last in row_ranges(module.out_features, module.in_features, head_rows):
            desk.stop.check()
            codes, scales = (reordered(tile, unit.order, head_rows) for tile in planes_rows(desk, module, first, last))
            weight.write(bytes_view(join_planes(codes, scales)))
            desk.progress.advance(codes.nbytes + scales.nbytes)
    for out, known in zip(scalars, (job.facts.global_bits, job.facts.input_bits), strict=False):
        for module in unit.modules:
            bits = known[module.module]
            stored = bits if module.spelling.sense == MULTIPLIER else swap_sense(bits)[0]
            out.write(memoryview(stored.to_bytes(4, "little")))
    return {out.spec.name: out.close() for out in (weight, *scalars)}


def _run_quantize(job: Job, unit: Quantize) -> dict[str, str]:
    from convertkit.grids.nvfp4.tables import build_encode_tables

    digests: dict[str, str] = {}
    specs = iter(unit.outputs)
    for (_, parts), (order, heads) in zip(unit.members, unit.orders, strict=True):
        weight, scalar = TensorOut(job, next(specs)), TensorOut(job, next(specs))
        for ref, key in parts:
            tables = build_encode_tables(unit.arithmetic, unit.dtype, job.facts.group_amax[key])
            _quantize_rows(job, ref, tables, order, heads, weight)
            scalar.write(memoryview(tables.global_bits.to_bytes(4, "little")))
        digests.update((out.spec.name, out.close()) for out in (weight, scalar))
    return digests


def _quantize_rows(job: Job, ref: TensorRef, tables: Any, order: Order, heads: int, out: TensorOut) -> None:
    from convertkit.grids.ggml.nvfp4 import join_planes
    from convertkit.grids.nvfp4.encode import encode_tile

    desk = job.desk
    rows, width = ref.spec.shape
    head_rows = head_rows_of(ref.spec.shape, heads)
    for first, last in row_ranges(rows, width, head_rows):
        desk.stop.check()
        tile = reordered(read_rows(desk, ref, first, last), order, head_rows)
        codes = desk.buffers.take("codes", "|u1", (last - first, width // 2))
        scales = desk.buffers.take("scales", "|u1", (last - first, width // GROUP))
        encode_tile(tile, tables, codes, scales)
        out.write(bytes_view(join_planes(codes.view(np.uint8), scales.view(np.uint8))))
        desk.progress.advance(tile.nbytes)


def _run_ungroup(job: Job, unit: Ungroup) -> dict[str, str]:
    from convertkit.conversion.gguf_tiles import block_planes
    from convertkit.grids.nvfp4.decode import swap_sense

    desk = job.desk
    outs = [TensorOut(job, spec) for spec in unit.outputs]
    rows, width = unit.weight.spec.shape
    head_rows = head_rows_of(unit.weight.spec.shape, unit.heads)
    source = BlockWeight(unit.weight, unit.scale)
    for first, last in row_ranges(rows, width, head_rows):
        desk.stop.check()
        for tile, out in zip(block_planes(desk, source, first, last), outs[:2], strict=True):
            out.write(bytes_view(np.ascontiguousarray(reordered(tile, unit.order, head_rows))))
        desk.progress.advance((last - first) * width * 9 // 16)
    for out, ref in zip(outs[2:], (unit.scale, unit.input_scale), strict=False):
        bits = scalar_bits(desk, ref)
        stored = bits if unit.spelling.sense == MULTIPLIER else swap_sense(bits)[0]
        out.write(memoryview(stored.to_bytes(4, "little")))
    return {out.spec.name: out.close() for out in outs}


def _absolute_ids(data: bytes, sign: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Offsets plus place, or absolute ids minus place."""
    stored = np.frombuffer(data, "<i8")
    return stored + sign * np.arange(stored.size, dtype=np.int64)


def _run_ids(job: Job, unit: Ids) -> dict[str, str]:
    data = job.desk.reader.bytes_of(unit.source.spec.name)
    ids = _absolute_ids(data, unit.sign)
    targets = ids if unit.sign > 0 else np.frombuffer(data, "<i8")
    if targets.size and (targets.min() < 0 or targets.max() >= unit.limit or np.unique(targets).size != targets.size):
        raise refusal("E_VOCABULARY_MAP", f"d2t does not lead to distinct ids below {unit.limit:,}",
                      file=unit.source.file, tensor=unit.source.spec.name)  # fmt: skip
    out = TensorOut(job, unit.outputs[0])
    out.write(bytes_view(ids))
    return {unit.name: out.close()}


def _run_membership(job: Job, unit: Membership) -> dict[str, str]:
    ids = np.frombuffer(job.desk.reader.bytes_of(unit.source.spec.name), "<i8")
    members = np.zeros(unit.limit, np.uint8)
    members[ids] = 1
    out = TensorOut(job, unit.outputs[0])
    out.write(bytes_view(members))
    return {unit.name: out.close()}


def _run_given(job: Job, unit: Given) -> dict[str, str]:
    out = TensorOut(job, unit.spec)
    out.write(memoryview(unit.data))
    return {unit.spec.name: out.close()}


GGUF_RUNNERS: Mapping[type, Callable[[Job, Any], dict[str, str]]] = {
    Recode: _run_recode,
    Regroup: _run_regroup,
    Quantize: _run_quantize,
    Ungroup: _run_ungroup,
    Ids: _run_ids,
    Membership: _run_membership,
    Given: _run_given,
    Reembed: run_reembed,
}
