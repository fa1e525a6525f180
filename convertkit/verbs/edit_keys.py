"""Renaming in place: what a change of headers and small files consists of, and the proof that it was only that."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from convertkit.checkpoint import Checkpoint, WeightFile
from convertkit.containers.files import open_regular, read_exactly, read_into, read_small
from convertkit.containers.safetensors import Header, encode_ordered, read_header
from convertkit.conversion.edit_journal import Edit, FileEdit, HeaderEdit
from convertkit.conversion.exclusive import locked_above, refuse_shared
from convertkit.conversion.inplace import Moved, carry_out_edit, header_room
from convertkit.conversion.renaming import Rename, renamed_indexes, renamed_specs, tensors_by_file
from convertkit.conversion.stop import Stop, stop_on_signals
from convertkit.conversion.syscalls import BLOCK_BYTES, KERNEL, Syscalls
from convertkit.errors import ConvertError, Finding, finding, shown
from convertkit.layouts.renames import Renaming
from convertkit.progress import Progress
from convertkit.release.above import covering, records_above
from convertkit.release.claims import REPORTS
from convertkit.release.paths import OWN_FILES
from convertkit.release.recorded import Recorded, renamed_records
from convertkit.release.report_files import is_report

CHUNK_BYTES = 1 << 20
MOST_BLOCK_BYTES = 1 << 16


@dataclass(frozen=True)
class Edited:
    """What was done in place. ``moved`` says how each changed header was written; ``payload_sha256`` and
    ``file_sha256`` (of the changed files) are empty unless they were read; ``sizes`` are (old size, new size,
    old start, new start, payload) of every weight file, in bytes."""

    moved: Mapping[str, str]
    sizes: Mapping[str, tuple[int, int, int, int, int]]
    payload_sha256: Mapping[str, str]
    file_sha256: Mapping[str, str]
    findings: tuple[Finding, ...]


def edit_in_place(
    source: Checkpoint,
    change: Rename,
    known: Recorded,
    edit_note: Mapping[str, Any],
    *,
    prove: bool,
    slack_bytes: int,
    progress: Progress,
    syscalls: Syscalls = KERNEL,
) -> Edited:
    """Rename in place. The caller holds the folder's lock and has recovered what earlier runs left. A new header gets
    room for ``slack_bytes`` more.

    ``known`` must be what the folder's manifest records; ``edit_note`` is added to its plan. Raises ``ConvertError``:
    E_NOT_IN_PLACE, E_OUT_LOCKED, E_ST_HEADER_TOO_LARGE, E_NO_SPACE, E_WRITE, E_INTERRUPTED; then nothing has changed.
    """
    root = source.root
    headers = tuple(_header_edits(source, change.renaming, slack_bytes))
    small = dict(_small_edits(source, change))
    refuse_shared(root, [*(header.name for header in headers), *_existing(root, (*small, *OWN_FILES))])
    with stop_on_signals() as stop, ExitStack() as locks:
        above = covering(root, [*(header.name for header in headers), *small])
        for folder in above:
            locks.enter_context(locked_above(folder))
        before = _payload_digests(root, headers, stop, progress) if prove else {}
        stale = [name for name in _stale_reports(root) if headers]
        small.update(dict.fromkeys(stale))
        weights = {
            header.name: (header.size_bytes("new"), before[header.name][1] if prove else "") for header in headers
        }
        records = renamed_records(root, known.manifest, change.renaming, weights, small, edit_note)
        records |= records_above(root, above, change.renaming, weights, small | records)
        refuse_shared(root, _existing(root, list(records)))
        files = tuple(FileEdit(name, _content(root, name), data) for name, data in (small | records).items())
        moved = carry_out_edit(
            root,
            Edit(headers, files),
            stop,
            lambda: _check(source, change.renaming, headers, before, stop, progress),
            syscalls,
        )
    findings = [*_rewritten(moved), *_removed(stale), *_above(root, above, prove)]
    return Edited(
        {item.name: item.method for item in moved},
        {file.name: _sizes(file, headers) for file in source.files},
        {name: digests[0] for name, digests in before.items()},
        {name: digests[1] for name, digests in before.items()},
        tuple(findings),
    )


def _existing(root: Path, names: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if os.path.lexists(root / name)]


def _header_edits(source: Checkpoint, renaming: Renaming, slack_bytes: int) -> Iterator[HeaderEdit]:
    """The new header of every file in which a name changes: metadata and order as they were."""
    block_bytes = os.statvfs(source.root).f_bsize
    if block_bytes > MOST_BLOCK_BYTES:  # a network filesystem states its transfer size
        block_bytes = BLOCK_BYTES
    by_file = tensors_by_file(source)
    for file in source.files:
        refs = by_file[file.name]
        if all(renaming.new_name(ref.spec.name) == ref.spec.name for ref in refs):
            continue
        room = partial(header_room, file, block_bytes, slack_bytes)
        made = encode_ordered(renamed_specs(refs, renaming), file.metadata, room)
        fd = open_regular(source.root, file.name)
        try:
            old = read_exactly(fd, 0, file.data_start, file.name)
        finally:
            os.close(fd)
        yield HeaderEdit(file.name, old, made.prefix, file.size_bytes - file.data_start)


def _small_edits(source: Checkpoint, change: Rename) -> Iterator[tuple[str, bytes | None]]:
    """Config, quantization file and index, where they change."""
    for name, data in change.documents.items():
        if data != _content(source.root, name):
            yield name, data
    if change.renaming.names:
        yield from renamed_indexes(source, change.renaming)


def _content(root: Path, name: str) -> bytes | None:
    path = root / name
    return read_small(path.parent, path.name) if os.path.lexists(path) else None


def _stale_reports(root: Path) -> list[str]:
    """Reports of ours, with their rows: they are about the bytes before. Files of others may bear their names."""
    ours = [name for name in REPORTS if is_report(root / name)]
    return _existing(root, [part for name in ours for part in (name, name.replace(".json", ".rows.jsonl"))])


def _removed(stale: Sequence[str]) -> Iterator[Finding]:
    if stale:
        message = f"{', '.join(stale)}: about the bytes before the change, so removed"
        yield finding("W_REPORT_REMOVED", "warning", message, data={"files": list(stale)})


def _above(root: Path, folders: Sequence[Path], prove: bool) -> Iterator[Finding]:
    for folder in folders:
        path = os.path.relpath(folder, root.resolve())
        state = "follows" if prove else "says that digests are pending"
        message = f"the manifest in '{shown(path)}' lists files of this folder, so it {state}"
        yield finding("W_MANIFEST_ABOVE", "warning", message, fix=f"convertkit manifest {shown(folder)}")


def _rewritten(moved: Sequence[Moved]) -> Iterator[Finding]:
    for item in moved:
        if item.method == "rewritten":
            message = "the filesystem cannot insert blocks, so the whole file was written anew"
            fix = "write with --header-slack to leave room for later renames"
            yield finding("W_FULL_REWRITE", "warning", message, file=item.name, fix=fix)


def _payload_digests(
    root: Path, headers: Sequence[HeaderEdit], stop: Stop, progress: Progress
) -> dict[str, tuple[str, str]]:
    """SHA-256 of each payload as it lies, and of the file as it will be: one reading for both."""
    progress.stage("prove", 2 * sum(header.payload_bytes for header in headers))
    return {
        header.name: _digests(root, header.name, len(header.old), header.new, header.payload_bytes, stop, progress)
        for header in headers
    }


def _digests(
    root: Path, name: str, start: int, prefix: bytes, size_bytes: int, stop: Stop, progress: Progress
) -> tuple[str, str]:
    payload, whole = hashlib.sha256(), hashlib.sha256(prefix)
    buffer = memoryview(bytearray(CHUNK_BYTES))
    fd = open_regular(root, name)
    try:
        for offset in range(0, size_bytes, CHUNK_BYTES):
            stop.check()
            part = buffer[: min(CHUNK_BYTES, size_bytes - offset)]
            read_into(fd, start + offset, part, name)
            payload.update(part)
            whole.update(part)
            progress.advance(len(part))
    finally:
        os.close(fd)
    return payload.hexdigest(), whole.hexdigest()


def _check(
    source: Checkpoint,
    renaming: Renaming,
    headers: Sequence[HeaderEdit],
    before: Mapping[str, tuple[str, str]],
    stop: Stop,
    progress: Progress,
) -> None:
    """Read every changed file again: same tensors at the same places of the payload, and with ``before`` the same
    bytes. Raises E_PROMISE, and then the change is taken back."""
    by_file = tensors_by_file(source)
    faults = []
    for edit in headers:
        start = next(file.data_start for file in source.files if file.name == edit.name)
        header = _read(source.root, edit.name)
        expected = {
            renaming.new_name(ref.spec.name): (ref.spec.dtype, ref.spec.shape, ref.start - start)
            for ref in by_file[edit.name]
        }
        found = {
            name: (ref.spec.dtype, ref.spec.shape, ref.start - header.data_start)
            for name, ref in header.tensors.items()
        }
        if found != expected:
            faults.append(finding("E_PROMISE", "error", "the tensors are not at their places", file=edit.name))
        if edit.name in before:
            again = _digests(source.root, edit.name, header.data_start, edit.new, edit.payload_bytes, stop, progress)
            if again != before[edit.name]:
                faults.append(finding("E_PROMISE", "error", "the payload is not what it was", file=edit.name))
    if faults:
        raise ConvertError(faults)


def _read(root: Path, name: str) -> Header:
    fd = open_regular(root, name)
    try:
        return read_header(fd, name)
    finally:
        os.close(fd)


def _sizes(file: WeightFile, headers: Sequence[HeaderEdit]) -> tuple[int, int, int, int, int]:
    edit = next((item for item in headers if item.name == file.name), None)
    payload = file.size_bytes - file.data_start
    start = file.data_start if edit is None else len(edit.new)
    return file.size_bytes, start + payload, file.data_start, start, payload
