"""What a folder's own manifest records about its weights, and that manifest after tensors were renamed in place."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.containers.files import read_small
from convertkit.errors import ConvertError
from convertkit.layouts.renames import Renaming
from convertkit.release.manifest import FileEntry, Manifest, encode_manifest
from convertkit.release.manifest_reader import read_manifest
from convertkit.release.paths import MANIFEST, ROWS, SUMS
from convertkit.release.sums import read_sums, write_sums


@dataclass(frozen=True)
class Recorded:
    """The manifest (None: there is none, or it cannot be read) and SHA-256 of tensors by name, for files that still
    have the size and the tensors that it states."""

    manifest: Manifest | None = None
    tensors: Mapping[str, str] = field(default_factory=dict)


def recorded(checkpoint: Checkpoint) -> Recorded:
    """Read what is recorded. Nothing is raised: an unreadable manifest records nothing."""
    try:
        manifest = read_manifest(checkpoint.root).manifest
    except ConvertError:
        return Recorded()
    sizes = {entry.path: entry.size_bytes for entry in manifest.files}
    good = {file.name for file in checkpoint.files if sizes.get(file.name) == file.size_bytes}
    tensors: dict[str, str] = {}
    for row in manifest.tensors:
        ref = checkpoint.tensors.get(row.name) if row.file in good else None
        if ref is not None and (ref.file, ref.spec.dtype, ref.spec.shape) == (row.file, row.dtype, row.shape):
            tensors[row.name] = row.sha256
    return Recorded(manifest, tensors)


def renamed_records(
    root: Path,
    manifest: Manifest | None,
    renaming: Renaming,
    weights: Mapping[str, tuple[int, str]],
    small: Mapping[str, bytes | None],
    edit: Mapping[str, Any] | None,
) -> dict[str, bytes | None]:
    """Contents of the manifest's own files after a change in place (None: to be removed).

    ``weights`` are the changed weight files with their new size and SHA-256 (empty: pending), ``small`` the changed
    small files (None: removed), ``edit`` (if any) is added to the plan that made the weights. SHA256SUMS without a
    manifest only loses what is pending.
    """
    if manifest is None:
        return _renamed_sums(root, weights, small)
    files = [new for entry in manifest.files if (new := _renewed(entry, weights, small)) is not None]
    rows = [replace(row, name=renaming.new_name(row.name)) if row.file in weights else row for row in manifest.tensors]
    plan = dict(manifest.plan)
    if plan and edit is not None:
        plan["edits"] = [*plan.get("edits", ()), dict(edit)]
    data, row_data = encode_manifest(replace(manifest, files=tuple(files), tensors=tuple(rows), plan=plan))
    own = {MANIFEST: data} if row_data is None else {ROWS: row_data, MANIFEST: data}
    sums = {entry.path: entry.sha256 for entry in files if not entry.is_pending}
    sums.update((name, hashlib.sha256(content).hexdigest()) for name, content in own.items())
    contents: dict[str, bytes | None] = {**own, SUMS: write_sums(sums)}
    if row_data is None and (root / ROWS).exists():
        contents[ROWS] = None
    return contents


def _renewed(
    entry: FileEntry, weights: Mapping[str, tuple[int, str]], small: Mapping[str, bytes | None]
) -> FileEntry | None:
    if entry.path in weights:
        return FileEntry(entry.path, *weights[entry.path])
    if entry.path not in small:
        return entry
    data = small[entry.path]
    return None if data is None else FileEntry(entry.path, len(data), hashlib.sha256(data).hexdigest())


def _renamed_sums(
    root: Path, weights: Mapping[str, tuple[int, str]], small: Mapping[str, bytes | None]
) -> dict[str, bytes | None]:
    if not (root / SUMS).exists():
        return {}
    sums = read_sums(read_small(root, SUMS))
    for path, (_, sha256) in weights.items():
        if path in sums:
            sums[path] = sha256
    for path, data in small.items():
        if path in sums:
            sums[path] = "" if data is None else hashlib.sha256(data).hexdigest()
    kept = {path: sha256 for path, sha256 in sums.items() if sha256}
    return {SUMS: write_sums(kept) if kept else None}
