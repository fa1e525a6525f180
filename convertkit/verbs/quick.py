"""A new output at the speed of the filesystem: payloads are copied or shared by the kernel and not read by us.

The digests of the weight files stay pending; those of tensors are taken over from the source's manifest if it has
them. ``convertkit manifest`` takes the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from convertkit.containers.folder import open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.conversion.place import check_place, check_space
from convertkit.conversion.plan import Plan
from convertkit.conversion.publish import carry_over, publish
from convertkit.conversion.renaming import Rename
from convertkit.conversion.side_files import copy_side_file, side_bytes
from convertkit.conversion.sink import Sink, open_sink
from convertkit.conversion.staging import Staging, open_staging, write_small
from convertkit.conversion.stop import Stop, stop_on_signals
from convertkit.conversion.units import Relabel
from convertkit.errors import ConvertError, finding
from convertkit.release.recorded import Recorded
from convertkit.verbs.case import Options, Result
from convertkit.verbs.manifest import manifest


def carry_quickly(plan: Plan, out: Path, change: Rename, known: Recorded, options: Options) -> Result:
    """Carry out a plan of ``Relabel`` units without hashing. Raises as ``line.carry_out``.

    Nothing of an interrupted run is kept, since nothing is known of half a file that nobody read: with
    ``options.resume`` it begins at the start like any other.
    """
    place = check_place(out, plan.source.paths, force=options.force)
    check_space(place, plan.output_bytes + side_bytes(plan.source.root, plan.side_files))
    with stop_on_signals() as stop, Reader(plan.source) as reader:
        with open_staging(place, plan.fingerprint, resume=False, keep=False) as staging:
            with open_sink(staging, plan.files, stop) as sink:
                _copy(plan, reader, sink, options)
                sink.finish()
            _write_small_files(plan, staging, stop)
            reader.assert_unchanged()
            _check(plan, staging)
            carried = carry_over(staging)
            listed = _manifest(plan, change, known, staging)
            published = publish(staging, stop)
    options.progress.done()
    findings = (*plan.findings, *staging.findings, *published.findings)
    return Result(published.out, plan, 0, findings, {}, listed, carried.carried)


def _copy(plan: Plan, reader: Reader, sink: Sink, options: Options) -> None:
    """Each weight file's payload is one stretch, in the source and in the output."""
    starts = {file.name: file.data_start for file in plan.source.files}
    options.progress.stage(plan.verb, plan.source.weight_bytes)
    try:
        for file in plan.files:
            start, size = len(file.header.prefix), file.header.size_bytes - len(file.header.prefix)
            sink.copy_at(file.name, start, reader.fd(file.name), starts[file.name], size)
            options.progress.advance(size)
        for unit in plan.units:
            assert isinstance(unit, Relabel)
            for name, digest in zip(unit.names, unit.recorded, strict=True):
                sink.tensor_done(name, digest or "")
    except ConvertError as error:
        sink.abort(error)
        raise


def _write_small_files(plan: Plan, staging: Staging, stop: Stop) -> None:
    for name, data in plan.documents.items():
        write_small(staging, name, data)
    for name in plan.side_files:
        copy_side_file(plan.source.root, name, staging, stop)


def _check(plan: Plan, staging: Staging) -> None:
    """The staged headers say what was planned; the places of tensors were planned with them."""
    found = {name: ref.spec for name, ref in open_checkpoint(staging.files).tensors.items()}
    if found != plan.outputs:
        raise ConvertError([finding("E_PROMISE", "error", "the written headers are not as planned")])


def _manifest(plan: Plan, change: Rename, known: Recorded, staging: Staging) -> dict[str, Any]:
    """Tensor digests as recorded, file digests pending; the lineage is that of the source where it is known."""
    tensors = {change.renaming.new_name(name): digest for name, digest in known.tensors.items()}
    plan_note = {"verb": plan.verb, "fingerprint": plan.fingerprint, "parameters": dict(plan.parameters)}
    return manifest(
        staging.files,
        pending=[file.name for file in plan.files],
        tensors=tensors,
        lineage={"plan": plan_note},
    )
