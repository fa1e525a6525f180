"""Test the promises of units that write or read GGUF tensors, with decoders that the encoders do not use.

Blocks are decoded (and, where it can, encoded a second time) by gguf's own NumPy code; rows are put in order by
index arithmetic; NVFP4 blocks are taken apart nibble by nibble.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from convertkit.checkpoint import TensorRef
from convertkit.checks.compare import Dense, compare_tile
from convertkit.checks.evidence import RecodedEvidence
from convertkit.checks.fidelity import Tally
from convertkit.checks.reference import exact_rounded_table, narrowed, widened
from convertkit.checks.tiles import tile_rows
from convertkit.containers.reader import Reader
from convertkit.convert.gguf_units import (
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
from convertkit.convert.tiles import bytes_view
from convertkit.dialects.planes import PackedModule
from convertkit.dtypes import BLOCK_TYPES, STORED_TYPES
from convertkit.errors import Finding, finding

if TYPE_CHECKING:
    from convertkit.checks.verify import Bench

STORAGE = {"BF16": "<u2", "F16": "<u2", "F32": "<u4"}
REDONE = frozenset({"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4"})
"""Block types that gguf's NumPy code encodes, bit for bit as ggml does."""
ONE = 0x3F80_0000

Bytes = NDArray[np.uint8]
Found = tuple[tuple[Finding, ...], tuple[RecodedEvidence, ...]]


def _broken(tensor: str, what: str, **data: Any) -> Finding:
    return finding("E_PROMISE", "error", f"the written tensor {what}", tensor=tensor, data=data)


def _width(shape: tuple[int, ...]) -> int:
    return shape[-1] if shape else 1


def _row_bytes(ref: TensorRef) -> int:
    row = STORED_TYPES[ref.spec.dtype]
    return _width(ref.spec.shape) // row.block * row.bits // 8


def stored_rows(reader: Reader, ref: TensorRef, first: int, count: int) -> Bytes:
    """Bytes of rows of a stored tensor, [rows, bytes of a row]."""
    tile = np.empty((count, _row_bytes(ref)), np.uint8)
    reader.read_into(ref, first * tile.shape[1], bytes_view(tile))
    return tile


def order_of(rows: int, order: Order, heads: int) -> NDArray[np.int64]:
    """For each written row, the row of the source it comes from."""
    places = np.arange(rows, dtype=np.int64)
    if order == "keep":
        return places
    size = rows // heads
    head, place = places // size, places % size
    if order == "interleave":
        return head * size + (place % 2) * (size // 2) + place // 2
    return head * size + (place % (size // 2)) * 2 + place // (size // 2)


def _gathered(reader: Reader, ref: TensorRef, wanted: NDArray[np.int64]) -> Bytes:
    """The wanted rows of a stored tensor, in that order; they lie close together."""
    first = int(wanted.min())
    rows = stored_rows(reader, ref, first, int(wanted.max()) - first + 1)
    return rows[wanted - first]


def _nibbles(codes: Bytes) -> Bytes:
    """Plane codes [rows, in/2] as one code per element."""
    return np.stack([codes & 15, codes >> 4], axis=2).reshape(codes.shape[0], -1)


def block_parts(blocks: Bytes) -> tuple[Bytes, Bytes]:
    """NVFP4 blocks [rows, in/64*36] as elements [rows, in] and block scales [rows, in/16]."""
    rows = blocks.shape[0]
    each = blocks.reshape(rows, -1, 36)
    groups = each[:, :, 4:].reshape(rows, -1, 8)
    elements = np.concatenate([groups & 15, groups >> 4], axis=2)
    return elements.reshape(rows, -1), each[:, :, :4].reshape(rows, -1)


def _plane_rows(bench: Bench, source: PackedModule | BlockWeight, wanted: NDArray[np.int64]) -> tuple[Bytes, Bytes]:
    """Elements and block scales of rows of an NVFP4 source."""
    reader = bench.desk.reader
    if isinstance(source, BlockWeight):
        return block_parts(_gathered(reader, source.weight, wanted))
    return _nibbles(_gathered(reader, source.codes, wanted)), _gathered(reader, source.block_scale, wanted)


def _bits(reader: Reader, ref: TensorRef | None) -> int:
    if ref is None:
        return ONE
    buffer = bytearray(4)
    reader.read_into(ref, 0, memoryview(buffer))
    return int.from_bytes(buffer, "little")


def _reciprocal(bits: int) -> int:
    return int((np.float32(1.0) / np.uint32(bits).view(np.float32)).view(np.uint32))


def _source_values(bench: Bench, source: Source, wanted: NDArray[np.int64], dtype: str) -> tuple[NDArray[Any], str]:
    """Rows of a source as storage bits: as stored, exact products rounded once to ``dtype``, or gguf's FP32."""
    if isinstance(source, TensorRef):
        rows = _gathered(bench.desk.reader, source, wanted)
        if source.spec.dtype not in BLOCK_TYPES:
            return rows.view(STORAGE.get(source.spec.dtype, "|u1")), source.spec.dtype
        return dequantized(rows, source.spec.dtype).view(np.uint32), "F32"
    elements, scales = _plane_rows(bench, source, wanted)
    if isinstance(source, PackedModule):
        bits, sense = bench.facts.global_bits[source.module], source.spelling.sense
    else:
        bits, sense = _bits(bench.desk.reader, source.scale), "multiplier"
    dtype = dtype if dtype in STORAGE else "F32"
    table = exact_rounded_table(bits, sense, dtype)
    return table[np.repeat(scales, 16, axis=1), elements], dtype


def dequantized(rows: Bytes, dtype: str) -> NDArray[np.float32]:
    from gguf import GGMLQuantizationType, quants

    with np.errstate(invalid="ignore", over="ignore"):
        return np.ascontiguousarray(quants.dequantize(rows, GGMLQuantizationType[dtype]), dtype=np.float32)


def _tiles(rows: int, width: int, heads: int) -> Iterator[tuple[int, int]]:
    """(first, count) of row tiles cut between heads."""
    head = rows // heads if heads else 1
    step = max(head, tile_rows(width) // head * head)
    for first in range(0, rows, step):
        yield first, min(step, rows - first)


def verify_recode(bench: Bench, unit: Recode) -> Found:
    name = unit.spec.name
    if unit.promise == "bytes":
        return (() if bench.made[name] == bench.stored()[name] else (_broken(name, "differs from its source"),)), ()
    out = bench.staged(name)
    tally, differing = Tally(), 0
    for number, source in enumerate(unit.sources):
        shape = shape_of(source)
        rows, width = prod(shape[:-1]), _width(shape)
        order = order_of(rows, unit.order, unit.heads)
        for first, count in _tiles(rows, width, unit.heads):
            bench.desk.stop.check()
            written = stored_rows(bench.output, out, number * rows + first, count)
            wrong, found = _compare(bench, unit, source, order[first : first + count], written)
            differing += wrong
            tally = tally + found
    faults = (_broken(name, "is not what its source gives", differing=differing),) if differing else ()
    if tally.nonfinite:
        message = f"{tally.nonfinite} values would not be finite as {unit.spec.dtype}"
        faults = (*faults, finding("E_NONFINITE_OUTPUT", "error", message, tensor=name, fix="choose another --type"))
    return faults, (RecodedEvidence(name, unit.spec.dtype, tally),)


def _compare(
    bench: Bench, unit: Recode, source: Source, wanted: NDArray[np.int64], written: Bytes
) -> tuple[int, Tally]:
    """Bytes that differ from what the source gives, and the tally of the values written against the source's."""
    dtype = unit.spec.dtype
    values, stored = _source_values(bench, source, wanted, dtype)
    if unit.promise == "elements" and stored not in STORAGE:
        return int(np.count_nonzero(values != written)), Tally()
    floats = widened(values, stored)
    if unit.shift:
        floats = floats + np.float32(unit.shift)
    before = np.ascontiguousarray(floats).view(np.uint32)
    if dtype not in BLOCK_TYPES:
        expected = narrowed(floats, dtype)
        after = written.view(STORAGE[dtype])
        wrong = int(np.count_nonzero(expected != after))
        return wrong, compare_tile(Dense(before, "F32"), Dense(np.ascontiguousarray(after), dtype))
    wrong = 0
    if dtype in REDONE:
        from gguf import GGMLQuantizationType, quants

        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            again = quants.quantize(np.ascontiguousarray(floats), GGMLQuantizationType[dtype])
        wrong = int(np.count_nonzero(again.reshape(written.shape) != written))
    decoded = dequantized(written, dtype).view(np.uint32)
    return wrong, compare_tile(Dense(before, "F32"), Dense(decoded, "F32"))


def verify_regroup(bench: Bench, unit: Regroup) -> Found:
    weight, *scalars = unit.outputs
    out = bench.staged(weight.name)
    faults: list[Finding] = []
    differing = 0
    for number, module in enumerate(unit.modules):
        rows = module.out_features
        order = order_of(rows, unit.order, unit.heads)
        for first, count in _tiles(rows, module.in_features, unit.heads):
            bench.desk.stop.check()
            written = block_parts(stored_rows(bench.output, out, number * rows + first, count))
            source = _plane_rows(bench, module, order[first : first + count])
            differing += sum(int(np.count_nonzero(a != b)) for a, b in zip(written, source, strict=True))
    if differing:
        faults.append(_broken(weight.name, "does not hold the planes of its source", differing=differing))
    for spec, known in zip(scalars, (bench.facts.global_bits, bench.facts.input_bits), strict=False):
        stored = np.frombuffer(bench.output.bytes_of(spec.name), "<u4")
        for bits, module in zip(stored, unit.modules, strict=True):
            before = known[module.module]
            if int(bits) != (before if module.spelling.sense == "multiplier" else _reciprocal(before)):
                faults.append(_broken(spec.name, "is not the scale of its source"))
    return tuple(faults), ()


def verify_quantize(bench: Bench, unit: Quantize) -> Found:
    """Codes and scales of every weight derived again by the arithmetic of the pack checks."""
    from convertkit.checks.pack import PackTally, check_pack_tile, expected_global

    expected = expected_global(unit.arithmetic, unit.dtype, bench.facts.group_amax[unit.key])
    faults: list[Finding] = []
    details: list[RecodedEvidence] = []
    for ref, name, (order, heads) in zip(unit.sources, unit.names, unit.orders, strict=True):
        scale = name.removesuffix("weight") + "scale"
        bits = int.from_bytes(bench.output.bytes_of(scale), "little")
        rows, width = ref.spec.shape
        places = order_of(rows, order, heads)
        tally = PackTally()
        for first, count in _tiles(rows, width, heads):
            bench.desk.stop.check()
            elements, scales = block_parts(stored_rows(bench.output, bench.staged(name), first, count))
            codes = np.ascontiguousarray(elements[:, 0::2] | (elements[:, 1::2] << 4))
            source = _gathered(bench.desk.reader, ref, places[first : first + count]).view(STORAGE[unit.dtype])
            tally += check_pack_tile(
                np.ascontiguousarray(source), unit.dtype, codes, np.ascontiguousarray(scales), bits, "multiplier",
                unit.arithmetic,
            )  # fmt: skip
        if tally.wrong_codes or tally.wrong_scales:
            faults.append(_broken(name, f"has {tally.wrong_codes} wrong codes and {tally.wrong_scales} wrong scales"))
        if bits != expected:
            faults.append(_broken(scale, "is not the scale of its group"))
        details.append(RecodedEvidence(name, "NVFP4", tally.fidelity))
    return tuple(faults), tuple(details)


def verify_ungroup(bench: Bench, unit: Ungroup) -> Found:
    codes, scales, *scalars = unit.outputs
    rows, width = unit.weight.spec.shape
    order = order_of(rows, unit.order, unit.heads)
    source = BlockWeight(unit.weight, unit.scale)
    differing = 0
    for first, count in _tiles(rows, width, unit.heads):
        bench.desk.stop.check()
        written = (
            _nibbles(stored_rows(bench.output, bench.staged(codes.name), first, count)),
            stored_rows(bench.output, bench.staged(scales.name), first, count),
        )
        before = _plane_rows(bench, source, order[first : first + count])
        differing += sum(int(np.count_nonzero(a != b)) for a, b in zip(written, before, strict=True))
    faults = [_broken(codes.name, "does not hold the planes of its source", differing=differing)] if differing else []
    for spec, ref in zip(scalars, (unit.scale, unit.input_scale), strict=False):
        stored = int.from_bytes(bench.output.bytes_of(spec.name), "little")
        bits = _bits(bench.desk.reader, ref)
        if stored != (bits if unit.spelling.sense == "multiplier" else _reciprocal(bits)):
            faults.append(_broken(spec.name, "is not the scale of its source"))
    return tuple(faults), ()


def verify_ids(bench: Bench, unit: Ids) -> Found:
    before = np.frombuffer(bench.desk.reader.bytes_of(unit.source.spec.name), "<i8").tolist()
    after = np.frombuffer(bench.output.bytes_of(unit.name), "<i8").tolist()
    right = after == [value + unit.sign * place for place, value in enumerate(before)]
    return (() if right else (_broken(unit.name, "does not lead to the ids of its source"),)), ()


def verify_membership(bench: Bench, unit: Membership) -> Found:
    ids = set(np.frombuffer(bench.desk.reader.bytes_of(unit.source.spec.name), "<i8").tolist())
    stored = bench.output.bytes_of(unit.name)
    right = {place for place, value in enumerate(stored) if value == 1} == ids and set(stored) <= {0, 1}
    return (() if right else (_broken(unit.name, "does not mark the ids of d2t"),)), ()


def verify_given(bench: Bench, unit: Given) -> Found:
    right = bench.output.bytes_of(unit.spec.name) == unit.data
    return (() if right else (_broken(unit.spec.name, "is not what was planned"),)), ()


GGUF_VERIFIERS: Mapping[type, Callable[[Bench, Any], Found]] = {
    Recode: verify_recode,
    Regroup: verify_regroup,
    Quantize: verify_quantize,
    Ungroup: verify_ungroup,
    Ids: verify_ids,
    Membership: verify_membership,
    Given: verify_given,
}
