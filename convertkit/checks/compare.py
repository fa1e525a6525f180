"""Compare any two spellings of the same weight: dense or planes, on either side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.checks import slots
from convertkit.checks.arrays import flat, source_words, tally_of
from convertkit.checks.fidelity import Tally
from convertkit.checks.pack import measure_tile
from convertkit.checks.reference import FORMATS, PlaneTables, narrowed, plane_tables, widened
from convertkit.checks.tiles import LANES

SMALL = 128 * slots.CHUNK
"""Elements up to which a dense tile is measured without compiled kernels: loading them costs more."""

PIECE = 32 * slots.CHUNK
"""Elements decoded at a time where no fused kernel exists; a multiple of the chunk, so sums do not depend on it."""


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """Storage bits of a tile and their dtype: BF16, F16 or F32."""

    bits: NDArray[Any]
    dtype: str


@dataclass(frozen=True, slots=True, eq=False)
class Planes:
    """A tile of planes: ``codes`` uint8 [rows, in/2], ``scales`` uint8 [rows, in/16], the recorded global scale.

    ``tables`` are what the planes decode to, if that is not the exact values.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    global_bits: int
    sense: str
    tables: PlaneTables | None = None


Side = Dense | Planes


def compare_tile(reference: Side, candidate: Side, *, stored: str | None = None) -> Tally:
    """The tally of a tile of ``candidate`` against the same tile of ``reference``.

    ``stored`` (BF16, F16, F32) first rounds the candidate to that dtype, as a file that holds it expanded would.
    ``ValueError`` if the sizes differ.
    """
    if stored is not None and isinstance(candidate, Dense) and candidate.dtype != stored:
        candidate = Dense(narrowed(widened(candidate.bits, candidate.dtype), stored), stored)
    if isinstance(reference, Dense) and isinstance(candidate, Planes):
        return measure_tile(
            reference.bits, reference.dtype, candidate.codes, candidate.scales, candidate.global_bits,
            candidate.sense, stored, tables=candidate.tables,
        )[1]  # fmt: skip
    if isinstance(reference, Dense) and isinstance(candidate, Dense):
        return _compare_dense(reference, candidate)
    return _compare_values(reference, candidate, stored)


def compare_tiles(
    reference: Side, candidate: Side, rows: int, *, stored: str | None = None, device: str = "cpu"
) -> Sequence[Tally]:
    """``compare_tile`` of each tile of so many rows. ``device`` (cpu, cuda) sums; the bits are the same."""
    if device == "cuda":
        made = compare_on_device(reference, candidate, rows * _width(reference), stored)
        if made is not None:
            return made
    height = (reference.bits if isinstance(reference, Dense) else reference.codes).shape[0]
    return [
        compare_tile(_rows(reference, first, rows), _rows(candidate, first, rows), stored=stored)
        for first in range(0, height, rows)
    ]


def _width(side: Side) -> int:
    return int(side.bits.shape[1] if isinstance(side, Dense) else 2 * side.codes.shape[1])


def _rows(side: Side, first: int, rows: int) -> Side:
    if isinstance(side, Dense):
        return Dense(side.bits[first : first + rows], side.dtype)
    return replace(side, codes=side.codes[first : first + rows], scales=side.scales[first : first + rows])


def compare_on_device(reference: Side, candidate: Side, per: int, stored: str | None = None) -> list[Tally] | None:
    """The tallies of tiles of ``per`` elements, as ``compare_tile`` makes them, summed on a CUDA device; None for sides
    that only the processor compares."""
    from convertkit.checks import cuda

    if not isinstance(reference, Dense):
        return None
    if isinstance(candidate, Planes):
        words, _ = source_words(reference.bits, reference.dtype)
        _same_size(words.size, _size(candidate))
        codes, scales = flat(candidate.codes, "u1"), flat(candidate.scales, "u1")
        return cuda.measure_planes(words, codes, scales, _tables(candidate, stored), per)
    if stored is not None and candidate.dtype != stored:
        candidate = Dense(narrowed(widened(candidate.bits, candidate.dtype), stored), stored)
    left, right, _, same = _dense_pair(reference, candidate)
    return cuda.measure_dense(left, right, same, per)


def _empty() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    return np.zeros(slots.SUMS * LANES), np.zeros(slots.COUNTS, np.int64)


def _dense_pair(reference: Dense, candidate: Dense) -> tuple[NDArray[Any], NDArray[Any], int, bool]:
    """Both sides as flat bits of one kind, BF16 or FP32, the shift that widens them, and whether they had one dtype."""
    left: NDArray[Any]
    right: NDArray[Any]
    left, shift = source_words(reference.bits, reference.dtype)
    right, other = source_words(candidate.bits, candidate.dtype)
    _same_size(left.size, right.size)
    if shift != other:
        left = left if shift == 0 else _as_float32(left)
        right = right if other == 0 else _as_float32(right)
        shift = 0
    return left, right, shift, reference.dtype == candidate.dtype


def _as_float32(bits: NDArray[Any]) -> NDArray[Any]:
    return widened(bits, "BF16").view(np.uint32)


def _compare_dense(reference: Dense, candidate: Dense) -> Tally:
    left, right, shift, same = _dense_pair(reference, candidate)
    differences = int(np.count_nonzero(left != right)) if same else None
    lanes, counts = _empty()
    if left.size <= SMALL:
        measure_small(left, right, shift, lanes, counts)
    else:
        from convertkit.checks.kernels_dense import measure_dense

        measure_dense(left, right, shift, lanes, counts)
    return tally_of(left.size, lanes, counts, None, differences)


def measure_small(
    left: NDArray[Any], right: NDArray[Any], shift: int, lanes: NDArray[np.float64], counts: NDArray[np.int64]
) -> None:
    """What ``kernels_dense.measure_dense`` does, to the last bit."""
    sums = lanes.reshape(slots.SUMS, LANES)
    for first in range(0, left.size, slots.CHUNK):
        pair = np.zeros((2, slots.CHUNK), np.uint32)
        for row, bits in zip(pair, (left, right), strict=True):
            some = bits[first : first + slots.CHUNK]
            row[: some.size] = some.astype(np.uint32) << np.uint32(shift)
        values = pair.view(np.float32)
        finite = np.isfinite(values).all(axis=0)
        mine, yours = np.where(finite, values, np.float32(0)).astype(np.float64)
        error = np.abs(mine - yours)
        for lanes_of, part in zip(sums, (mine * mine, yours * yours, error * error), strict=False):
            lanes_of += part[:LANES] + part[LANES:]
        np.maximum(sums[3], np.maximum(error[:LANES], error[LANES:]), out=sums[3])
        counts[slots.NONFINITE] += int(np.count_nonzero(~finite))
        counts[slots.CHANGED] += int(np.count_nonzero(error))


def values_of(side: Side, first: int, count: int, stored: str | None = None) -> NDArray[np.float64]:
    """``count`` float64 values from flat position ``first`` (multiples of 16).

    All are exact, except quotients c*s/G, which are rounded to 53 bits.
    """
    if isinstance(side, Dense):
        bits = flat(side.bits, FORMATS[side.dtype].storage)[first : first + count]
        return widened(bits, side.dtype).astype(np.float64)
    from convertkit.checks.kernels import decode

    codes, scales = flat(side.codes, "u1"), flat(side.scales, "u1")
    values = np.empty(count, np.float64)
    decode(
        codes[first // 2 : (first + count) // 2],
        scales[first // 16 : (first + count) // 16],
        _tables(side, stored).values,
        values,
    )
    return values


def _tables(side: Planes, stored: str | None) -> PlaneTables:
    return plane_tables(side.global_bits, side.sense, stored) if side.tables is None else side.tables


def _size(side: Side) -> int:
    if isinstance(side, Dense):
        return side.bits.size
    _same_size(2 * side.codes.size, 16 * side.scales.size)
    return 2 * side.codes.size


def _compare_values(reference: Side, candidate: Side, stored: str | None) -> Tally:
    """At least one side is planes: both are decoded, a piece that fits the second-level cache at a time."""
    from convertkit.checks.kernels_dense import count_value_blocks, measure_values

    size = _size(reference)
    _same_size(size, _size(candidate))
    lanes, counts = _empty()
    scales = flat(candidate.scales, "u1") if isinstance(candidate, Planes) else None
    for first in range(0, size, PIECE):
        count = min(PIECE, size - first)
        left, right = values_of(reference, first, count), values_of(candidate, first, count, stored)
        measure_values(left, right, lanes, counts)
        if scales is not None and isinstance(candidate, Planes):
            tops = np.abs(_tables(candidate, stored).values[:, 7])
            count_value_blocks(left, right, scales[first // 16 : (first + count) // 16], tops, counts)
    histogram = None if scales is None else np.bincount(scales, minlength=256)
    return tally_of(size, lanes, counts, histogram)


def _same_size(mine: int, yours: int) -> None:
    if mine != yours:
        raise ValueError(f"{mine} elements against {yours}")
