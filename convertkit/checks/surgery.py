"""Proving rearrangements and folds on the written file.

Elements are looked up one output row at a time in the source, as arrays with their shapes, not as runs of bytes. A
fold is proved for every pair of (old byte, new byte) that occurs: both products with their global scales are compared
as fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.checkpoint import TensorRef
from convertkit.checks.bench import Bench, broken
from convertkit.checks.reference import NAN_BYTES, SCALE_UNITS, float_of
from convertkit.containers.reader import Reader
from convertkit.conversion.surgery_units import Fold, Rearrange, Swap
from convertkit.dtypes import DTYPES
from convertkit.errors import Finding

ROWS = 4096
"""Rows compared at a time."""


@dataclass(frozen=True)
class FoldedEvidence:
    """One linear whose scales were folded: elements whose value differs from before, and FP32 bits of both scales."""

    module: str
    changed_values: int
    before_bits: int
    after_bits: int


Found = tuple[tuple[Finding, ...], tuple[FoldedEvidence, ...]]
"""Broken promises, and what was measured."""


def _verify_rearrange(bench: Bench, unit: Rearrange) -> Found:
    """Each row of the output against the row of the source that it should be."""
    out = bench.staged(unit.spec.name)
    if (out.spec.dtype, out.spec.shape) != (unit.spec.dtype, unit.spec.shape):
        return _fault(unit.spec.name, "has another form than planned")
    position = differing = 0
    for piece in unit.pieces:
        for first in range(0, piece.count, ROWS):
            bench.desk.stop.check()
            count = min(ROWS, piece.count - first)
            wanted = _rows(bench.desk.reader, piece.source, piece.first + first, count)
            found = _flat(bench.output, out, position, wanted.size)
            differing += int(np.count_nonzero(wanted.reshape(-1) != found))
            position += wanted.size
    if position != out.size_bytes:
        return _fault(unit.spec.name, "has bytes that no row of a source gives")
    return _fault(unit.spec.name, "differs from its sources", differing=differing) if differing else ((), ())


def _rows(reader: Reader, ref: TensorRef, first: int, count: int) -> NDArray[np.uint8]:
    """Rows of a stored tensor as bytes [count, bytes of a row]."""
    shape = ref.spec.shape
    width = (shape[-1] if len(shape) > 1 else 1) * DTYPES[ref.spec.dtype].bits // 8
    data = np.empty((count, width), np.uint8)
    reader.read_into(ref, first * width, data.reshape(-1).data)
    return data


def _flat(reader: Reader, ref: TensorRef, position: int, size: int) -> NDArray[np.uint8]:
    data = np.empty(min(size, max(0, ref.size_bytes - position)), np.uint8)
    reader.read_into(ref, position, data.data)
    return data if data.size == size else np.pad(data, (0, size - data.size))


def _fault(tensor: str, what: str, **data: Any) -> Found:
    return (broken(tensor, what, **data),), ()


def _verify_fold(bench: Bench, unit: Fold) -> Found:
    """Every pair of old and new byte: the same value exactly, or (with a loss that was allowed) the nearest one."""
    packed = unit.packed
    before = bench.desk.reader.f32_bits(packed.global_scale)
    after = bench.output_bits(packed.global_scale.spec.name)
    if after != unit.global_bits:
        return _fault(packed.global_scale.spec.name, "is not the shared scale")
    written = bench.staged(packed.block_scale.spec.name)
    ratio = Fraction(float(float_of(after))) / Fraction(float(float_of(before)))
    if packed.spelling.sense == "multiplier":
        ratio = 1 / ratio
    changed = wrong = 0
    half = packed.in_features // 2
    blocks = packed.block_scale.spec.shape[1]
    verdicts: dict[tuple[int, int], tuple[bool, bool]] = {}
    for first in range(0, packed.out_features, ROWS):
        bench.desk.stop.check()
        count = min(ROWS, packed.out_features - first)
        old = _rows(bench.desk.reader, packed.block_scale, first, count)
        new = _rows(bench.output, written, first, count)
        pairs = old.astype(np.uint32) << 8 | new
        unequal = np.zeros(pairs.shape, np.bool_)
        for pair in np.unique(pairs).tolist():
            key = (pair >> 8, pair & 255)
            if key not in verdicts:
                verdicts[key] = _pair(*key, ratio)
            wrong += 0 if verdicts[key][1] else int(np.count_nonzero(pairs == pair))
            if not verdicts[key][0]:
                unequal |= pairs == pair
        if unequal.any():
            codes = _rows(bench.desk.reader, packed.codes, first, count).reshape(count, blocks, half // blocks)
            nonzero = np.count_nonzero(codes & 0x07, axis=2) + np.count_nonzero(codes & 0x70, axis=2)
            changed += int(nonzero[unequal].sum())
    details = (FoldedEvidence(packed.module, changed, before, after),)
    if wrong or (changed and unit.exact):
        return _fault(packed.block_scale.spec.name, "does not fold its scale", wrong=wrong, changed=changed)
    return (), details


def _pair(old: int, new: int, ratio: Fraction) -> tuple[bool, bool]:
    """(whether the value is the same, whether the new byte is the nearest to it) for one block scale."""
    if old in NAN_BYTES or new in NAN_BYTES:
        return False, False
    wanted = ratio * int(SCALE_UNITS[old & 0x7F])
    found = int(SCALE_UNITS[new & 0x7F])
    if wanted == found:
        return True, (old & 0x80) == (new & 0x80)
    gap = abs(wanted - found)
    nearest = min(abs(wanted - int(SCALE_UNITS[byte])) for byte in range(127))
    return False, gap == nearest and (old & 0x80) == (new & 0x80)


def _verify_swap(bench: Bench, unit: Swap) -> Found:
    """Every column of codes against its neighbour's place in the source."""
    out, (rows, width) = bench.staged(unit.source.spec.name), unit.source.spec.shape
    differing = 0
    for first in range(0, rows, ROWS):
        bench.desk.stop.check()
        count = min(ROWS, rows - first)
        old = _rows(bench.desk.reader, unit.source, first, count)
        new = _rows(bench.output, out, first, count)
        columns = [np.stack((tile & 15, tile >> 4), axis=2).reshape(count, 2 * width) for tile in (old, new)]
        order = np.arange(2 * width) ^ 1
        differing += int(np.count_nonzero(columns[0][:, order] != columns[1]))
    return (
        _fault(out.spec.name, "is not its source with nibbles exchanged", differing=differing)
        if differing
        else ((), ())
    )


SURGERY_VERIFIERS: Mapping[type, Callable[[Bench, Any], Found]] = {
    Rearrange: _verify_rearrange,
    Fold: _verify_fold,
    Swap: _verify_swap,
}
"""What tests the promises ``elements`` and ``scales``."""
