"""Carrying out rearrangements and folds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from convertkit.conversion.outputs import Job, TensorOut
from convertkit.conversion.surgery_units import Fold, Rearrange, Swap, row_elements
from convertkit.conversion.tiles import byte_chunks, bytes_view
from convertkit.dtypes import size_bytes


def _run_rearrange(job: Job, unit: Rearrange) -> dict[str, str]:
    """Pieces are runs of bytes of their tensors, since they are whole rows."""
    desk, out = job.desk, TensorOut(job, unit.spec)
    for piece in unit.pieces:
        row_bytes = size_bytes(unit.spec.dtype, (row_elements(piece.source.spec.shape),))
        for offset, length in byte_chunks(piece.count * row_bytes):
            desk.stop.check()
            out.write(bytes_view(desk.rows("source", piece.source, piece.first * row_bytes + offset, (length,), "|u1")))
            desk.progress.advance(length)
    return {unit.spec.name: out.close()}


def _run_fold(job: Job, unit: Fold) -> dict[str, str]:
    """Every block scale by the unit's table, and the shared global scale."""
    desk = job.desk
    scales, scalar = (TensorOut(job, spec) for spec in unit.outputs)
    table = np.frombuffer(unit.table, np.uint8)
    for offset, length in byte_chunks(unit.packed.block_scale.size_bytes):
        desk.stop.check()
        tile = desk.rows("scales", unit.packed.block_scale, offset, (length,), "|u1")
        scales.write(bytes_view(table[tile]))
        desk.progress.advance(length)
    scalar.write(memoryview(unit.global_bits.to_bytes(4, "little")))
    return {out.spec.name: out.close() for out in (scales, scalar)}


def _run_swap(job: Job, unit: Swap) -> dict[str, str]:
    """Every byte of codes with its halves exchanged."""
    desk, out = job.desk, TensorOut(job, unit.source.spec)
    for offset, length in byte_chunks(unit.source.size_bytes):
        desk.stop.check()
        tile = desk.rows("codes", unit.source, offset, (length,), "|u1")
        out.write(bytes_view(tile >> 4 | tile << 4))
        desk.progress.advance(length)
    return {out.spec.name: out.close()}


SURGERY_RUNNERS: Mapping[type, Callable[[Job, Any], dict[str, str]]] = {
    Rearrange: _run_rearrange,
    Fold: _run_fold,
    Swap: _run_swap,
}
