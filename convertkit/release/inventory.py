"""Taking stock of a folder: which files a manifest lists, and their digests, with what is known already reused."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from convertkit.checkpoint import TensorRef
from convertkit.errors import ConvertError, Finding, finding, raise_all, refusal, shown
from convertkit.progress import Progress
from convertkit.release.digests import Digests, sha256_all
from convertkit.release.manifest import FileEntry, Manifest, TensorEntry, rebased
from convertkit.release.manifest_reader import read_manifest
from convertkit.release.paths import MANIFEST, NEVER_LISTED, OWN_FILES, folder_of, is_never_listed, is_signature
from convertkit.release.replace import PARTIAL_NAMES
from convertkit.release.sums import unsafe_names
from convertkit.release.tree import Tree, byte_order

Rows = tuple[TensorEntry, ...]
Stored = Mapping[str, Sequence[TensorRef]]


@dataclass(frozen=True)
class Known:
    """What the manifests in a folder say: the folder's own one (None if there is none), and from it and nested ones
    the tensors of a file, by its path and its SHA-256."""

    own: Manifest | None
    rows: Mapping[tuple[str, str], Rows]


def listable(tree: Tree) -> tuple[tuple[str, ...], dict[str, str]]:
    """Paths to list, sorted by bytes, and the skipped ones with the reason.

    Raises ``E_NAME_UNSAFE``, ``E_NOT_REGULAR``, ``E_PATH_CASE`` for what can be neither, ``E_MANIFEST_EMPTY``.
    """
    listed, skipped = _sorted_out(tree)
    raise_all(_unlistable(tree, listed))
    if not listed:
        raise refusal("E_MANIFEST_EMPTY", "the folder holds no file to list", fix="name the folder of the release")
    return tuple(listed), skipped


def _unlistable(tree: Tree, paths: Sequence[str]) -> Iterator[Finding]:
    """What stands against listing ``paths`` of a tree: E_NAME_UNSAFE, E_NOT_REGULAR, E_PATH_CASE."""
    yield from unsafe_names(paths)
    for path in paths:
        if path in tree.odd:
            message = f"{tree.odd[path]}; it cannot be listed"
            yield finding("E_NOT_REGULAR", "error", message, file=path, fix="remove it, or put the file itself there")
    yield from _case_faults(paths)


def unlistable_among(tree: Tree, names: Container[str]) -> Iterator[Finding]:
    """The same of those entries that are among ``names``."""
    return _unlistable(tree, [path for path in _sorted_out(tree)[0] if path in names])


def _sorted_out(tree: Tree) -> tuple[list[str], dict[str, str]]:
    skipped: dict[str, str] = {}
    listed: list[str] = []
    for path in tree.paths:
        if is_never_listed(path):
            skipped[_tool_folder(path)] = "belongs to a tool, not to the release"
        elif is_signature(path):
            skipped[path] = "a signature is made after the manifest"
        elif path not in OWN_FILES and path not in PARTIAL_NAMES:
            listed.append(path)
    return listed, skipped


def _tool_folder(path: str) -> str:
    """``a/.git/config`` as ``a/.git/``."""
    parts = path.split("/")
    end = next(number for number, part in enumerate(parts, start=1) if part in NEVER_LISTED)
    return "/".join(parts[:end]) + "/"


def _case_faults(paths: Iterable[str]) -> Iterable[Finding]:
    folded: dict[str, str] = {}
    for path in paths:
        other = folded.setdefault(path.casefold(), path)
        if other != path:
            yield finding("E_PATH_CASE", "error", f"differs from '{shown(other)}' only in case", file=path,
                          fix="rename one of the two")  # fmt: skip


def read_known(root: Path, tree: Tree) -> Known:
    """Read the manifests of the folder and its subfolders; nested ones that cannot be read are passed over.

    Raises ``E_OUT_EXISTS`` if the folder's own MANIFEST.json is not one of ours: it would be replaced.
    """
    own: Manifest | None = None
    rows: dict[tuple[str, str], list[TensorEntry]] = {}
    for path in tree.files:
        if path.rpartition("/")[2] != MANIFEST or is_never_listed(path):
            continue
        try:
            found = read_manifest(root, folder_of(path)).manifest
        except ConvertError as error:
            if path == MANIFEST:
                raise _not_ours(error) from None
            continue
        if path == MANIFEST:
            own = found
        found = rebased(found, folder_of(path))
        sha256 = {entry.path: entry.sha256 for entry in found.files}
        fresh: dict[tuple[str, str], list[TensorEntry]] = {}
        for row in found.tensors:
            fresh.setdefault((row.file, sha256[row.file]), []).append(row)
        rows.update(fresh)
    return Known(own, {key: tuple(value) for key, value in rows.items()})


def _not_ours(error: ConvertError) -> ConvertError:
    return refusal(
        "E_OUT_EXISTS", f"the file that is there is not a sound manifest of ours: {error.findings[0].message}",
        file=MANIFEST, fix="remove or rename it, then run again",
    )  # fmt: skip


def given_rows(stored: Stored, digests: Mapping[str, str], tensors: Mapping[str, str]) -> dict[tuple[str, str], Rows]:
    """Rows of weights in the folder itself whose digests the caller took: file digests by path, tensors by name."""
    return {
        (path, digests[path]): tuple(_row(path, ref, tensors[ref.spec.name]) for ref in _in_byte_order(refs))
        for path, refs in stored.items()
        if not folder_of(path) and path in digests and all(ref.spec.name in tensors for ref in refs)
    }


def take_inventory(
    root: Path,
    listed: Sequence[str],
    stored: Stored,
    known: Mapping[tuple[str, str], Rows],
    digests: Mapping[str, str],
    workers: int,
    progress: Progress,
) -> tuple[tuple[FileEntry, ...], Rows]:
    """Entries of the ``listed`` files, and rows of the tensors ``stored`` in them (by file, in byte order).

    Files in ``digests`` are not read; an empty digest leaves it pending. Tensors of a file in ``known`` wait until the
    file's digest says whether those rows still hold; other tensors are hashed while their file is. Raises every
    failure to read together.
    """
    sizes = {path: os.stat(root / path).st_size for path in listed if os.path.exists(root / path)}
    to_hash = {path: sizes.get(path, 0) for path in listed if path not in digests}
    hopeful = {path for path, _ in known if path in stored}
    now = {path: refs for path, refs in stored.items() if path not in hopeful}
    found = _hashed(root, to_hash, now, workers, progress)
    sha256 = {path: digests[path] if path in digests else found.files[path].sha256 for path in listed}
    sizes.update((path, item.size_bytes) for path, item in found.files.items())
    rows = {path: known.get((path, sha256[path]), ()) for path in hopeful}
    late = {path: stored[path] for path in hopeful if not _describes(rows[path], stored[path])}
    taken = {**found.tensors, **(_hashed(root, {}, late, workers, progress).tensors if late else {})}
    for path in (*now, *late):
        rows[path] = tuple(_row(path, ref, taken[path, ref.spec.name]) for ref in _in_byte_order(stored[path]))
    entries = tuple(FileEntry(path, sizes[path], sha256[path]) for path in listed)
    return entries, tuple(row for path in sorted(rows, key=byte_order) for row in rows[path])


def _hashed(root: Path, files: Mapping[str, int], tensors: Stored, workers: int, progress: Progress) -> Digests:
    found = sha256_all(root, files, tensors, workers, progress)
    if found.findings:
        raise ConvertError(found.findings)
    return found


def _in_byte_order(refs: Iterable[TensorRef]) -> list[TensorRef]:
    """Tensors of one file as their bytes lie; empty tensors at the same place by name."""
    return sorted(refs, key=lambda ref: (ref.start, ref.size_bytes, ref.spec.name))


def _row(path: str, ref: TensorRef, sha256: str) -> TensorEntry:
    return TensorEntry(path, ref.spec.name, ref.spec.dtype, ref.spec.shape, sha256)


def _describes(rows: Rows, refs: Sequence[TensorRef]) -> bool:
    """Whether rows that an earlier manifest recorded fit the header of the file."""
    specs = [(ref.spec.name, ref.spec.dtype, ref.spec.shape) for ref in _in_byte_order(refs)]
    return bool(rows) and [(row.name, row.dtype, row.shape) for row in rows] == specs
