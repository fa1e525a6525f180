"""Weights that a package expanded by its own steps, where these are not the exact product rounded once.

ModelOpt multiplies twice in FP32 before it rounds. Where its global scale is ``amax / 2688`` and a product lies as
close to the middle between two BF16 numbers as FP32 can tell, the other neighbour may come out: with 4 of the 128
mantissas that the largest BF16 magnitude can have. No global scale gives such values exactly, but the package's own
steps do, under the global scale that it packed with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from convertkit.grids.nvfp4.arithmetics import ARITHMETICS
from convertkit.grids.nvfp4.devices import SearchKernels
from convertkit.grids.nvfp4.numbers import Sense, float_of, swap_sense
from convertkit.grids.nvfp4.on_grid import GridTables, build_grid_tables, holds_all
from convertkit.grids.nvfp4.tables import global_bits_of
from convertkit.grids.nvfp4.verdict import Found, Verdict

NEGATIVE_ZERO = 0x8000

PACKAGES: tuple[tuple[str, str, Sense], ...] = (
    ("ModelOpt", "modelopt", "multiplier"),
    ("compressed-tensors", "compressed-tensors", "divisor"),
)


def by_package(
    verdict: Verdict,
    kernels: SearchKernels,
    sweep: Callable[[], Iterable[NDArray[np.uint16]]],
    counts: NDArray[np.int64],
    hints: Sequence[int],
    sense: Sense,
    least_scale: int = 1,
    reversible: bool = False,
) -> Verdict:
    """The verdict about a group on no grid of exact products: the grid of a package's own steps, if all blocks lie on
    one that is stored in ``sense``, or a better reason, if they lie on one of the other sense.

    Tried are ``hints`` (bits stored in ``sense``) and the global scales of packers by amax. ``counts`` are those of
    magnitudes [32768] in all tiles; ``least_scale`` and ``reversible`` as in ``find_grid``.
    """
    if verdict.status == "grid" or not verdict.blocks:
        return verdict
    for title, arithmetic, home in PACKAGES:
        for bits in dict.fromkeys([*(hints if sense == home else ()), *_by_amax(verdict.amax_bits, home)]):
            if reversible and not swap_sense(bits)[1]:
                continue
            if not holds_all(counts, bits, home, arithmetic):
                continue
            tables = build_grid_tables(bits, home, least_scale=least_scale, arithmetic=arithmetic)
            if _fits(kernels, sweep, tables, arithmetic):
                if home == sense:
                    found = Found(bits, home, verdict.blocks, arithmetic)
                    return Verdict("grid", verdict.amax_bits, "", verdict.blocks, (found,))
                plane = "weight_scale_2" if home == "multiplier" else "weight_global_scale"
                why = f"it is what {title}'s own steps expand with {plane} {float(float_of(bits)):.9g}"
                why += f"; a dialect of {title} can hold it"
                status = "part" if verdict.status == "several" else verdict.status
                return replace(verdict, status=status, reason=why, found=verdict.found[:1])
    return verdict


def _by_amax(amax_bits: int, sense: Sense) -> list[int]:
    """Global scales of the packers by amax as they are stored in a sense."""
    made = [(row.sense, global_bits_of(name, "BF16", amax_bits)) for name, row in ARITHMETICS.items()]
    return [bits if home == sense else swap_sense(bits)[0] for home, bits in made]


def _fits(
    kernels: SearchKernels, sweep: Callable[[], Iterable[NDArray[np.uint16]]], tables: GridTables, arithmetic: str
) -> bool:
    signed = arithmetic != "modelopt"  # whose steps expand no code to -0
    return all(
        on == blocks and (signed or not (tile == NEGATIVE_ZERO).any())
        for tile in sweep()
        for on, blocks in (kernels.match(tile, tables),)
    )
