"""Compare any two spellings of the same weight: dense or planes, on either side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.checks import kernels
from convertkit.checks.arrays import flat, source_words, tally_of
from convertkit.checks.fidelity import Tally
from convertkit.checks.kernels_dense import measure_dense, measure_values
from convertkit.checks.pack import measure_tile
from convertkit.checks.reference import FORMATS, narrowed, plane_tables, widened
from convertkit.checks.tiles import LANES


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """Storage bits of a tile and their dtype: BF16, F16 or F32."""

    bits: NDArray[Any]
    dtype: str


@dataclass(frozen=True, slots=True, eq=False)
class Planes:
    """A tile of planes: ``codes`` uint8 [rows, in/2], ``scales`` uint8 [rows, in/16], the recorded global scale."""

    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    global_bits: int
    sense: str


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
            candidate.sense, stored,
        )[1]  # fmt: skip
    if isinstance(reference, Dense) and isinstance(candidate, Dense):
        return _compare_dense(reference, candidate)
    return _compare_values(reference, candidate, stored)


def _empty() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    return np.zeros(kernels.SUMS * LANES), np.zeros(kernels.COUNTS, np.int64)


def _compare_dense(reference: Dense, candidate: Dense) -> Tally:
    left, shift = source_words(reference.bits, reference.dtype)
    right, other = source_words(candidate.bits, candidate.dtype)
    _same_size(left.size, right.size)
    differences = int(np.count_nonzero(left != right)) if reference.dtype == candidate.dtype else None
    if shift != other:
        left = left if shift == 0 else widened(left, "BF16").view(np.uint32)
        right = right if other == 0 else widened(right, "BF16").view(np.uint32)
        shift = 0
    lanes, counts = _empty()
    measure_dense(left, right, shift, lanes, counts)
    return tally_of(left.size, lanes, counts, None, differences)


def values_of(side: Side, stored: str | None = None) -> NDArray[np.float64]:
    """Flat float64 values of a tile; every one of them is exact except quotients c*s/G, rounded to 53 bits."""
    if isinstance(side, Dense):
        return widened(flat(side.bits, FORMATS[side.dtype].storage), side.dtype).astype(np.float64)
    codes, scales = flat(side.codes, "u1"), flat(side.scales, "u1")
    _same_size(2 * codes.size, 16 * scales.size)
    values = np.empty(2 * codes.size, np.float64)
    kernels.decode(codes, scales, plane_tables(side.global_bits, side.sense, stored).values, values)
    return values


def _compare_values(reference: Side, candidate: Side, stored: str | None) -> Tally:
    left, right = values_of(reference), values_of(candidate, stored)
    _same_size(left.size, right.size)
    lanes, counts = _empty()
    measure_values(left, right, lanes, counts)
    if isinstance(candidate, Dense):
        return tally_of(left.size, lanes, counts)
    scales = flat(candidate.scales, "u1")
    tops = np.abs(plane_tables(candidate.global_bits, candidate.sense, stored).values[:, 7])
    blocks = left.reshape(-1, 16)
    counts[kernels.SATURATED] = np.count_nonzero(np.abs(blocks) > tops[scales][:, None])
    nonzero, kept = (blocks != 0).any(axis=1), (right.reshape(-1, 16) != 0).any(axis=1)
    counts[kernels.FLUSHED] = np.count_nonzero(nonzero & ~kept)
    return tally_of(left.size, lanes, counts, np.bincount(scales, minlength=256))


def _same_size(mine: int, yours: int) -> None:
    if mine != yours:
        raise ValueError(f"{mine} elements against {yours}")
