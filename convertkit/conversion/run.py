"""Carrying out a plan: every unit reads its inputs, makes its tensors and writes them where the plan says.

Work goes unit by unit on a thread pool, in the order of the output, so that what reads the written files keeps up.
Inside a unit bytes are made in order, so that a tensor's digest is taken as its bytes are produced; where they land in
the file was planned. Bytes that are copied are read back from the file at once and compared with the source's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from convertkit.checkpoint import TensorRef
from convertkit.conversion.desk import Desk
from convertkit.conversion.outputs import Job, Made, Target, TensorOut, read_and_compare
from convertkit.conversion.plan import Plan, Unit
from convertkit.conversion.survey import STORAGE, Facts
from convertkit.conversion.tiles import byte_chunks, bytes_view, in_parallel, row_tiles
from convertkit.conversion.units import Cast, Copy, Expand, Pack, Relabel, Respell
from convertkit.dialects.spelling import GROUP
from convertkit.dtypes import DTYPES

COPY_BYTES = 1 << 20
"""Bytes that are copied at a time: twice as many fit a core's own cache."""


def execute(
    plan: Plan,
    facts: Facts,
    desk: Desk,
    target: Target,
    workers: int,
    done: Mapping[str, str],
    known: Mapping[str, str] | None = None,
) -> Made:
    """Make every output tensor. ``done`` are tensors (with digests) that a resumed run has already: they are not made
    again, but those that were copied are compared with the source once more. ``known`` are digests of source tensors
    that somebody has taken: where one is copied, it must still have that."""
    starts = {name: start for file in plan.files for name, start in file.header.starts.items()}
    job = Job(plan, facts, desk, target, starts, done, known or {})
    units = [unit for unit in plan.units if _is_copied(unit) or not all(spec.name in done for spec in unit.outputs)]
    files = {file.name: number for number, file in enumerate(plan.files)}
    units.sort(key=lambda unit: min((files[plan.file_of[item.name]], starts[item.name]) for item in unit.outputs))
    desk.progress.stage(plan.verb, sum(_work_bytes(job, unit) for unit in units))
    made = in_parallel(lambda unit: _runner_of(type(unit))(job, unit), units, workers)
    digests = dict(done)
    for part in made:
        digests.update(part)
    return Made(digests, job.differing)


def _is_copied(unit: Unit) -> bool:
    """Whether a unit writes bytes that are there already, so that they can be compared at no other cost."""
    return isinstance(unit, Respell) or unit.promise == "bytes"


def _work_bytes(job: Job, unit: Unit) -> int:
    return sum(job.plan.source.tensors[name].size_bytes for name in unit.inputs)


def _run_copy(job: Job, unit: Copy) -> dict[str, str]:
    out = TensorOut(job, unit.outputs[0], copied=True, known=job.known.get(unit.source.spec.name))
    _copy_into(job, unit.source, out)
    return {out.spec.name: out.close(unit.source.spec.name)}


def _copy_into(job: Job, source: TensorRef, out: TensorOut) -> None:
    desk = job.desk
    for offset, length in byte_chunks(source.size_bytes, COPY_BYTES):
        desk.stop.check()
        out.write(bytes_view(desk.rows("source", source, offset, (length,), "|u1")))
        desk.progress.advance(length)


def _run_relabel(job: Job, unit: Relabel) -> dict[str, str]:
    """The kernel copies the bytes. They are read back for their digests, and for being compared with the source's;
    where a digest is recorded, having it is enough."""
    file, fd = job.plan.file_of[unit.key], job.desk.reader.fd(unit.sources[0].file)
    digests: dict[str, str] = {}
    todo = [row for row in zip(unit.sources, unit.names, unit.recorded, strict=True) if row[1] not in job.done]
    for start, size, name in _stretches(todo):
        job.target.copy_at(file, job.starts[name], fd, start, size)
    for ref, name, recorded in zip(unit.sources, unit.names, unit.recorded, strict=True):
        digests[name], job.differing[name] = _read_back(job, file, name, ref, recorded)
        if name not in job.done:
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


def _read_back(job: Job, file: str, name: str, ref: TensorRef, recorded: str | None) -> tuple[str, int]:
    """SHA-256 of a tensor as it lies in the output, and how many of its bytes are not those of its source."""
    desk, digest, differing = job.desk, hashlib.sha256(), 0
    for offset, length in byte_chunks(ref.size_bytes, COPY_BYTES):
        desk.stop.check()
        written = bytes_view(desk.buffers.take("written", "|u1", (length,)))
        if recorded is None:
            source = bytes_view(desk.rows("source", ref, offset, (length,), "|u1"))
            differing += read_and_compare(job.target, file, job.starts[name] + offset, written, source)
        elif job.target.read_at(file, job.starts[name] + offset, written) != length:
            return "", length
        digest.update(written)
    found = digest.hexdigest()
    return found, differing or int(recorded not in (None, found))


def _run_cast(job: Job, unit: Cast) -> dict[str, str]:
    from convertkit.grids.dense import cast

    desk, ref = job.desk, unit.source
    out = TensorOut(job, unit.outputs[0])
    size = DTYPES[ref.spec.dtype].bits // 8
    for first, last in row_tiles(ref.spec.elements, size):
        desk.stop.check()
        tile = desk.rows("source", ref, first, (last - first,), STORAGE[ref.spec.dtype])
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
    for first, last in row_tiles(rows, row_bytes, desk.tile_bytes):
        desk.stop.check()
        source = desk.rows("source", ref, first, (last - first, width), storage)
        codes_tile = desk.buffers.take("codes", "|u1", (last - first, width // 2))
        scales_tile = desk.buffers.take("scales", "|u1", (last - first, width // GROUP))
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
    row_bytes = packed.in_features * DTYPES[unit.dtype].bits // 8
    for first, last in row_tiles(packed.out_features, row_bytes, desk.tile_bytes):
        desk.stop.check()
        codes = desk.rows("codes", packed.codes, first, (last - first, half), "|u1")
        scales = desk.rows("scales", packed.block_scale, first, (last - first, blocks), "|u1")
        dense = desk.buffers.take("dense", STORAGE[unit.dtype], (last - first, packed.in_features))
        kernels.decode(codes, scales, table, dense)
        out.write(bytes_view(dense))
        desk.progress.advance(codes.nbytes + scales.nbytes)
    return {out.spec.name: out.close()}


def _run_respell(job: Job, unit: Respell) -> dict[str, str]:
    """Copy codes and block scales; scalars keep their bits unless the sense of the scale changes."""
    from convertkit.grids.nvfp4.decode import swap_sense

    packed = unit.packed
    same_sense = packed.spelling.sense == unit.spelling.sense
    outs = [TensorOut(job, spec, copied=number < 2) for number, spec in enumerate(unit.outputs)]
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


def _runner_of(kind: type) -> Callable[[Job, Any], dict[str, str]]:
    """What carries out a kind of unit; modules are imported only where a plan has their units."""
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
