"""Check of expanded weights: every written element against the exact value rounded once and each package's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.checks import slots
from convertkit.checks.arrays import flat
from convertkit.checks.reference import FORMATS, exact_rounded_table, exact_table, package_table, widened

ARITHMETICS = ("exact", "modelopt", "compressed-tensors")


@dataclass(frozen=True, slots=True)
class Differences:
    """Elements whose value differs, and elements that are zero in both and differ in its sign only."""

    values: int = 0
    zero_signs: int = 0

    def __add__(self, other: Differences) -> Differences:
        return Differences(self.values + other.values, self.zero_signs + other.zero_signs)


def _none() -> dict[str, Differences]:
    return {name: Differences() for name in ARITHMETICS}


@dataclass(frozen=True, slots=True)
class ExpandTally:
    """Evidence about a written tile.

    ``differences`` by arithmetic (``exact`` is the real number rounded once). ``negative_zeros`` as written;
    ``minus_zero_codes`` are the codes 8 of the source. ``flushed_blocks`` hold a code other than zero and are
    written as zeros only. ``unrecovered``: elements that do not give back their code when encoded on the recorded
    scales; ``unrecovered_zero_signs``: codes 8 written as +0, so only the sign of a zero is lost.
    """

    elements: int = 0
    differences: dict[str, Differences] = field(default_factory=_none)
    negative_zeros: int = 0
    minus_zero_codes: int = 0
    blocks: int = 0
    flushed_blocks: int = 0
    unrecovered: int = 0
    unrecovered_zero_signs: int = 0

    def differing(self, arithmetic: str = "exact") -> int:
        """Elements whose bits are not those of ``arithmetic``, signs of zeros included."""
        counted = self.differences[arithmetic]
        return counted.values + counted.zero_signs

    def __add__(self, other: ExpandTally) -> ExpandTally:
        return ExpandTally(
            self.elements + other.elements,
            {name: self.differences[name] + other.differences[name] for name in ARITHMETICS},
            self.negative_zeros + other.negative_zeros,
            self.minus_zero_codes + other.minus_zero_codes,
            self.blocks + other.blocks,
            self.flushed_blocks + other.flushed_blocks,
            self.unrecovered + other.unrecovered,
            self.unrecovered_zero_signs + other.unrecovered_zero_signs,
        )


@dataclass(frozen=True, slots=True, eq=False)
class ExpandTables:
    """One arithmetic's ``bits`` [256, 16], and ``units``, ``starts`` [256] and ``careful`` as the kernel takes them."""

    bits: NDArray[Any]
    units: NDArray[np.float64]
    starts: NDArray[np.uint8]
    careful: bool


def table_of(global_bits: int, sense: str, out_dtype: str, arithmetic: str) -> NDArray[Any]:
    """Storage bits [256, 16] that ``arithmetic`` gives."""
    if arithmetic == "exact":
        return exact_rounded_table(global_bits, sense, out_dtype)
    return package_table(global_bits, sense, out_dtype, arithmetic)


@lru_cache(maxsize=256)
def _expand_tables(global_bits: int, sense: str, out_dtype: str, arithmetic: str) -> ExpandTables:
    bits = table_of(global_bits, sense, out_dtype, arithmetic)
    units = np.ascontiguousarray(exact_table(global_bits, sense)[:, 2])
    values = widened(bits, out_dtype).astype(np.float64)
    nonzero = values[:, :8] != 0
    starts = np.where(nonzero.any(axis=1), nonzero.argmax(axis=1), 8).astype(np.uint8)
    return ExpandTables(bits, units, starts, _loses_codes(values, units))


def _loses_codes(values: NDArray[np.float64], units: NDArray[np.float64]) -> bool:
    """Whether some finite positive block scale has an entry that does not give back its code's magnitude."""
    rows = np.flatnonzero(units[:127] > 0)
    if rows.size < 126:
        return True
    with np.errstate(all="ignore"):
        size = np.minimum(np.abs(values[rows] / units[rows, None]), 6.0)
    halves = np.rint(2 * np.minimum(size, 2)) + np.rint(np.clip(size, 2, 4)) + np.rint(np.maximum(size, 4) / 2) - 4
    return bool((halves != np.arange(16) % 8).any())


@lru_cache(maxsize=2)
def _floats_by_bits(dtype: str) -> NDArray[np.float32]:
    return widened(np.arange(65536, dtype=np.uint16), dtype)


def check_expand_tile(
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    global_bits: int,
    sense: str,
    out: NDArray[Any],
    out_dtype: str,
    *,
    arithmetic: str = "exact",
) -> ExpandTally:
    """Check written storage bits ``out`` [rows, in] against ``codes`` [rows, in/2] and ``scales`` [rows, in/16].

    ``arithmetic`` is the one that the output promises; it only decides which comparison is made first, all three
    are counted. ``ValueError`` if the shapes do not fit or the global scale is not positive and finite.
    """
    written = flat(out, FORMATS[out_dtype].storage)
    nibbles, bytes_ = flat(codes, "u1"), flat(scales, "u1")
    if written.size != 2 * nibbles.size or written.size != 16 * bytes_.size:
        raise ValueError(f"{written.size} elements, {nibbles.size} code bytes and {bytes_.size} scales do not fit")
    planes = (global_bits, sense, out_dtype)
    counts = _count(written, nibbles, bytes_, planes, arithmetic)
    differences = {arithmetic: _differences(counts)}
    for other in ARITHMETICS:
        if other not in differences:
            differences[other] = _other_differences(written, nibbles, bytes_, planes, (arithmetic, other), counts)
    return ExpandTally(
        written.size,
        differences,
        int(counts[slots.NEGATIVE_ZEROS]),
        int(counts[slots.MINUS_CODES]),
        bytes_.size,
        int(counts[slots.EMPTIED]),
        int(counts[slots.LOST]),
        int(counts[slots.LOST_ZERO_SIGNS]),
    )


def _differences(counts: NDArray[np.int64]) -> Differences:
    return Differences(int(counts[slots.DIFFERING]), int(counts[slots.ZERO_SIGNS]))


def _count(
    written: NDArray[Any], codes: NDArray[Any], scales: NDArray[Any], planes: tuple[int, str, str], arithmetic: str
) -> NDArray[np.int64]:
    """Run the kernel against one arithmetic's table."""
    from convertkit.checks.kernels_dense import check_expanded

    tables = _expand_tables(*planes, arithmetic)
    floats = written.view(np.float32) if planes[2] == "F32" else _floats_by_bits(planes[2])
    counts = np.zeros(slots.EXPAND_COUNTS, np.int64)
    check_expanded(written, codes, scales, tables.bits, tables.units, tables.starts, floats, tables.careful, counts)
    return counts


def _other_differences(
    written: NDArray[Any],
    codes: NDArray[Any],
    scales: NDArray[Any],
    planes: tuple[int, str, str],
    names: tuple[str, str],
    counts: NDArray[np.int64],
) -> Differences:
    """Differences from a second arithmetic: mostly its table is the same, or differs only in the sign of code 8."""
    first, second = (table_of(*planes, name) for name in names)
    if np.array_equal(first, second):
        return _differences(counts)
    others = np.arange(16) != 8
    clean = not counts[slots.DIFFERING] and not counts[slots.ZERO_SIGNS]
    if clean and np.array_equal(first[:, others], second[:, others]) and not scales[scales & 0x7F == 0x7F].size:
        return Differences(0, int(counts[slots.MINUS_CODES]))
    return _differences(_count(written, codes, scales, planes, names[1]))
