"""Carries out the units of ``drafter_units``. Vocabulary maps are small and read whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from convertkit.containers.reader import Reader
from convertkit.conversion.drafter_units import Borrow, Mask, Offsets
from convertkit.conversion.outputs import Job, TensorOut
from convertkit.conversion.tiles import byte_chunks, bytes_view


def _run_borrow(job: Job, unit: Borrow) -> dict[str, str]:
    """Copy from the lender, whose files must not change meanwhile."""
    desk = job.desk
    out = TensorOut(job, unit.outputs[0], copied=True)
    with Reader(unit.lender) as reader:
        for offset, length in byte_chunks(unit.lent.size_bytes):
            desk.stop.check()
            view = bytes_view(desk.buffers.take("source", "|u1", (length,)))
            reader.read_into(unit.lent, offset, view)
            out.write(view)
            desk.progress.advance(length)
        reader.assert_unchanged()
    return {out.spec.name: out.close()}


def shifted(reader: Reader, unit: Offsets) -> npt.NDArray[Any]:
    """Absolute ids less their index, or offsets and their index."""
    stored: npt.NDArray[Any] = reader.array(unit.source.spec.name)
    places = np.arange(stored.size)
    wide = stored.astype(np.int64)
    return (wide + places if unit.back else wide - places).astype(stored.dtype)


def masked(reader: Reader, unit: Mask) -> npt.NDArray[np.uint8]:
    """True at every target id that the draft vocabulary has."""
    ids = reader.array(unit.source.spec.name).astype(np.int64)
    mask = np.zeros(unit.vocabulary, np.uint8)
    mask[ids + np.arange(ids.size) if unit.form == "offsets" else ids] = 1
    return mask


def _run_offsets(job: Job, unit: Offsets) -> dict[str, str]:
    out = TensorOut(job, unit.outputs[0])
    out.write(memoryview(shifted(job.desk.reader, unit).tobytes()))
    job.desk.progress.advance(unit.source.size_bytes)
    return {out.spec.name: out.close()}


def _run_mask(job: Job, unit: Mask) -> dict[str, str]:
    out = TensorOut(job, unit.outputs[0])
    out.write(memoryview(masked(job.desk.reader, unit).tobytes()))
    job.desk.progress.advance(unit.source.size_bytes)
    return {out.spec.name: out.close()}


DRAFTER_RUNNERS: Mapping[type, Callable[[Job, Any], dict[str, str]]] = {
    Borrow: _run_borrow,
    Offsets: _run_offsets,
    Mask: _run_mask,
}
"""What carries out each kind of unit."""
