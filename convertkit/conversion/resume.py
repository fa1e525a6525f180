"""Which finished tensors of an earlier run may be kept: those whose bytes, staged and source, hash as recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from convertkit.checkpoint import FileStamp
from convertkit.conversion.journal import Entry, read_journal
from convertkit.conversion.staging import Staging
from convertkit.conversion.stop import Stop
from convertkit.conversion.syscalls import remove_tree
from convertkit.errors import finding, refusal, shown

CHUNK_BYTES = 4 << 20

Span = tuple[str, int, int]
"""Where an output tensor lies: file, first byte, size in bytes."""

DigestSource = Callable[[str], str]
"""sha256 (hex) of the stored bytes of an input tensor, read now. Called from several threads."""


def entries_to_keep(
    staging: Staging,
    names: set[str],
    places: Mapping[str, Span],
    stamps: Mapping[str, FileStamp],
    digest_source: DigestSource | None,
    stop: Stop,
    workers: int,
) -> list[Entry]:
    """Entries of the journal to trust, in its order. Everything staged but planned weight files is removed.

    The staged bytes must hash as recorded, and so must the source tensors where their digests are recorded;
    where they are not, every source file must have the stamp that it had. Raises ``ConvertError`` E_RESUME if
    the staging folder belongs to another plan.
    """
    head, entries = read_journal(staging.journal)
    if head is not None and head.fingerprint != staging.fingerprint:
        raise refusal("E_RESUME", f"'{shown(staging.base.name)}' belongs to another plan", fix="run without --resume")
    ours = head is not None and head.folder_inode == os.stat(staging.files).st_ino
    _sweep(staging, names if ours else set())
    if head is None or not ours:
        return []
    touched = sorted(name for name, stamp in head.stamps.items() if stamps.get(name) != stamp)
    for name in touched:
        note = "the source file was touched since the interrupted run; what cannot be proved unchanged is made anew"
        staging.findings.append(finding("W_SOURCE_TOUCHED", "warning", note, file=name))
    known = [
        entry for entry in entries
        if entry.name in places and places[entry.name][2] == entry.size_bytes
        and (not touched if not entry.sources else digest_source is not None)
    ]  # fmt: skip
    return _proved(known, staging.files, places, digest_source, stop, workers)


def _proved(
    entries: Sequence[Entry],
    files: Path,
    places: Mapping[str, Span],
    digest_source: DigestSource | None,
    stop: Stop,
    workers: int,
) -> list[Entry]:
    """Entries whose staged bytes, and source tensors where those were recorded, hash as recorded."""

    def staged_is_sound(entry: Entry) -> bool:
        file, start, size = places[entry.name]
        return _digest_staged(files / file, start, size, stop) == entry.sha256

    with ThreadPoolExecutor(max(1, workers)) as pool:
        sound = [entry for entry, good in zip(entries, pool.map(staged_is_sound, entries), strict=True) if good]
        inputs = sorted({name for entry in sound for name in entry.sources})
        digests = dict(zip(inputs, pool.map(digest_source, inputs), strict=True)) if digest_source else {}
    return [entry for entry in sound if all(digests[name] == value for name, value in entry.sources.items())]


def _sweep(staging: Staging, keep: set[str]) -> None:
    """Remove what this run writes anew. A kept file must be ours alone: a second hard link may be a user's file."""
    for entry in sorted(os.scandir(staging.files), key=lambda item: item.name):
        mine = entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_nlink == 1
        if entry.name not in keep or not mine:
            remove_tree(staging.syscalls, Path(entry.path))


def _digest_staged(path: Path, start: int, size: int, stop: Stop) -> str:
    """sha256 of the bytes, of fewer if the file is shorter, and of none if it is not there."""
    digest = sha256()
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        while size:
            stop.check()
            chunk = os.pread(fd, min(size, CHUNK_BYTES), start)
            if not chunk:
                break
            digest.update(chunk)
            start, size = start + len(chunk), size - len(chunk)
    finally:
        os.close(fd)
    return digest.hexdigest()
