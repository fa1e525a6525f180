"""The journal of a run: which output tensors are finished, so that ``--resume`` need not make them again.

A text file of lines ``<first 16 hex digits of the sha256 of the rest> <JSON>``. The first line states the plan's
fingerprint, the folder it belongs to and the stamps of the source files; each further line one finished tensor::

    {"name": …, "sha256": …, "size": …, "sources": {input tensor: sha256 of its stored bytes}}

A line is appended after the bytes it speaks of are on the disk. A cut or damaged line ends the journal: it and
what follows are as if never written. Nothing in it is believed on resume without hashing the bytes again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from convertkit.checkpoint import FileStamp
from convertkit.conversion.syscalls import Syscalls, write_all

VERSION = 1
CHECK_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished output tensor; ``sources`` are the digests of every input tensor it was made from, or none."""

    name: str
    sha256: str
    size_bytes: int
    sources: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Head:
    """First line. ``folder_inode`` tells our staged files from an old output that was swapped into their place."""

    fingerprint: str
    folder_inode: int
    stamps: Mapping[str, FileStamp]


class Journal:
    """An open journal; ``append`` is called by one thread at a time."""

    def __init__(self, syscalls: Syscalls, fd: int, end: int = 0) -> None:
        self._syscalls, self._fd, self._end = syscalls, fd, end

    def append(self, entries: Iterable[Entry], *, durable: bool = True) -> None:
        """Write the lines, then fsync unless ``durable`` is false. Raises ``OSError``; never retries an fsync."""
        self._write(b"".join(_line(_entry_json(entry)) for entry in entries))
        if durable:
            self._syscalls.fsync(self._fd)

    def _write(self, data: bytes) -> None:
        write_all(self._syscalls, self._fd, memoryview(data), self._end)
        self._end += len(data)

    def close(self) -> None:
        self._syscalls.close(self._fd)


def start_journal(syscalls: Syscalls, path: Path, head: Head, entries: Iterable[Entry] = ()) -> Journal:
    """A new journal on the disk, with the entries of an earlier run that are trusted.

    It replaces an older one in one step, so a run that dies here loses nothing. Raises ``OSError``.
    """
    fresh = str(path) + ".new"
    fd = syscalls.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        journal = Journal(syscalls, fd, 0)
        journal._write(_line(_head_json(head)))
        journal.append(entries)
        syscalls.rename(fresh, str(path), "plain")
    except BaseException:
        syscalls.close(fd)
        raise
    return journal


def read_journal(path: Path) -> tuple[Head | None, list[Entry]]:
    """First line and entries (the last one of a name counts), up to the first damaged line.

    No first line (the run died before it was on the disk, or it is damaged): ``(None, [])``.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None, []
    head: Head | None = None
    entries: dict[str, Entry] = {}
    for line in data.splitlines(keepends=True):
        value = _read_line(line)
        if value is None:
            break
        try:
            if head is None:
                head = _read_head(value)
            else:
                entry = _read_entry(value)
                entries[entry.name] = entry
        except (AttributeError, KeyError, TypeError, ValueError):
            break
    return head, list(entries.values())


def _line(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return sha256(text).hexdigest()[:CHECK_DIGITS].encode() + b" " + text + b"\n"


def _read_line(line: bytes) -> dict[str, Any] | None:
    check, _, text = line[:-1].partition(b" ")
    if not line.endswith(b"\n") or sha256(text).hexdigest()[:CHECK_DIGITS].encode() != check:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name, "sha256": entry.sha256, "size": entry.size_bytes, "sources": dict(entry.sources)
    }  # fmt: skip


def _head_json(head: Head) -> dict[str, Any]:
    stamps = {
        name: [stamp.device, stamp.inode, stamp.size_bytes, stamp.mtime_ns] for name, stamp in head.stamps.items()
    }
    return {"version": VERSION, "plan": head.fingerprint, "folder": head.folder_inode, "stamps": stamps}


def _read_entry(value: Mapping[str, Any]) -> Entry:
    name, digest, size, sources = value["name"], value["sha256"], value["size"], value["sources"]
    texts = (name, digest, *sources, *sources.values()) if isinstance(sources, dict) else (None,)
    if type(size) is not int or not all(isinstance(text, str) for text in texts):
        raise ValueError("malformed entry")
    return Entry(name, digest, size, sources)


def _read_head(value: Mapping[str, Any]) -> Head:
    if value["version"] != VERSION:
        raise ValueError("journal of another version")
    stamps = {name: FileStamp(*numbers) for name, numbers in value["stamps"].items()}
    return Head(value["plan"], value["folder"], stamps)
