"""MANIFEST.json (``convertkit.manifest/1``): what it holds, and the bytes it is written as.

The reader is in ``manifest_reader``. Everything here is pure: no disk, no clock, no path of this machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from convertkit import __version__
from convertkit.containers.strict_json import dump_json
from convertkit.release.paths import ROWS
from convertkit.release.tree import byte_order

SCHEMA = "convertkit.manifest/1"
MAX_INLINE_ROWS = 2000
"""With more tensors than this the rows go to ``MANIFEST.rows.jsonl``."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file: path inside the release, size in bytes (None where only sums were known), SHA-256 as 64 hex digits.

    The digest is empty while it is *pending*: the file was changed in place and has not been read since.
    """

    path: str
    size_bytes: int | None
    sha256: str

    @property
    def is_pending(self) -> bool:
        return not self.sha256

    def as_json(self) -> dict[str, Any]:
        size = {} if self.size_bytes is None else {"size": self.size_bytes}
        digest = {} if self.is_pending else {"sha256": self.sha256}
        return {"path": self.path, **size, **digest}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor of a file: the SHA-256 is that of its raw little-endian bytes."""

    file: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str

    def as_json(self) -> dict[str, Any]:
        return {
            "file": self.file, "name": self.name, "dtype": self.dtype, "shape": list(self.shape), "sha256": self.sha256,
        }  # fmt: skip


@dataclass(frozen=True)
class EarlierRelease:
    """A release that this one replaces: the digests of its manifest and sums (None if it had none), its files."""

    manifest_sha256: str | None
    sums_sha256: str | None
    files: tuple[FileEntry, ...]

    def as_json(self) -> dict[str, Any]:
        digests = {"manifest_sha256": self.manifest_sha256, "sums_sha256": self.sums_sha256}
        return {
            **{key: value for key, value in digests.items() if value is not None},
            "files": [entry.as_json() for entry in self.files],
        }


@dataclass(frozen=True)
class Manifest:
    """A whole manifest. ``source`` are the files that the weights were made from and ``plan`` how (verb, fingerprint,
    parameters); both are empty where nobody knows. ``supersedes`` are earlier releases, the newest first."""

    files: tuple[FileEntry, ...]
    tensors: tuple[TensorEntry, ...] = ()
    source: tuple[Mapping[str, Any], ...] = ()
    plan: Mapping[str, Any] = field(default_factory=dict)
    supersedes: tuple[EarlierRelease, ...] = ()


def encode_manifest(manifest: Manifest) -> tuple[bytes, bytes | None]:
    """Bytes of MANIFEST.json, and of MANIFEST.rows.jsonl if there are more than ``MAX_INLINE_ROWS`` tensors.

    Files are sorted by the bytes of their paths; tensors stay as given (by file, in the order of their bytes, so
    that with the header they determine the file).
    """
    listed = sorted(manifest.files, key=lambda entry: byte_order(entry.path))
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "tool": {"name": "convertkit", "version": __version__},
        "files": [entry.as_json() for entry in listed if not entry.is_pending],
    }
    if any(entry.is_pending for entry in listed):
        document["pending"] = [entry.as_json() for entry in listed if entry.is_pending]
    rows = None
    if manifest.tensors:
        document["content_id"] = content_id(manifest.tensors, named=False)
        document["content_id_named"] = content_id(manifest.tensors, named=True)
    if len(manifest.tensors) > MAX_INLINE_ROWS:
        rows = b"".join(_row(entry) for entry in manifest.tensors)
        document["tensors_file"] = {
            "path": ROWS, "size": len(rows), "sha256": hashlib.sha256(rows).hexdigest(), "count": len(manifest.tensors),
        }  # fmt: skip
    elif manifest.tensors:
        document["tensors"] = [entry.as_json() for entry in manifest.tensors]
    if manifest.source:
        document["source"] = {"files": [dict(item) for item in manifest.source]}
    if manifest.plan:
        document["plan"] = dict(manifest.plan)
    if manifest.supersedes:
        document["supersedes"] = [release.as_json() for release in manifest.supersedes]
    return dump_json(document), rows


def _row(entry: TensorEntry) -> bytes:
    text = json.dumps(entry.as_json(), separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    return text.encode() + b"\n"


def content_id(tensors: Iterable[TensorEntry], *, named: bool) -> str:
    """SHA-256 over one line per tensor, the lines sorted by bytes: the same for any order, sharding and metadata.

    A line is ``DTYPE [D0,D1,...] SHA256`` and, if ``named``, a space and the tensor's name; each ends with a line
    feed. Two checkpoints with equal ids hold the same tensors (``named``: under the same names).
    """
    lines = []
    for entry in tensors:
        shape = ",".join(map(str, entry.shape))
        name = f" {entry.name}" if named else ""
        lines.append(f"{entry.dtype} [{shape}] {entry.sha256}{name}\n".encode())
    return hashlib.sha256(b"".join(sorted(lines))).hexdigest()


def rebased(manifest: Manifest, folder: str) -> Manifest:
    """A nested manifest with its paths written from the root: ``folder`` is where it lies."""
    if not folder:
        return manifest
    return Manifest(
        tuple(FileEntry(f"{folder}/{item.path}", item.size_bytes, item.sha256) for item in manifest.files),
        tuple(
            TensorEntry(f"{folder}/{item.file}", item.name, item.dtype, item.shape, item.sha256)
            for item in manifest.tensors
        ),
        manifest.source, manifest.plan, manifest.supersedes,
    )  # fmt: skip
