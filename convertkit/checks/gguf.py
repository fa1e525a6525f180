"""Test the promises of units that write or read GGUF tensors, with decoders that the encoders do not use.

Blocks of a source are decoded by gguf's own NumPy code. Blocks that were written are decoded by ``grids.ggml.decode``,
which no encoder uses. The first rows of each tensor are encoded a second time: by gguf's code where that can, k-quants
by ggml's library where a wheel has it. Rows are put in order by index arithmetic; NVFP4 blocks are taken apart nibble
by nibble.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.checkpoint import TensorRef
from convertkit.checks.bench import Bench, broken
from convertkit.checks.compare import Dense, compare_tile
from convertkit.checks.evidence import RecodedEvidence
from convertkit.checks.fidelity import Tally
from convertkit.checks.gguf_rows import (
    STORAGE,
    Bytes,
    block_planes,
    dequantized,
    gathered,
    head_tiles,
    order_of,
    scalar_bits,
    source_values,
    stored_rows,
    width_of,
)
from convertkit.checks.pack import PackTally
from convertkit.checks.reference import narrowed, reciprocal, widened
from convertkit.containers.reader import Reader
from convertkit.conversion.gguf_mask import Reembed
from convertkit.conversion.gguf_units import (
    Given,
    Ids,
    Membership,
    Quantize,
    Recode,
    Regroup,
    Source,
    Ungroup,
    shape_of,
)
from convertkit.dtypes import BLOCK_TYPES
from convertkit.errors import Finding, finding
from convertkit.grids.ggml.types import K_TYPES, OWN_TYPES

REDONE = frozenset(OWN_TYPES)
"""Block types that gguf's NumPy code encodes, bit for bit as ggml does; it decodes them all."""
REDONE_ELEMENTS = 1 << 16
"""Elements of each tensor that are encoded and decoded a second time: the first rows. That code is slow."""

Found = tuple[tuple[Finding, ...], tuple[RecodedEvidence, ...]]


def _verify_recode(bench: Bench, unit: Recode) -> Found:
    """Values by decoding both sides; copies by their digests, and the first rows of blocks by encoding them again."""
    name = unit.spec.name
    if unit.promise == "bytes":
        return bench.copy_faults(name), ()
    out = bench.staged(name)
    tally, differing = Tally(), 0
    for number, source in enumerate(unit.sources):
        shape = shape_of(source)
        rows, width = prod(shape[:-1]), width_of(shape)
        order = order_of(rows, unit.order, unit.heads)
        for first, count in head_tiles(rows, width, unit.heads):
            bench.desk.stop.check()
            written = stored_rows(bench.output, out, number * rows + first, count)
            again = number == first == 0
            wrong, found = _compare(bench, unit, source, order[first : first + count], written, again)
            differing += wrong
            tally = tally + found
    faults = (broken(name, "is not what its source gives", differing=differing),) if differing else ()
    if tally.nonfinite:
        message = f"{tally.nonfinite} values would not be finite as {unit.spec.dtype}"
        faults = (*faults, finding("E_NONFINITE_OUTPUT", "error", message, tensor=name, fix="choose another --type"))
    return faults, (RecodedEvidence(name, unit.spec.dtype, tally),)


def _compare(
    bench: Bench, unit: Recode, source: Source, wanted: NDArray[np.int64], written: Bytes, again: bool
) -> tuple[int, Tally]:
    """Bytes that differ from what the source gives, and the tally of the values written against the source's.

    ``again`` also encodes and decodes its first rows a second time, by code that conversions do not use.
    """
    dtype = unit.spec.dtype
    values, stored = source_values(bench, source, wanted, dtype)
    if unit.promise == "elements" and stored not in STORAGE:
        return int(np.count_nonzero(values != written)), Tally()
    before = Dense(np.ascontiguousarray(values), stored)
    if unit.shift:
        floats = widened(values, stored) + np.float32(unit.shift)
        before = Dense(np.ascontiguousarray(floats).view(np.uint32), "F32")
    if dtype not in BLOCK_TYPES:
        expected = before.bits if before.dtype == dtype else narrowed(widened(before.bits, before.dtype), dtype)
        after = np.ascontiguousarray(written.view(STORAGE[dtype]))
        return int(np.count_nonzero(expected != after)), compare_tile(before, Dense(after, dtype))
    from convertkit.grids.ggml.decode import decode_rows

    wrong, decoded = 0, decode_rows(written, dtype)
    if again and dtype in (*REDONE, *K_TYPES):
        few = max(1, REDONE_ELEMENTS // before.bits.shape[1])
        wrong = _differing_encoding(widened(before.bits[:few], before.dtype), dtype, written[:few])
        wrong += _differing_decoding(decoded[:few], dtype, written[:few])
    return wrong, compare_tile(before, Dense(decoded.view(np.uint32), "F32"))


def _differing_encoding(values: NDArray[np.float32], dtype: str, written: Bytes) -> int:
    """Bytes that gguf's own encoder would write differently; of k-quants that ggml itself would, where it is there."""
    if dtype in K_TYPES:
        from convertkit.backends.ggml_library import library, quantize

        found = library()
        redone = written if found is None else quantize(found, np.ascontiguousarray(values), dtype)
        return int(np.count_nonzero(redone != written))
    from gguf import GGMLQuantizationType, quants

    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        expected = quants.quantize(np.ascontiguousarray(values), GGMLQuantizationType[dtype])
    return int(np.count_nonzero(expected.reshape(written.shape) != written))


def _differing_decoding(decoded: NDArray[np.float32], dtype: str, written: Bytes) -> int:
    """Values that gguf's own decoder gives otherwise. ``decoded`` comes from the loops that conversions use, since
    that code is too slow for whole tensors; this is what makes its numbers evidence."""
    theirs = dequantized(written, dtype)
    return int(np.count_nonzero(np.isfinite(theirs) & (decoded.view(np.uint32) != theirs.view(np.uint32))))


def _verify_regroup(bench: Bench, unit: Regroup) -> Found:
    """Every block against the planes of its rows, every value of ``.scale`` against the stored scalar."""
    from convertkit.checks.kernels_blocks import differing_blocks

    weight, *scalars = unit.outputs
    out = bench.staged(weight.name)
    faults: list[Finding] = []
    differing = 0
    for number, module in enumerate(unit.modules):
        rows = module.out_features
        order = order_of(rows, unit.order, unit.heads)
        for first, count in head_tiles(rows, module.in_features, unit.heads):
            bench.desk.stop.check()
            written = stored_rows(bench.output, out, number * rows + first, count)
            wanted = order[first : first + count]
            codes, scales = (gathered(bench.desk.reader, ref, wanted) for ref in (module.codes, module.block_scale))
            differing += differing_blocks(written.reshape(-1, 36), codes.reshape(-1), scales.reshape(-1))
    if differing:
        faults.append(broken(weight.name, "does not hold the planes of its source", differing=differing))
    for spec, known in zip(scalars, (bench.facts.global_bits, bench.facts.input_bits), strict=False):
        stored = np.frombuffer(bench.output.bytes_of(spec.name), "<u4")
        for bits, module in zip(stored, unit.modules, strict=True):
            before = known[module.module]
            if int(bits) != (before if module.spelling.sense == "multiplier" else reciprocal(before)):
                faults.append(broken(spec.name, "is not the scale of its source"))
    return tuple(faults), ()


def _verify_quantize(bench: Bench, unit: Quantize) -> Found:
    """Codes and scales of every weight derived again by the arithmetic of the pack checks."""
    from convertkit.checks.pack import PackTally, expected_global

    faults: list[Finding] = []
    details: list[RecodedEvidence] = []
    for (name, parts), (order, heads) in zip(unit.members, unit.orders, strict=True):
        scale = name.removesuffix("weight") + "scale"
        tally = PackTally()
        stored = np.frombuffer(bench.output.bytes_of(scale), "<u4")
        for number, ((ref, key), bits) in enumerate(zip(parts, stored.tolist(), strict=True)):
            places = order_of(ref.spec.shape[0], order, heads)
            tally += _packed_again(bench, unit, name, number, ref, places, heads, bits)
            if bits != expected_global(unit.arithmetic, unit.dtype, bench.facts.group_amax[key]):
                faults.append(broken(scale, "is not the scale of its group"))
        if tally.wrong_codes or tally.wrong_scales:
            faults.append(broken(name, f"has {tally.wrong_codes} wrong codes and {tally.wrong_scales} wrong scales"))
        details.append(RecodedEvidence(name, "NVFP4", tally.fidelity))
    return tuple(faults), tuple(details)


def _packed_again(
    bench: Bench,
    unit: Quantize,
    name: str,
    number: int,
    ref: TensorRef,
    places: NDArray[np.int64],
    heads: int,
    bits: int,
) -> PackTally:
    """The tally of one matrix, number ``number`` of the tensor ``name``, under the scale with these bits."""
    from convertkit.checks.pack import PackTally, check_pack_tile

    rows, width = ref.spec.shape
    tally = PackTally()
    for first, count in head_tiles(rows, width, heads):
        bench.desk.stop.check()
        blocks = stored_rows(bench.output, bench.staged(name), number * rows + first, count)
        codes, scales = block_planes(blocks)
        source = gathered(bench.desk.reader, ref, places[first : first + count]).view(STORAGE[unit.dtype])
        tally += check_pack_tile(
            np.ascontiguousarray(source), unit.dtype, codes, scales, bits, "multiplier",
            unit.arithmetic,
        )  # fmt: skip
    return tally


def _verify_ungroup(bench: Bench, unit: Ungroup) -> Found:
    """Every plane against the blocks of its rows, every scalar against the value that belongs to the matrix."""
    from convertkit.checks.kernels_blocks import differing_blocks

    codes, scales, *scalars = unit.outputs
    rows, width = unit.weight.spec.shape
    order = order_of(rows, unit.order, unit.heads)
    differing = 0
    for first, count in head_tiles(rows, width, unit.heads):
        bench.desk.stop.check()
        written = (stored_rows(bench.output, bench.staged(spec.name), first, count) for spec in (codes, scales))
        before = gathered(bench.desk.reader, unit.weight, order[first : first + count])
        differing += differing_blocks(before.reshape(-1, 36), *(plane.reshape(-1) for plane in written))
    faults = [broken(codes.name, "does not hold the planes of its source", differing=differing)] if differing else []
    for spec, ref in zip(scalars, (unit.scale, unit.input_scale), strict=False):
        bits = scalar_bits(bench.desk.reader, ref)
        if bench.output_bits(spec.name) != (bits if unit.spelling.sense == "multiplier" else reciprocal(bits)):
            faults.append(broken(spec.name, "is not the scale of its source"))
    return tuple(faults), ()


def _verify_ids(bench: Bench, unit: Ids) -> Found:
    """Offsets plus their place are absolute ids; or the other way round."""
    before = np.frombuffer(bench.desk.reader.bytes_of(unit.source.spec.name), "<i8").tolist()
    after = np.frombuffer(bench.output.bytes_of(unit.name), "<i8").tolist()
    right = after == [value + unit.sign * place for place, value in enumerate(before)]
    return (() if right else (broken(unit.name, "does not lead to the ids of its source"),)), ()


def _verify_membership(bench: Bench, unit: Membership) -> Found:
    """The marked places are the target ids, and no byte is anything but 0 or 1."""
    ids = set(np.frombuffer(bench.desk.reader.bytes_of(unit.source.spec.name), "<i8").tolist())
    stored = bench.output.bytes_of(unit.name)
    right = {place for place, value in enumerate(stored) if value == 1} == ids and set(stored) <= {0, 1}
    return (() if right else (broken(unit.name, "does not mark the ids of d2t"),)), ()


def _verify_given(bench: Bench, unit: Given) -> Found:
    """The bytes that the plan holds."""
    right = bench.output.bytes_of(unit.spec.name) == unit.data
    return (() if right else (broken(unit.spec.name, "is not what was planned"),)), ()


def _verify_reembed(bench: Bench, unit: Reembed) -> Found:
    """Every row but one is the lender's, and that one is what was planned."""
    table = bench.staged(unit.name)
    rows, width = unit.lent.spec.shape
    differing = 0
    with Reader(unit.lender) as lender:
        for first, count in head_tiles(rows, width, 0):
            bench.desk.stop.check()
            written = stored_rows(bench.output, table, first, count)
            wanted = stored_rows(lender, unit.lent, first, count)
            if first <= unit.row < first + count:
                wanted[unit.row - first] = np.frombuffer(unit.data, np.uint8)
            differing += int(np.count_nonzero(written != wanted))
    return ((broken(unit.name, "is not the table with the row", differing=differing),) if differing else ()), ()


GGUF_VERIFIERS: Mapping[type, Callable[[Bench, Any], Found]] = {
    Recode: _verify_recode,
    Regroup: _verify_regroup,
    Quantize: _verify_quantize,
    Ungroup: _verify_ungroup,
    Ids: _verify_ids,
    Membership: _verify_membership,
    Given: _verify_given,
    Reembed: _verify_reembed,
}
