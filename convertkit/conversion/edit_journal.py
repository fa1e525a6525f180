"""What a change in place consists of, and its journal: every header and small file, before and after, on the disk."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from convertkit.containers.files import read_small
from convertkit.containers.folder import EDIT_FOLDER
from convertkit.containers.strict_json import parse_json
from convertkit.conversion.syscalls import Syscalls, remove_tree, sync_folder, write_new
from convertkit.errors import ConvertError, refusal, shown

FRESH, DONE = EDIT_FOLDER + ".new", EDIT_FOLDER + ".done"
RECORD = "edit.json"
VERSION = 1
MAX_BLOB_BYTES = 1 << 30
"""A header has at most 100 MB, a list of tensors several times that."""
Side = Literal["old", "new"]


@dataclass(frozen=True, slots=True)
class HeaderEdit:
    """One weight file: its bytes before the payload as they are and as they will be, and the two file sizes."""

    name: str
    old: bytes
    new: bytes
    payload_bytes: int

    def prefix(self, side: Side) -> bytes:
        return self.old if side == "old" else self.new

    def size_bytes(self, side: Side) -> int:
        return len(self.prefix(side)) + self.payload_bytes


@dataclass(frozen=True, slots=True)
class FileEdit:
    """One small file before and after; None where it is not there. A name that begins with ``../`` is that of a
    manifest in a folder above, which lists the files that change."""

    name: str
    old: bytes | None
    new: bytes | None

    @property
    def is_above(self) -> bool:
        return self.name.startswith("../")


@dataclass(frozen=True)
class Edit:
    """A whole change, in the order in which it is made: headers first, then small files."""

    headers: tuple[HeaderEdit, ...]
    files: tuple[FileEdit, ...]


def write_journal(root: Path, edit: Edit, syscalls: Syscalls) -> None:
    """Put the journal on the disk whole, and give it its name in one step. Raises ``OSError``."""
    fresh = root / FRESH
    remove_tree(syscalls, fresh)
    syscalls.mkdir(str(fresh))
    record: dict[str, Any] = {"version": VERSION, "headers": [], "files": []}
    for number, header in enumerate(edit.headers):
        row = {"name": header.name, "payload_bytes": header.payload_bytes}
        row.update(_blobs(fresh, f"h{number}", header.old, header.new, syscalls))
        record["headers"].append(row)
    for number, file in enumerate(edit.files):
        record["files"].append({"name": file.name, **_blobs(fresh, f"f{number}", file.old, file.new, syscalls)})
    write_synced(fresh / RECORD, json.dumps(record, sort_keys=True).encode(), syscalls)
    sync_folder(syscalls, str(fresh))
    syscalls.rename(str(fresh), str(root / EDIT_FOLDER), "plain")
    sync_folder(syscalls, str(root))


def _blobs(folder: Path, stem: str, old: bytes | None, new: bytes | None, syscalls: Syscalls) -> dict[str, str | None]:
    """Write the two contents; their digests, None for a file that is not there."""
    digests: dict[str, str | None] = {}
    for side, data in (("old", old), ("new", new)):
        if data is not None:
            write_synced(folder / f"{stem}.{side}", data, syscalls)
        digests[side] = None if data is None else hashlib.sha256(data).hexdigest()
    return digests


def write_synced(path: Path, data: bytes, syscalls: Syscalls) -> None:
    """Write a new file and put it on the disk."""
    write_new(syscalls, str(path), data)
    fd = syscalls.open(str(path), os.O_RDONLY)
    try:
        syscalls.fsync(fd)
    finally:
        syscalls.close(fd)


def read_journal(root: Path) -> Edit:
    """The change that a journal records. Raises E_EDIT_BROKEN if it is damaged."""
    folder = root / EDIT_FOLDER
    record = _record(folder)

    def blob(stem: str, side: Side, row: dict[str, Any]) -> bytes | None:
        if row[side] is None:
            return None
        try:
            data = read_small(folder, f"{stem}.{side}", MAX_BLOB_BYTES)
        except ConvertError:
            raise broken(row["name"], "its journal is damaged") from None
        if hashlib.sha256(data).hexdigest() != row[side]:
            raise broken(row["name"], "its journal is damaged")
        return data

    headers = [
        HeaderEdit(
            row["name"], blob(f"h{n}", "old", row) or b"", blob(f"h{n}", "new", row) or b"", row["payload_bytes"]
        )
        for n, row in enumerate(record["headers"])
    ]
    files = [
        FileEdit(row["name"], blob(f"f{n}", "old", row), blob(f"f{n}", "new", row))
        for n, row in enumerate(record["files"])
    ]
    return Edit(tuple(headers), tuple(files))


ABOVE = re.compile(r"(\.\./)+(MANIFEST\.json|MANIFEST\.rows\.jsonl|SHA256SUMS)")
"""Names outside of the folder that a journal may hold."""


def _record(folder: Path) -> dict[str, Any]:
    """The journal's table. It may come with a folder from anywhere, so it must not lead to files of others."""
    try:
        record = parse_json(read_small(folder, RECORD), RECORD)
    except ConvertError as error:
        raise broken(EDIT_FOLDER, f"its journal is damaged ({error.findings[0].message})") from None
    if not isinstance(record, dict) or record.get("version") != VERSION:
        raise broken(EDIT_FOLDER, "its journal is of another version of convertkit")
    for key in ("headers", "files"):
        rows = record.get(key)
        if not isinstance(rows, list):
            raise broken(EDIT_FOLDER, "its journal is damaged")
        for row in rows:
            _check_row(row, key)
    return record


def _check_row(row: Any, key: str) -> None:
    named = isinstance(row, dict) and {"name", "old", "new"} <= row.keys() and isinstance(row["name"], str)
    if not named or (key == "headers" and type(row.get("payload_bytes")) is not int):
        raise broken(EDIT_FOLDER, "its journal is damaged")
    name = row["name"]
    plain = name not in ("", ".", "..") and not {"/", "\0"} & set(name)
    if not plain and not (key == "files" and ABOVE.fullmatch(name)):
        raise broken(EDIT_FOLDER, f"its journal names '{shown(name)}', which is not in the folder")


def broken(name: str, what: str) -> ConvertError:
    """The error for a change that can be neither finished nor taken back."""
    return refusal("E_EDIT_BROKEN", f"the interrupted change cannot be brought to an end: {what}", file=name,
                   fix="fetch the file again, then remove the folder .convertkit-edit")  # fmt: skip


def close_journal(root: Path, syscalls: Syscalls) -> None:
    """The change is at its end, whichever: remove the journal."""
    syscalls.rename(str(root / EDIT_FOLDER), str(root / DONE), "plain")
    sync_folder(syscalls, str(root))
    remove_tree(syscalls, root / DONE)
