"""Whether the weights of a release can be read at all: headers, indexes and sets of shards, folder by folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from convertkit.checkpoint import TensorRef
from convertkit.containers.files import open_regular
from convertkit.containers.folder import INDEX_SUFFIX, WEIGHTS, open_checkpoint
from convertkit.containers.gguf import read_gguf_header
from convertkit.containers.gguf_parts import PART
from convertkit.containers.gguf_parts import SUFFIX as GGUF
from convertkit.containers.safetensors import read_header
from convertkit.containers.shards import SHARD_NAME
from convertkit.errors import ConvertError, Finding, finding
from convertkit.release.paths import folder_of, is_never_listed, join

AS_ERRORS = {"W_INDEX_TOTAL": "E_INDEX_TOTAL", "W_SHARD_UNLISTED": "E_SHARD_UNLISTED"}
"""A conversion puts these right in its output; in a release they are wrong."""


@dataclass(frozen=True)
class Structure:
    """Findings about weights, with paths from the root, and the tensors of each weight file that could be read."""

    findings: tuple[Finding, ...]
    tensors: Mapping[str, tuple[TensorRef, ...]]


def is_weights(path: str) -> bool:
    """Weight files and indexes, by their names."""
    return path.endswith((WEIGHTS, INDEX_SUFFIX, GGUF))


def check_structure(root: Path, paths: Iterable[str], chosen: Iterable[str]) -> Structure:
    """Check the ``chosen`` weight files among all ``paths`` that are or should be below ``root``; others are ignored.

    A folder whose weights are all chosen is opened as a whole, so its index and its set of shards are checked too.
    Of other folders only the headers of the chosen files are read. Nothing is raised for a bad file.
    """
    chosen = tuple(chosen)
    everything = _by_folder(paths)
    findings: list[Finding] = []
    tensors: dict[str, tuple[TensorRef, ...]] = {}
    ggufs = _open_ggufs(root, (path for path in chosen if path.endswith(GGUF) and not is_never_listed(path)))
    findings.extend(ggufs.findings)
    tensors.update(ggufs.tensors)
    for folder, names in sorted(_by_folder(chosen).items()):
        if not any(os.path.lexists(root / folder / name) for name in names):
            continue  # all of them missing: that is for the manifest to say
        if names == everything.get(folder, set()):
            found = _open_folder(root, folder, names)
        else:
            found = _open_files(root, folder, (name for name in names if name.endswith(WEIGHTS)))
        findings.extend(found.findings)
        tensors.update(found.tensors)
    return Structure(tuple(findings), tensors)


def _by_folder(paths: Iterable[str]) -> dict[str, set[str]]:
    folders: dict[str, set[str]] = {}
    for path in paths:
        if path.endswith((WEIGHTS, INDEX_SUFFIX)) and not is_never_listed(path):
            folders.setdefault(folder_of(path), set()).add(path.rpartition("/")[2])
    return folders


def _open_folder(root: Path, folder: str, names: set[str]) -> Structure:
    """The folder as a checkpoint; where that fails, its sound files still give their tensors."""
    try:
        checkpoint = open_checkpoint(root / folder)
    except ConvertError as error:
        findings = [_moved(item, folder) for item in error.findings]
        if all(item.code != "E_SHARD_MISSING" for item in findings):
            findings.extend(_incomplete_sets(folder, names))
        files = _open_files(root, folder, (name for name in names if name.endswith(WEIGHTS)))
        return Structure(tuple(findings), files.tensors)
    findings = [_moved(item, folder) for item in checkpoint.findings]
    findings.extend(_incomplete_sets(folder, (file.name for file in checkpoint.files)))
    tensors: dict[str, list[TensorRef]] = {join(folder, file.name): [] for file in checkpoint.files}
    for ref in checkpoint.tensors.values():
        tensors[join(folder, ref.file)].append(ref)
    return Structure(tuple(findings), {path: tuple(refs) for path, refs in tensors.items()})


def _open_files(root: Path, folder: str, names: Iterable[str]) -> Structure:
    findings: list[Finding] = []
    tensors: dict[str, tuple[TensorRef, ...]] = {}
    for name in sorted(names):
        path = join(folder, name)
        if not os.path.lexists(root / path):
            continue
        try:
            fd = open_regular(root, path)
            try:
                header = read_header(fd, path)
            finally:
                os.close(fd)
        except ConvertError as error:
            findings.extend(error.findings)
            continue
        findings.extend(header.findings)
        tensors[path] = tuple(header.tensors.values())
    return Structure(tuple(findings), tensors)


def _open_ggufs(root: Path, paths: Iterable[str]) -> Structure:
    """GGUF files, each by itself: a part of a split one but the first states no architecture."""
    findings: list[Finding] = []
    tensors: dict[str, tuple[TensorRef, ...]] = {}
    for path in sorted(paths):
        if not os.path.lexists(root / path):
            continue
        part = PART.fullmatch(path.rpartition("/")[2])
        try:
            fd = open_regular(root, path)
            try:
                header = read_gguf_header(fd, path, first_part=part is None or int(part[2]) == 1)
            finally:
                os.close(fd)
        except ConvertError as error:
            findings.extend(error.findings)
            continue
        tensors[path] = tuple(header.tensors.values())
    return Structure(tuple(findings), tensors)


def _incomplete_sets(folder: str, names: Iterable[str]) -> Iterator[Finding]:
    """Shards that the names of others promise (``…-00001-of-00003``) and that are not there."""
    sets: dict[tuple[str, str], set[int]] = {}
    for name in names:
        match = SHARD_NAME.fullmatch(name)
        if match is not None:
            sets.setdefault((match["stem"], match["count"]), set()).add(int(match["number"]))
    for (stem, count), numbers in sorted(sets.items()):
        absent = [number for number in range(1, int(count) + 1) if number not in numbers]
        if absent:
            first = f"{stem}-{absent[0]:05d}-of-{count}.safetensors"
            more = f", and {len(absent) - 1} more" if len(absent) > 1 else ""
            yield finding("E_SHARD_MISSING", "error", f"the names of other shards promise it{more}",
                          file=join(folder, first), fix="fetch the missing shard")  # fmt: skip


def _moved(item: Finding, folder: str) -> Finding:
    """A finding of an opened folder as one about the release: its path from the root, graver where a release is."""
    code = AS_ERRORS.get(item.code, item.code)
    severity = "error" if code != item.code else item.severity
    file = join(folder, item.where.file) if item.where.file is not None else folder or None
    return replace(item, code=code, severity=severity, where=replace(item.where, file=file))
