"""Search the NVFP4 grid of a fused group of stored BF16 tensors: what ``survey`` does before lossless packing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.checkpoint import TensorRef
from convertkit.conversion.desk import Desk
from convertkit.conversion.tiles import row_tiles
from convertkit.dialects.spelling import GROUP
from convertkit.errors import Finding, finding
from convertkit.grids.nvfp4.verdict import Found, Verdict

MAX_BLOCKS = 20
"""Off-grid blocks of one tensor that are named."""
DIVISOR_ZERO_BYTE, MULTIPLIER_ZERO_BYTE = 0x20, 0x38
"""Block scale of a block of zeros, as llm-compressor and ModelOpt write it."""


@dataclass(frozen=True, slots=True)
class Where:
    """Where the grids of a group lie in one tensor.

    ``on`` of its ``blocks`` lie on the first grid; ``off`` are the first others as (row, block in the row). ``rows``
    are, for each grid that was found, the first and the last row with a block that lies on it and on no other, or
    None.
    """

    tensor: str
    blocks: int
    on: int
    off: tuple[tuple[int, int], ...] = ()
    rows: tuple[tuple[int, int] | None, ...] = ()


@dataclass(frozen=True, slots=True)
class GridFact:
    """What is known about the grid of one group. ``status`` and ``reason`` as in ``Verdict``; ``found`` are
    its grids, their scales as they would be stored. ``where`` is given unless it lies wholly on one grid or on none."""

    status: str
    reason: str
    amax_bits: int
    found: tuple[Found, ...] = ()
    blocks: int = 0
    where: tuple[Where, ...] = ()


def zero_byte_of(sense: str) -> int:
    """Block scale for zeros in the dialects that store this sense."""
    return DIVISOR_ZERO_BYTE if sense == "divisor" else MULTIPLIER_ZERO_BYTE


def search_grid(
    desk: Desk,
    refs: Sequence[TensorRef],
    sense: str,
    hints: Sequence[int],
    *,
    thorough: bool,
    least_scale: int = 1,
    reversible: bool = False,
    measure: bool = True,
) -> GridFact:
    """The grid of BF16 matrices [out, in] that share a global scale, streamed in row tiles.

    ``sense`` is how the scale will be stored, ``hints`` are stored bits in that sense. Without ``thorough`` ordinary
    weights are given up after one tile; without ``measure`` the rest of them is not even read for ``amax_bits``.
    """
    from convertkit.grids.nvfp4.recover import find_grid

    def sweep() -> Iterator[NDArray[np.uint16]]:
        for ref in refs:
            for _, tile in _tiles(desk, ref):
                yield tile

    verdict = find_grid(
        sweep,
        sense="divisor" if sense == "divisor" else "multiplier",
        hints=hints,
        thorough=thorough,
        least_scale=least_scale,
        reversible=reversible,
        measure=measure,
        device=desk.device,
    )
    where: tuple[Where, ...] = ()
    if verdict.status in ("part", "several"):
        where = tuple(_where(desk, ref, verdict) for ref in refs)
    return GridFact(verdict.status, verdict.reason, verdict.amax_bits, verdict.found, verdict.blocks, where)


def _tiles(desk: Desk, ref: TensorRef) -> Iterator[tuple[int, NDArray[np.uint16]]]:
    """(first row, rows of BF16 bits); the next tile takes the place of the one before."""
    rows, width = ref.spec.shape
    for first, last in row_tiles(rows, width * 2):
        desk.stop.check()
        yield first, desk.rows("source", ref, first, (last - first, width), "<u2")


def _where(desk: Desk, ref: TensorRef, verdict: Verdict) -> Where:
    from convertkit.grids.nvfp4.devices import search_kernels_of
    from convertkit.grids.nvfp4.on_grid import build_grid_tables

    scales_of_tile = search_kernels_of(desk.device).scales_of
    grids = [build_grid_tables(found.global_bits, found.sense) for found in verdict.found]
    spans: list[tuple[int, int] | None] = [None] * len(grids)
    off: list[tuple[int, int]] = []
    on = 0
    for first, tile in _tiles(desk, ref):
        masks = [scales_of_tile(tile, grid) != 0 for grid in grids]
        on += int(np.count_nonzero(masks[0]))
        off += [(first + int(row), int(block)) for row, block in np.argwhere(~masks[0])[: MAX_BLOCKS - len(off)]]
        for number, mask in enumerate(masks):
            alone = mask & ~np.any([other for other in masks if other is not mask], axis=0)
            rows = np.flatnonzero(alone.any(axis=1))
            if rows.size:
                start = spans[number]
                spans[number] = (first + int(rows[0]) if start is None else start[0], first + int(rows[-1]))
    rows_, width = ref.spec.shape
    return Where(ref.spec.name, rows_ * width // GROUP, on, tuple(off), tuple(spans))


def off_grid_finding(refs: Sequence[TensorRef], fact: GridFact) -> Finding:
    """E_OFF_GRID for a group that cannot be packed without loss."""
    more = f" (with {', '.join(ref.spec.name for ref in refs[1:])})" if len(refs) > 1 else ""
    return finding(
        "E_OFF_GRID",
        "error",
        f"the weight{more} does not lie on one NVFP4 grid: {fact.reason}",
        file=refs[0].file,
        tensor=refs[0].spec.name,
        fix="leave it out with --exclude, pack with --scales auto, or accept its loss with --allow-loss",
        data=grid_data(fact),
    )


def grid_data(fact: GridFact) -> dict[str, Any]:
    """A fact as JSON values."""
    from convertkit.grids.nvfp4.numbers import float_of

    return {
        "status": fact.status,
        "reason": fact.reason,
        "blocks": fact.blocks,
        "grids": [
            {
                "bits": f"0x{found.global_bits:08x}",
                "value": float(float_of(found.global_bits)),
                "sense": found.sense,
                "blocks": found.blocks,
                "arithmetic": found.arithmetic,
            }
            for found in fact.found
        ],
        "tensors": [
            {
                "name": item.tensor,
                "blocks": item.blocks,
                "on_grid": item.on,
                "off_grid": [list(place) for place in item.off],
                "rows": [None if span is None else list(span) for span in item.rows],
            }
            for item in fact.where
        ],
    }
