"""What a folder should hold by a list from elsewhere: SHA256SUMS, a MANIFEST.json, or a file list of a hub as JSON.

A hub's list is the answer of ``/api/models/NAME/tree/REVISION?recursive=true`` (``path``, ``size``, ``oid``,
``lfs.oid``) or the ``siblings`` of ``/api/models/NAME?blobs=true`` (``rfilename``, ``size``, ``blobId``,
``lfs.sha256``). Files in LFS have a SHA-256 there; of the others only git's SHA-1 of the blob is stated, and that is
compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convertkit.containers.files import read_small
from convertkit.containers.strict_json import parse_json
from convertkit.errors import ConvertError, Finding, finding, refusal, shown
from convertkit.release.expected import Expected
from convertkit.release.manifest import FileEntry
from convertkit.release.manifest_reader import ReadManifest, parse_manifest
from convertkit.release.paths import ROWS, path_fault
from convertkit.release.sums import read_sums

MAX_LIST_BYTES = 1 << 28
MAX_BLOB_BYTES = 1 << 28


def read_listing(root: Path, listing: Path) -> Expected:
    """The files that ``listing`` states for the folder ``root``.

    Raises ``ConvertError``: E_NOT_FOUND, E_JSON, E_MANIFEST_SCHEMA, E_MANIFEST_PATH, E_MANIFEST_EMPTY and the codes of
    ``read_sums`` and ``read_manifest``.
    """
    data = read_small(listing.parent, listing.name, MAX_LIST_BYTES)
    if data.lstrip()[:1] not in (b"[", b"{"):
        sums = read_sums(data, listing.name)
        files = {path: FileEntry(path, None, sha256) for path, sha256 in sums.items()}
        return Expected(files, manifests=(listing.name,), release_sha256=hashlib.sha256(data).hexdigest())
    document = parse_json(data, listing.name)
    if isinstance(document, dict) and str(document.get("schema")).startswith("convertkit.manifest/"):
        return _by_manifest(parse_manifest(data, listing.name, lambda name: read_small(listing.parent, name)), listing)
    rows = _rows(document, listing.name)
    findings: list[Finding] = []
    files = {}
    for path, row in rows.items():
        files[path] = _entry(root, path, row, findings)
    return Expected(files, findings=tuple(findings), manifests=(listing.name,))


def _by_manifest(found: ReadManifest, listing: Path) -> Expected:
    files = {entry.path: entry for entry in found.manifest.files}
    if found.rows is not None:
        files[ROWS] = found.rows
    return Expected(files, found.manifest.tensors, found.manifest.supersedes, manifests=(listing.name,))


def _rows(document: Any, file: str) -> dict[str, Mapping[str, Any]]:
    """Rows of files by path."""
    items = document.get("siblings") if isinstance(document, dict) else document
    if not isinstance(items, list):
        message = "neither a MANIFEST.json nor a list of files of a hub"
        raise refusal("E_MANIFEST_SCHEMA", message, file=file)
    rows: dict[str, Mapping[str, Any]] = {}
    faults: list[Finding] = []
    for item in items:
        path = item.get("path", item.get("rfilename")) if isinstance(item, dict) else None
        if not isinstance(path, str):
            faults.append(finding("E_MANIFEST_SCHEMA", "error", "an entry names no file", file=file))
        elif item.get("type", "file") != "file":
            continue
        elif (fault := path_fault(path)) is not None:
            faults.append(finding("E_MANIFEST_PATH", "error", f"{fault}: '{shown(path)}'", file=file))
        else:
            rows[path] = item
    if faults:
        raise ConvertError(faults[:50])
    if not rows:
        raise refusal("E_MANIFEST_EMPTY", "no file is listed, so nothing could be verified", file=file)
    return rows


def _entry(root: Path, path: str, row: Mapping[str, Any], findings: list[Finding]) -> FileEntry:
    size = _size(row)
    lfs = row.get("lfs")
    if isinstance(lfs, Mapping):
        sha256 = lfs.get("sha256", lfs.get("oid"))
        return FileEntry(path, _size(lfs) if "size" in lfs else size, str(sha256).removeprefix("sha256:"))
    oid = row.get("oid", row.get("blobId"))
    return FileEntry(path, size, _same_blob(root, path, oid, findings))


def _size(row: Mapping[str, Any]) -> int | None:
    return row["size"] if type(row.get("size")) is int else None


def _same_blob(root: Path, path: str, oid: Any, findings: list[Finding]) -> str:
    """The SHA-256 of the bytes that are there if git would give them the stated id; else one that fits no file."""
    try:
        data = read_small(root, path, MAX_BLOB_BYTES)
    except ConvertError:
        return "0" * 64  # not there, or no plain file: said when the folder is compared
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    if isinstance(oid, str) and oid == blob:
        return hashlib.sha256(data).hexdigest()
    if oid is None:
        message = "the list states no digest of the file"
        findings.append(finding("E_MANIFEST_ALGO", "error", message, file=path))
    return "0" * 64
