"""Weights that a package expanded by its own steps, where these are not the exact product rounded once.

ModelOpt multiplies twice in FP32 before it rounds. Where its global scale is ``amax / 2688`` and a product lies as
close to the middle between two BF16 numbers as FP32 can tell, the other neighbour may come out: with 4 of the 128
mantissas that the largest BF16 magnitude can have. No global scale gives such values exactly, which the search alone
cannot say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from convertkit.grids.nvfp4.decode import decode_table
from convertkit.grids.nvfp4.devices import SearchKernels
from convertkit.grids.nvfp4.on_grid import MAGNITUDES, build_grid_tables
from convertkit.grids.nvfp4.tables import ARITHMETICS, LARGEST_SCALE, Sense, float_of, global_bits_of
from convertkit.grids.nvfp4.verdict import Verdict

PACKAGES: tuple[tuple[str, str, Sense], ...] = (
    ("ModelOpt", "modelopt", "multiplier"),
    ("compressed-tensors", "compressed-tensors", "divisor"),
)


def name_package(
    verdict: Verdict,
    kernels: SearchKernels,
    sweep: Callable[[], Iterable[NDArray[np.uint16]]],
    counts: NDArray[np.int64],
    hints: Sequence[int],
    sense: Sense,
) -> Verdict:
    """The verdict about a group on no grid, with a better reason if a package's own steps give all its blocks.

    Tried are ``hints`` (bits stored in ``sense``) and the global scales of packers by amax. ``counts`` are those of
    magnitudes [32768] in all tiles.
    """
    if verdict.status == "grid" or not verdict.blocks:
        return verdict
    for title, arithmetic, home in PACKAGES:
        own = [
            global_bits_of(name, "BF16", verdict.amax_bits) for name, row in ARITHMETICS.items() if row.sense == home
        ]
        for bits in dict.fromkeys([*(hints if sense == home else ()), *own]):
            if _holds_all(bits, home, arithmetic, counts) and _fits(kernels, sweep, bits, home, arithmetic):
                plane = "weight_scale_2" if home == "multiplier" else "weight_global_scale"
                why = f"it is what {title}'s own steps expand with {plane} {float(float_of(bits)):.9g}"
                why += ", and these are not all the exact products rounded once; expand that pack with convertkit"
                status = "part" if verdict.status == "several" else verdict.status
                return replace(verdict, status=status, reason=why, found=verdict.found[:1])
    return verdict


def _holds_all(bits: int, sense: Sense, arithmetic: str, counts: NDArray[np.int64]) -> bool:
    image = np.zeros(MAGNITUDES, bool)
    image[decode_table(bits, sense, "BF16", arithmetic)[: LARGEST_SCALE + 1, :8]] = True
    return not counts[~image].any()


def _fits(
    kernels: SearchKernels,
    sweep: Callable[[], Iterable[NDArray[np.uint16]]],
    bits: int,
    sense: Sense,
    arithmetic: str,
) -> bool:
    tables = build_grid_tables(bits, sense, arithmetic=arithmetic)
    return all(on == blocks for on, blocks in (kernels.match(tile, tables) for tile in sweep()))
