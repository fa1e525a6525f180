"""Find out whether a BF16 tensor lies on an NVFP4 grid, and encode it without loss if it does.

Such a tensor was trained or decoded as ``code * block scale * global scale``, rounded once, and then stored dense.
Quantizing it again by amax changes values, since neither the global scale nor the block scales can be read off the
largest magnitudes. But the mantissas tell: see ``cells``. So a histogram gives the mantissa of the global scale,
the largest magnitude a few exponents, and every block is then tried against the rows of a table.

Tensors that are on no grid cost the histogram of one tile. Importing this module loads the compiled kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from convertkit.grids.nvfp4.arithmetics import ARITHMETICS
from convertkit.grids.nvfp4.cells import cells
from convertkit.grids.nvfp4.decode import decode_table
from convertkit.grids.nvfp4.devices import SearchKernels, search_kernels_of
from convertkit.grids.nvfp4.near_grid import by_package
from convertkit.grids.nvfp4.numbers import (
    LARGEST_SCALE,
    SMALLEST_GLOBAL,
    Sense,
    bits_of,
    float_of,
    reversible_global,
    swap_sense,
)
from convertkit.grids.nvfp4.on_grid import INFINITY, MAGNITUDES, GridTables, build_grid_tables, holds_all
from convertkit.grids.nvfp4.tables import global_bits_of
from convertkit.grids.nvfp4.verdict import Found, Verdict

Sweep = Callable[[], Iterable[NDArray[np.uint16]]]
"""Gives the same tiles [rows, in] of BF16 bits each time it is called; a tile is not kept when the next is taken."""

LEAST_NORMAL = 0x80
HOPELESS = 0.3
"""Share of mantissas that the best global scale must cover after a tile; ordinary weights have about 0.11."""
MOST_CELLS = 512
"""Cells to try at most. A tensor of more than some thousand values seldom fits more than one, unless it has very few
different values; a small one may fit a thousand of which few are right, and there trying all is cheap."""
SMALL = 1 << 14
PART_CELLS = 6
LEAST_PART = 0.1
"""Share of non-zero blocks below which a tensor is not called partly on a grid."""


def find_grid(
    sweep: Sweep,
    *,
    sense: Sense = "multiplier",
    hints: Sequence[int] = (),
    thorough: bool = False,
    least_scale: int = 1,
    reversible: bool = False,
    measure: bool = True,
    device: str = "cpu",
) -> Verdict:
    """Search the grid of the BF16 tensors that ``sweep`` gives: those of one fused group, which share a global scale.

    ``sense`` is how the global scale will be stored. ``hints`` are stored FP32 bits in that sense and are tried first.
    Without ``thorough`` the search ends if no global scale explains the first tile. Values that are not finite end it
    too. ``amax_bits`` is that of all tiles; without ``measure`` that of the first if the search ends there.
    ``reversible`` takes only scales whose reciprocal inverts back. ``device`` is one of ``DEVICES``.
    """
    kernels = search_kernels_of(device)
    counts, amax = _histogram(kernels, sweep, whole=thorough, measure=measure)
    if amax >= INFINITY:
        return Verdict("none", amax, "it holds NaN or infinity")
    hopeless = _hopeless(counts)
    if hopeless:
        return Verdict("none", amax, hopeless)
    make = partial(_Search, kernels, sweep, sense=sense, least_scale=least_scale, reversible=reversible)
    search = make(counts, amax)
    found = search.whole(hints)
    if found is None and not thorough:
        search = make(*_histogram(kernels, sweep, whole=True))
        found = search.whole(hints)
    if found is None and sense == "divisor":
        other = make(search.counts, amax, sense="multiplier").whole(())
        if other is not None:
            why = "it lies on the grid of a multiplier whose ties no divisor reproduces"
            return Verdict("none", amax, f"{why}; a ModelOpt dialect can hold it", other.blocks)
    return found or by_package(search.part(), kernels, sweep, search.counts, hints, sense, least_scale, reversible)


def _histogram(
    kernels: SearchKernels, sweep: Sweep, *, whole: bool, measure: bool = True
) -> tuple[NDArray[np.int64], int]:
    """Counts by magnitude of the first tile, or of all; and the largest magnitude of all, or without ``measure`` of
    the first if it is hopeless."""
    counts = np.zeros((2, MAGNITUDES), np.int64)
    amax = 0
    for number, tile in enumerate(sweep()):
        amax = max(amax, kernels.amax(tile))
        if whole or not number:
            kernels.count(tile, counts)
        if not number and not measure and _hopeless(counts.sum(axis=0)):
            break
    return counts.sum(axis=0), amax


def _hopeless(counts: NDArray[np.int64]) -> str:
    mantissas = _mantissas(counts)
    total, distinct = int(mantissas.sum()), int(np.count_nonzero(mantissas))
    best = _covered(mantissas)
    if best >= HOPELESS * total:
        return ""
    return f"it has {distinct} distinct mantissas; the best global scale explains {_percent(best, total)} of its values"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %"


def _mantissas(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts of the 128 mantissas of normal magnitudes, but for the least one: a subnormal can round up to it."""
    normal = counts[LEAST_NORMAL:INFINITY].reshape(-1, 128)
    mantissas: NDArray[np.int64] = normal.sum(axis=0)
    mantissas[0] -= normal[0, 0]
    return mantissas


def _covered(mantissas: NDArray[np.int64]) -> int:
    # Sums of integers below 2^53 are exact in any order.
    return int((cells().patterns @ mantissas.astype(np.float64)).max())


class _Search:
    """The histogram of a group and what is tried against it."""

    def __init__(
        self,
        kernels: SearchKernels,
        sweep: Sweep,
        counts: NDArray[np.int64],
        amax: int,
        sense: Sense,
        least_scale: int,
        reversible: bool = False,
    ) -> None:
        self.kernels, self.sweep, self.counts, self.amax = kernels, sweep, counts, amax
        self.sense, self.least_scale, self.reversible = sense, least_scale, reversible
        self.fine = bool(counts[1:LEAST_NORMAL].any())
        self.most = MOST_CELLS if counts.sum() > SMALL else MAGNITUDES

    def whole(self, hints: Sequence[int]) -> Verdict | None:
        """The grid on which every block lies."""
        for bits in self.candidates(hints):
            if self.reversible and not swap_sense(bits)[1]:
                continue
            blocks = self.all_blocks(bits) if holds_all(self.counts, bits, self.sense) else None
            if blocks is not None:
                return Verdict("grid", self.amax, "", blocks, (Found(bits, self.sense, blocks),))
        return None

    def candidates(self, hints: Sequence[int]) -> Iterator[int]:
        """Stored bits of global scales, likeliest first: hints, those of amax packers, then the cells that fit."""
        yield from hints
        for name in ("amax", "amax-llmcompressor"):
            bits, home = global_bits_of(name, "BF16", self.amax), ARITHMETICS[name].sense
            swapped, reversible = swap_sense(bits)
            if home == self.sense or reversible:
                stored = bits if home == self.sense else swapped
                if _agreed(stored, self.sense):
                    yield stored
        if self.amax:
            mantissas = _mantissas(self.counts)
            yield from self._of_cells(mantissas, int(mantissas.sum()), range(5), self.most)

    def _of_cells(self, mantissas: NDArray[np.int64], least: int, steps: range, most: int) -> Iterator[int]:
        """Scales of the cells that cover at least ``least`` values: for each the exponents that fit amax, the
        smallest scale first, because then block scales are largest."""
        table = cells(self.fine)
        scores = (table.patterns @ mantissas.astype(np.float64)).astype(np.int64)
        fit = np.flatnonzero(scores >= least)
        # A power of two first: values that are on its grid are not even rounded. Then the widest.
        order = np.lexsort((-table.widths[fit], -scores[fit], table.scales[fit] != 1))
        for cell in fit[order][:most]:
            top = self.amax if least == mantissas.sum() else self._top(table.patterns[cell])
            for exponent in _exponents(top, float(table.scales[cell]), steps):
                bits = _stored(float(table.scales[cell]), float(table.widths[cell]), exponent, self.sense)
                # Where weights are subnormal the packages' FP32 steps round subnormals too, so they need not agree.
                if bits is not None and (self.fine or _agreed(bits, self.sense)):
                    yield bits

    def _top(self, pattern: NDArray[np.float64]) -> int:
        """Largest magnitude that a cell explains."""
        explained = np.tile(pattern > 0, MAGNITUDES // 128) & (self.counts > 0)
        return int(np.flatnonzero(explained[LEAST_NORMAL:])[-1]) + LEAST_NORMAL

    def all_blocks(self, bits: int) -> int | None:
        """How many non-zero blocks there are if all lie on the grid; None at the first tile with one that does not."""
        tables = build_grid_tables(bits, self.sense, least_scale=self.least_scale)
        nonzero = 0
        for tile in self.sweep():
            on, blocks = self.kernels.match(tile, tables)
            if on != blocks:
                return None
            nonzero += blocks
        return nonzero

    def part(self) -> Verdict:
        """What can be said of a tensor that is not wholly on one grid."""
        mantissas = _mantissas(self.counts)
        total = int(mantissas.sum())
        best = _covered(mantissas)
        why = f"the best global scale explains {_percent(best, total)} of its values" if total else "it is too small"
        if best < HOPELESS * total or not total:
            return Verdict("none", self.amax, why)
        sample = next(iter(self.sweep())).copy()
        scored = [
            (self._count(bits, lambda: (sample,))[0], bits)
            for bits in self._of_cells(mantissas, max(best * 3 // 4, 1), range(-3, 5), PART_CELLS)
        ]
        if not scored:
            return Verdict("none", self.amax, why)
        bits = max(scored, key=lambda item: item[0])[1]
        on, blocks = self._count(bits, self.sweep)
        if on < LEAST_PART * blocks or not on:
            return Verdict("none", self.amax, f"{why}, but {on} of {blocks} blocks fit", blocks)
        first = Found(bits, self.sense, on)
        if on == blocks:
            return Verdict("grid", self.amax, "", blocks, (first,))
        second = self._second(bits, blocks - on)
        if second is not None:
            return Verdict("several", self.amax, "its blocks lie on two grids", blocks, (first, second))
        return Verdict("part", self.amax, f"{on} of {blocks} blocks lie on one grid", blocks, (first,))

    def _count(self, bits: int, sweep: Sweep) -> tuple[int, int]:
        """Non-zero blocks on the grid, and all non-zero blocks."""
        tables = build_grid_tables(bits, self.sense, least_scale=self.least_scale)
        counts = [self.kernels.match(tile, tables) for tile in sweep()]
        return sum(on for on, _ in counts), sum(blocks for _, blocks in counts)

    def _second(self, bits: int, left: int) -> Found | None:
        """The grid of all the blocks that the first one leaves, if there is one."""
        tables = build_grid_tables(bits, self.sense, least_scale=self.least_scale)
        counts = np.zeros((2, MAGNITUDES), np.int64)
        for tile in self.sweep():
            self.kernels.count(tile, counts, self.kernels.scales_of(tile, tables))
        left_over = counts.sum(axis=0)
        largest = int(np.flatnonzero(left_over)[-1])
        rest = _Search(self.kernels, self.sweep, left_over, largest, self.sense, self.least_scale)
        for other in rest.candidates(()):
            if holds_all(rest.counts, other, rest.sense) and self._leaves_none(tables, other):
                return Found(other, self.sense, left)
        return None

    def _leaves_none(self, one: GridTables, other: int) -> bool:
        two = build_grid_tables(other, self.sense, least_scale=self.least_scale)
        scales_of = self.kernels.scales_of
        return all((scales_of(tile, one) | scales_of(tile, two)).all() for tile in self.sweep())


def _exponents(amax: int, mantissa: float, steps: range) -> list[int]:
    """Exponents of a global scale with that mantissa under which ``amax`` may be a value of the grid."""
    largest = float(np.array([amax << 16], np.uint32).view(np.float32)[0])
    # The least scale that reaches amax, with half a unit of rounding to spare; each step halves what is reached.
    # No scale is subnormal.
    lowest = max(int(np.ceil(np.log2(largest / (2688 * mantissa) * (1 - 2.0**-8)))), -126)
    return [exponent for exponent in (lowest + step for step in steps) if -126 <= exponent <= 126]


def _stored(mantissa: float, width: float, exponent: int, sense: Sense) -> int | None:
    """Stored bits of a global scale in that cell which both senses can hold; None if there is none."""
    scale = np.float32(np.ldexp(mantissa, exponent))
    bits = bits_of(scale)
    if width:
        bits = reversible_global(bits)
    swapped, reversible = swap_sense(bits)
    inside = abs(float(float_of(bits)) / 2.0**exponent - mantissa) <= width / 2
    exact = reversible if width else float(float_of(swapped)) * float(scale) == 1
    if not inside or scale < SMALLEST_GLOBAL or (sense == "divisor" and not exact):
        return None
    return bits if sense == "multiplier" else swapped


def _agreed(bits: int, sense: Sense) -> bool:
    """Whether the package that stores this sense expands every entry to the bits of the exact value rounded once."""
    package = "modelopt" if sense == "multiplier" else "compressed-tensors"
    rows = slice(1, LARGEST_SCALE + 1)
    exact, theirs = (decode_table(bits, sense, "BF16", name)[rows, :8] for name in ("exact", package))
    return bool(np.array_equal(exact, theirs))
