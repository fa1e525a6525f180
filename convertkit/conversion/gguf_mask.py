"""A drafter's own embedding of the mask token: llama.cpp reads it as a row of the drafter's own embeddings.

Format facts: llama.cpp 0.5.0-dev ``conversion/qwen.py`` (``generate_extra_tensors`` of DFlash) and
``src/models/dflash.cpp``: embeddings of the drafter's own need a head of its own, so both are taken from the target.
"""

from __future__ import annotations

from dataclasses import dataclass

from convertkit.checkpoint import Checkpoint, TensorRef, TensorSpec
from convertkit.containers.reader import Reader
from convertkit.conversion.outputs import Job, TensorOut
from convertkit.conversion.tiles import byte_chunks, bytes_view

NAME = "token_embd.weight"


@dataclass(frozen=True, slots=True)
class Reembed:
    """Embeddings byte for byte but for one row. ``lender`` is the target, or the source itself if ``own``; ``data``
    are the row's stored bytes."""

    lender: Checkpoint
    lent: TensorRef
    row: int
    data: bytes
    own: bool
    operation = "reembed"
    promise = "elements"

    @property
    def name(self) -> str:
        return NAME

    @property
    def key(self) -> str:
        return NAME

    @property
    def bundle(self) -> str:
        return NAME

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.lent.spec.name,) if self.own else ()

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(NAME, self.lent.spec.dtype, self.lent.spec.shape),)


def run_reembed(job: Job, unit: Reembed) -> dict[str, str]:
    """Copy from the lender, whose files must not change meanwhile, with the row put in its place."""
    desk = job.desk
    out = TensorOut(job, unit.outputs[0])
    first = unit.row * len(unit.data)
    with Reader(unit.lender) as reader:
        for offset, length in byte_chunks(unit.lent.size_bytes):
            desk.stop.check()
            view = bytes_view(desk.buffers.take("source", "|u1", (length,)))
            reader.read_into(unit.lent, offset, view)
            start, end = max(first, offset), min(first + len(unit.data), offset + length)
            if start < end:
                view[start - offset : end - offset] = unit.data[start - first : end - first]
            out.write(view)
            desk.progress.advance(length)
        reader.assert_unchanged()
    return {NAME: out.close()}
