"""Comparing what lies in a folder with what its manifest states: presence, sizes, digests, tensors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from convertkit.checkpoint import TensorRef
from convertkit.containers.files import open_regular
from convertkit.errors import ConvertError, Finding, finding, shown
from convertkit.progress import Progress
from convertkit.release.digests import Digests, sha256_all
from convertkit.release.expected import EARLIER_FIX
from convertkit.release.manifest import EarlierRelease, FileEntry, TensorEntry
from convertkit.release.paths import NEVER_LISTED
from convertkit.release.tree import Tree

AGAIN = "fetch the file again"
MAX_NAMED = 20
"""Names of tensors or files that a finding about many of them carries in its data."""


@dataclass(frozen=True)
class Matched:
    """Findings in the order of paths, how many files and tensors agree, and the bytes of those files."""

    findings: tuple[Finding, ...]
    files_ok: int
    tensors_ok: int
    size_bytes: int


class Earlier:
    """Files of the releases that the manifest supersedes, to tell a stale file from a damaged one."""

    def __init__(self, releases: Sequence[EarlierRelease]) -> None:
        self.paths = {entry.path for release in releases for entry in release.files}
        self._sizes = {(entry.path, entry.size_bytes) for release in releases for entry in release.files}
        self._age: dict[tuple[str, str], int] = {}
        for age, release in enumerate(releases, start=1):
            for entry in release.files:
                self._age.setdefault((entry.path, entry.sha256), age)

    def may_hold(self, path: str, size_bytes: int) -> bool:
        """Whether an earlier release has a file of that path and, as far as is known, that size."""
        return (path, size_bytes) in self._sizes or (path, None) in self._sizes

    def finding(self, path: str, sha256: str | None) -> Finding | None:
        """``E_EARLIER_RELEASE`` if an earlier release has that file with those bytes."""
        age = self._age.get((path, sha256 or ""))
        if age is None:
            return None
        which = "the release before this one" if age == 1 else f"an earlier release, {age} before this one"
        return finding("E_EARLIER_RELEASE", "error", f"the file is that of {which}", file=path, fix=EARLIER_FIX,
                       data={"releases_ago": age})  # fmt: skip


def match(
    root: Path,
    tree: Tree,
    listed: Mapping[str, FileEntry],
    extra: Sequence[str],
    rows: Iterable[TensorEntry],
    stored: Mapping[str, Sequence[TensorRef]],
    releases: Sequence[EarlierRelease],
    workers: int,
    progress: Progress,
) -> Matched:
    """Compare ``listed`` files, ``extra`` paths that nothing lists, and tensor ``rows`` with the folder.

    ``stored`` are the tensors by weight file as its header has them. Sizes come first: a file of another size is not
    read, unless an earlier release has one of that size. Every problem is a finding; nothing is raised.
    """
    earlier = Earlier(releases)
    present = frozenset(tree.files)
    sizes, unreadable = _open_all(root, [path for path in listed if path in present])
    right_size = {path for path, size in sizes.items() if listed[path].size_bytes in (None, size)}
    to_hash = {
        path: size
        for path, size in sizes.items()
        if (not listed[path].is_pending if path in right_size else earlier.may_hold(path, size))
    }
    to_hash |= _earlier_extras(root, extra, present, earlier)
    by_file: dict[str, list[TensorEntry]] = {}
    for row in rows:
        if row.file in right_size and row.file in stored:
            by_file.setdefault(row.file, []).append(row)
    found = sha256_all(root, to_hash, {path: stored[path] for path in by_file}, workers, progress)
    seen = Seen(sizes, found, by_file, stored, tuple(unreadable))
    return compare(tree, listed, extra, seen, earlier)


@dataclass(frozen=True)
class Seen:
    """What was found out about the files of a folder: sizes by path, digests, and for files whose tensors are compared
    too the rows that list them and the tensors that are stored."""

    sizes: Mapping[str, int]
    digests: Digests
    rows: Mapping[str, Sequence[TensorEntry]] = field(default_factory=dict)
    stored: Mapping[str, Sequence[TensorRef]] = field(default_factory=dict)
    unreadable: tuple[Finding, ...] = ()


def compare(tree: Tree, listed: Mapping[str, FileEntry], extra: Sequence[str], seen: Seen, earlier: Earlier) -> Matched:
    """``listed`` files against those of ``tree``, and the ``extra`` ones that nothing lists."""
    present = frozenset(tree.files)
    sizes, found, by_file = seen.sizes, seen.digests, seen.rows
    findings: list[Finding] = [*seen.unreadable, *found.findings]
    folded = {path.casefold(): path for path in reversed(tree.paths)}
    files_ok = tensors_ok = size_bytes = 0
    for path in sorted(listed):
        if path not in sizes:
            findings.extend(_missing(path, tree, folded) if path not in present else ())
            continue
        faults = list(_file_faults(listed[path], sizes[path], found, earlier))
        tensor_faults = list(_tensor_faults(by_file[path], seen.stored[path], found)) if path in by_file else []
        tensors_ok += len(by_file.get(path, ())) - len(tensor_faults)
        if path in found.files and not faults:
            files_ok += 1
            size_bytes += sizes[path]
        findings.extend(_with_tensors(faults, tensor_faults) if faults else tensor_faults)
    sha256 = {path: item.sha256 for path, item in found.files.items()}
    findings.extend(_extra_findings(extra, sha256, earlier))
    return Matched(tuple(_explained(findings, earlier)), files_ok, max(tensors_ok, 0), size_bytes)


def _open_all(root: Path, paths: Iterable[str]) -> tuple[dict[str, int], list[Finding]]:
    """Size in bytes of each file that is a regular file inside the folder, and findings about the others."""
    sizes: dict[str, int] = {}
    findings: list[Finding] = []
    for path in paths:
        try:
            fd = open_regular(root, path)
        except ConvertError as error:
            findings.extend(error.findings)
            continue
        sizes[path] = os.fstat(fd).st_size
        os.close(fd)
    return sizes, findings


def _earlier_extras(root: Path, extra: Iterable[str], present: frozenset[str], earlier: Earlier) -> dict[str, int]:
    candidates = [path for path in extra if path in earlier.paths and path in present]
    sizes, _ = _open_all(root, candidates)
    return {path: size for path, size in sizes.items() if earlier.may_hold(path, size)}


def _missing(path: str, tree: Tree, folded: Mapping[str, str]) -> Iterator[Finding]:
    """``folded`` are the first paths of the tree by their spelling without case."""
    if path in tree.odd:
        yield finding("E_NOT_REGULAR", "error", f"it is {tree.odd[path]}", file=path, fix="put the file itself there")
        return
    other = folded.get(path.casefold())
    hint = f"; '{shown(other)}' is another name" if other is not None else ""
    yield finding("E_FILE_MISSING", "error", f"the file is listed and not there{hint}", file=path,
                  fix="rename it as listed" if other is not None else "fetch it")  # fmt: skip


def _file_faults(entry: FileEntry, size_bytes: int, found: Digests, earlier: Earlier) -> Iterator[Finding]:
    digest = found.files.get(entry.path)
    sha256 = digest.sha256 if digest is not None else None
    if entry.size_bytes not in (None, size_bytes):
        yield earlier.finding(entry.path, sha256) or finding(
            "E_SIZE", "error", f"the file has {size_bytes:,} bytes, not {entry.size_bytes:,}", file=entry.path,
            fix=AGAIN, data={"expected": entry.size_bytes, "found": size_bytes},
        )  # fmt: skip
    elif entry.is_pending:
        yield finding(
            "E_DIGEST_PENDING", "error", "the file was written without being read, and not digested since",
            file=entry.path, fix="run `convertkit manifest` on the folder",
        )  # fmt: skip
    elif sha256 is not None and sha256 != entry.sha256:
        yield earlier.finding(entry.path, sha256) or finding(
            "E_DIGEST", "error", "the bytes are not those that the manifest states", file=entry.path,
            fix=AGAIN, data={"expected": entry.sha256, "found": sha256},
        )  # fmt: skip


def _tensor_faults(rows: Sequence[TensorEntry], refs: Sequence[TensorRef], found: Digests) -> Iterator[Finding]:
    """Findings about the tensors of one file that was hashed; one per tensor."""
    specs = {ref.spec.name: ref.spec for ref in refs}
    for row in rows:
        spec = specs.pop(row.name, None)
        sha256 = found.tensors.get((row.file, row.name))
        if spec is None:
            yield finding("E_TENSOR_MISSING", "error", "the tensor is listed, the file does not hold it",
                          file=row.file, tensor=row.name, fix=AGAIN)  # fmt: skip
        elif (spec.dtype, spec.shape) != (row.dtype, row.shape):
            is_, stated = f"{spec.dtype} {list(spec.shape)}", f"{row.dtype} {list(row.shape)}"
            yield finding("E_TENSOR_SPEC", "error", f"the tensor is {is_}, the manifest states {stated}",
                          file=row.file, tensor=row.name, fix=AGAIN)  # fmt: skip
        elif sha256 is not None and sha256 != row.sha256:
            yield finding("E_TENSOR_DIGEST", "error", "the tensor's bytes are not those that the manifest states",
                          file=row.file, tensor=row.name, fix=AGAIN,
                          data={"expected": row.sha256, "found": sha256})  # fmt: skip
    for name in specs:
        yield finding("E_TENSOR_EXTRA", "error", "the file holds a tensor that the manifest does not list",
                      file=rows[0].file, tensor=name, fix=AGAIN)  # fmt: skip


def _with_tensors(faults: Sequence[Finding], tensor_faults: Sequence[Finding]) -> Iterator[Finding]:
    """A file with other bytes is one problem: which tensors differ goes into its finding."""
    for item in faults:
        names = [fault.where.tensor for fault in tensor_faults]
        if not names:
            yield item
            continue
        count = "1 tensor differs" if len(names) == 1 else f"{len(names):,} tensors differ"
        message = f"{item.message}; {count}, first '{shown(names[0])}'"
        data = {**item.data, "tensors": names[:MAX_NAMED], "tensors_count": len(names)}
        yield Finding(item.code, item.severity, message, item.where, item.fix, data)


def _extra_findings(extra: Sequence[str], sha256: Mapping[str, str], earlier: Earlier) -> Iterator[Finding]:
    """Unlisted paths; those in a tool's folder are one finding, since there may be thousands."""
    folders: dict[str, list[str]] = {}
    for path in extra:
        top = path.partition("/")[0]
        if top in NEVER_LISTED:
            folders.setdefault(top, []).append(path)
        else:
            yield earlier.finding(path, sha256.get(path)) or finding(
                "E_FILE_EXTRA", "error", "no manifest lists the file", file=path,
                fix="remove it, or accept it with --allow-extra, or list it with `convertkit manifest`",
            )  # fmt: skip
    for top, paths in folders.items():
        named = ", ".join(f"'{shown(path)}'" for path in paths[:3])
        yield finding(
            "E_FILE_EXTRA", "error", f"{len(paths):,} unlisted files: {named}{', …' if len(paths) > 3 else ''}"
            if len(paths) > 1 else f"an unlisted file: {named}", file=top,
            fix=f"remove the folder, or accept it with --allow-extra '{top}/*'"
            + (", or --hub for what a hub download adds" if top == ".cache" else ""),
            data={"files": paths[:MAX_NAMED], "files_count": len(paths)},
        )  # fmt: skip


def _explained(findings: Sequence[Finding], earlier: Earlier) -> Iterator[Finding]:
    """If files are of an earlier release, the absence of files that it did not have is no problem of its own."""
    stale = any(item.code == "E_EARLIER_RELEASE" for item in findings)
    for item in findings:
        if stale and item.code == "E_FILE_MISSING" and item.where.file not in earlier.paths:
            yield finding("E_EARLIER_RELEASE", "error", "the file came with the present release", file=item.where.file,
                          fix=EARLIER_FIX)  # fmt: skip
        else:
            yield item
