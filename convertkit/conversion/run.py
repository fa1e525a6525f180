"""Carrying out a plan: every unit reads its inputs, makes its tensors and writes them where the plan says.

Work goes unit by unit on a thread pool, largest first. Inside a unit bytes are made in order, so that a
tensor's digest is taken as its bytes are produced; where they land in the file was planned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from convertkit.checkpoint import TensorRef, TensorSpec
from convertkit.conversion.plan import Plan, Unit
from convertkit.conversion.survey import STORAGE, Desk, Facts
from convertkit.conversion.tiles import byte_chunks, bytes_view, in_parallel, row_tiles
from convertkit.conversion.units import Cast, Copy, Expand, Pack, Relabel, Respell
from convertkit.dialects.spelling import GROUP
from convertkit.dtypes import DTYPES
from convertkit.errors import refusal


class Target(Protocol):
    """Where bytes go: the part of the sink that units use."""

    def write_at(self, file: str, offset: int, data: memoryview) -> None: ...

    def copy_at(self, file: str, offset: int, source: int, source_offset: int, size_bytes: int) -> None: ...

    def tensor_done(self, name: str, sha256: str, sources: Mapping[str, str] | None = None) -> None: ...


@dataclass(frozen=True)
class Job:
    """One run: its plan, facts, desk and target, where each output tensor starts in its file, the digests of tensors
    that an interrupted run has made already, and those of source tensors that somebody has taken."""

    plan: Plan
    facts: Facts
    desk: Desk
    target: Target
    starts: Mapping[str, int]
    done: Mapping[str, str]
    known: Mapping[str, str] = field(default_factory=dict)


class TensorOut:
    """Writes one output tensor from its first byte to its last and takes its digest on the way.

    A tensor that an interrupted run made already, but not the others of its unit, is made again and not written:
    it must come out the same. ``known`` is the digest of the source tensor that is copied: it is not taken again, and
    the written bytes must have it.
    """

    def __init__(self, job: Job, spec: TensorSpec, known: str | None = None) -> None:
        self.spec = spec
        self._known = known
        self._job = job
        self._file = job.plan.file_of[spec.name]
        self._position = job.starts[spec.name]
        self._digest = hashlib.sha256()
        self._kept = job.done.get(spec.name)

    def write(self, data: memoryview) -> None:
        if self._kept is None:
            self._job.target.write_at(self._file, self._position, data)
        if self._known is None:
            self._digest.update(data)
        self._position += len(data)

    def close(self, copied_from: str | None = None) -> str:
        """Tell the target that the tensor is complete; its SHA-256, which is also that of ``copied_from``."""
        written = self._position - self._job.starts[self.spec.name]
        if written != self.spec.size_bytes:
            raise RuntimeError(f"{self.spec.name}: {written} bytes made, {self.spec.size_bytes} planned")
        digest = self._known or self._digest.hexdigest()
        if self._kept not in (None, digest):
            raise refusal("E_RESUME", "the interrupted run made another tensor of this name: the source has changed",
                          tensor=self.spec.name, fix="run again without --resume")  # fmt: skip
        if self._kept is None:
            self._job.target.tensor_done(self.spec.name, digest, None if copied_from is None else {copied_from: digest})
        return digest


def execute(
    plan: Plan,
    facts: Facts,
    desk: Desk,
    target: Target,
    workers: int,
    done: Mapping[str, str],
    known: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Make every output tensor; SHA-256 by name. ``done`` are tensors (with digests) that a resumed run has already,
    ``known`` digests of source tensors, which are then not taken again where a tensor is copied."""
    starts = {name: start for file in plan.files for name, start in file.header.starts.items()}
    job = Job(plan, facts, desk, target, starts, done, known or {})
    units = [unit for unit in plan.units if not all(spec.name in done for spec in unit.outputs)]
    units.sort(key=lambda unit: -_work_bytes(job, unit))
    desk.progress.stage(plan.verb, sum(_work_bytes(job, unit) for unit in units))
    made = in_parallel(lambda unit: runner_of(type(unit))(job, unit), units, workers)
    digests = dict(done)
    for part in made:
        digests.update(part)
    return digests


def _work_bytes(job: Job, unit: Unit) -> int:
    return sum(job.plan.source.tensors[name].size_bytes for name in unit.inputs)


def _run_copy(job: Job, unit: Copy) -> dict[str, str]:
    out = TensorOut(job, unit.outputs[0], job.known.get(unit.source.spec.name))
    _copy_into(job, unit.source, out)
    return {out.spec.name: out.close(unit.source.spec.name)}


def _copy_into(job: Job, source: TensorRef, out: TensorOut) -> None:
    desk = job.desk
    for offset, length in byte_chunks(source.size_bytes):
        desk.stop.check()
        view = bytes_view(desk.buffers.take("source", "|u1", (length,)))
        desk.reader.read_into(source, offset, view)
        out.write(view)
        desk.progress.advance(length)


def _run_relabel(job: Job, unit: Relabel) -> dict[str, str]:
    """The kernel copies the bytes; they are read only for the digests that nobody has recorded."""
    file, fd = job.plan.file_of[unit.key], job.desk.reader.fd(unit.sources[0].file)
    digests: dict[str, str] = {}
    todo = [row for row in zip(unit.sources, unit.names, unit.recorded, strict=True) if row[1] not in job.done]
    for start, size, name in _stretches(todo):
        job.target.copy_at(file, job.starts[name], fd, start, size)
    for ref, name, recorded in todo:
        digests[name] = recorded or _source_digest(job, ref)
        job.target.tensor_done(name, digests[name])
        job.desk.progress.advance(ref.size_bytes)
    return digests


def _stretches(rows: Iterable[tuple[TensorRef, str, str | None]]) -> Iterator[tuple[int, int, str]]:
    """Neighbouring tensors as (first byte in the source, size in bytes, name of the first)."""
    start, size, first = 0, 0, ""
    for ref, name, _ in rows:
        if first and ref.start == start + size:
            size += ref.size_bytes
            continue
        if size:
            yield start, size, first
        start, size, first = ref.start, ref.size_bytes, name
    if size:
        yield start, size, first


def _source_digest(job: Job, ref: TensorRef) -> str:
    digest = hashlib.sha256()
    for offset, length in byte_chunks(ref.size_bytes):
        job.desk.stop.check()
        view = bytes_view(job.desk.buffers.take("source", "|u1", (length,)))
        job.desk.reader.read_into(ref, offset, view)
        digest.update(view)
    return digest.hexdigest()


def _run_cast(job: Job, unit: Cast) -> dict[str, str]:
    from convertkit.grids.dense import cast

    desk, ref = job.desk, unit.source
    out = TensorOut(job, unit.outputs[0])
    size = DTYPES[ref.spec.dtype].bits // 8
    for first, last in row_tiles(ref.spec.elements, size):
        desk.stop.check()
        tile = desk.buffers.take("source", STORAGE[ref.spec.dtype], (last - first,))
        desk.reader.read_into(ref, first * size, bytes_view(tile))
        out.write(bytes_view(np.ascontiguousarray(cast(tile, ref.spec.dtype, unit.dtype))))
        desk.progress.advance(tile.nbytes)
    return {out.spec.name: out.close()}


def _run_pack(job: Job, unit: Pack) -> dict[str, str]:
    """Encode each linear of a group by the group's encoder."""
    from convertkit.conversion.encoders import encoder_of

    encoder = encoder_of(job.facts, unit, job.desk.device)
    specs = iter(unit.outputs)
    digests: dict[str, str] = {}
    for ref in unit.sources:
        codes, scales, scalar = (TensorOut(job, next(specs)) for _ in range(3))
        _encode_rows(job, ref, encoder.encode, codes, scales)
        scalar.write(memoryview(encoder.stored_bits.to_bytes(4, "little")))
        digests.update((out.spec.name, out.close()) for out in (codes, scales, scalar))
    return digests


def _encode_rows(job: Job, ref: TensorRef, encode: Callable[..., None], codes: TensorOut, scales: TensorOut) -> None:
    desk = job.desk
    rows, width = ref.spec.shape
    storage = STORAGE[ref.spec.dtype]
    row_bytes = width * np.dtype(storage).itemsize
    for first, last in row_tiles(rows, row_bytes):
        desk.stop.check()
        source = desk.buffers.take("source", storage, (last - first, width))
        codes_tile = desk.buffers.take("codes", "|u1", (last - first, width // 2))
        scales_tile = desk.buffers.take("scales", "|u1", (last - first, width // GROUP))
        desk.reader.read_into(ref, first * row_bytes, bytes_view(source))
        encode(source, codes_tile, scales_tile)
        codes.write(bytes_view(codes_tile))
        scales.write(bytes_view(scales_tile))
        desk.progress.advance(source.nbytes)


def _run_expand(job: Job, unit: Expand) -> dict[str, str]:
    from convertkit.grids.nvfp4.decode import decode_table
    from convertkit.grids.nvfp4.devices import kernels_of

    desk, packed = job.desk, unit.packed
    kernels = kernels_of(desk.device)
    bits = job.facts.global_bits[packed.module]
    table = kernels.prepare(decode_table(bits, packed.spelling.sense, unit.dtype, unit.arithmetic))
    out = TensorOut(job, unit.outputs[0])
    half, blocks = packed.in_features // 2, packed.in_features // GROUP
    for first, last in row_tiles(packed.out_features, packed.in_features * DTYPES[unit.dtype].bits // 8):
        desk.stop.check()
        codes = desk.buffers.take("codes", "|u1", (last - first, half))
        scales = desk.buffers.take("scales", "|u1", (last - first, blocks))
        dense = desk.buffers.take("dense", STORAGE[unit.dtype], (last - first, packed.in_features))
        desk.reader.read_into(packed.codes, first * half, bytes_view(codes))
        desk.reader.read_into(packed.block_scale, first * blocks, bytes_view(scales))
        kernels.decode(codes, scales, table, dense)
        out.write(bytes_view(dense))
        desk.progress.advance(codes.nbytes + scales.nbytes)
    return {out.spec.name: out.close()}


def _run_respell(job: Job, unit: Respell) -> dict[str, str]:
    """Copy codes and block scales; scalars keep their bits unless the sense of the scale changes."""
    from convertkit.grids.nvfp4.decode import swap_sense

    packed = unit.packed
    same_sense = packed.spelling.sense == unit.spelling.sense
    outs = [TensorOut(job, spec) for spec in unit.outputs]
    _copy_into(job, packed.codes, outs[0])
    _copy_into(job, packed.block_scale, outs[1])
    scalars = [job.facts.global_bits[packed.module]]
    if packed.input_scale is not None:
        scalars.append(job.facts.input_bits[packed.module])
    for out, bits in zip(outs[2:], scalars, strict=True):
        stored = bits if same_sense else swap_sense(bits)[0]
        out.write(memoryview(stored.to_bytes(4, "little")))
    return {out.spec.name: out.close() for out in outs}


RUNNERS: Mapping[type, Callable[[Job, Any], dict[str, str]]] = {
    Copy: _run_copy,
    Relabel: _run_relabel,
    Cast: _run_cast,
    Pack: _run_pack,
    Expand: _run_expand,
    Respell: _run_respell,
}
"""What carries out each kind of unit; those of GGUF files are in ``gguf_run``, those of
drafters in ``drafter_run``."""


def runner_of(kind: type) -> Callable[[Job, Any], dict[str, str]]:
    if kind in RUNNERS:
        return RUNNERS[kind]
    from convertkit.conversion.drafter_run import DRAFTER_RUNNERS

    if kind in DRAFTER_RUNNERS:
        return DRAFTER_RUNNERS[kind]
    from convertkit.conversion.surgery_run import SURGERY_RUNNERS

    if kind in SURGERY_RUNNERS:
        return SURGERY_RUNNERS[kind]
    from convertkit.conversion.gguf_run import GGUF_RUNNERS

    return GGUF_RUNNERS[kind]
