"""What a folder should hold, by its MANIFEST.json and its SHA256SUMS, which must agree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from convertkit.containers.files import read_small
from convertkit.errors import ConvertError, Finding, finding
from convertkit.release.manifest import EarlierRelease, FileEntry, Manifest, TensorEntry
from convertkit.release.manifest_reader import ReadManifest, read_manifest
from convertkit.release.paths import MANIFEST, OWN_FILES, ROWS, SUMS
from convertkit.release.sums import read_sums
from convertkit.release.tree import Tree

EARLIER_FIX = "fetch the files of the present release"


@dataclass(frozen=True)
class Expected:
    """``files`` by path (size None where only the sums list it), tensors, earlier releases and the findings that
    reading gave. ``manifests`` are the names that were there; ``release_sha256`` is the digest of SHA256SUMS."""

    files: Mapping[str, FileEntry] = field(default_factory=dict)
    tensors: tuple[TensorEntry, ...] = ()
    supersedes: tuple[EarlierRelease, ...] = ()
    findings: tuple[Finding, ...] = ()
    manifests: tuple[str, ...] = ()
    release_sha256: str | None = None

    @property
    def readable(self) -> bool:
        return bool(self.files)


def read_expected(root: Path, tree: Tree) -> Expected:
    """Read the manifests of a folder. Faults are findings, and then ``files`` is empty: nothing must be opened."""
    names = tuple(name for name in (MANIFEST, SUMS) if name in tree.files or name in tree.odd)
    faults: list[Finding] = []
    found: ReadManifest | None = None
    sums: dict[str, str] = {}
    release_sha256 = None
    try:
        found = read_manifest(root) if MANIFEST in names else None
    except ConvertError as error:
        faults.extend(error.findings)
    try:
        if SUMS in names:
            data = read_small(root, SUMS)
            release_sha256 = hashlib.sha256(data).hexdigest()
            sums = read_sums(data)
    except ConvertError as error:
        faults.extend(error.findings)
    if faults or not names:
        return Expected(findings=tuple(faults), manifests=names, release_sha256=release_sha256)
    return _merged(found, sums, names, release_sha256)


def _merged(
    found: ReadManifest | None, sums: Mapping[str, str], names: tuple[str, ...], release_sha256: str | None
) -> Expected:
    if found is None:
        files = {path: FileEntry(path, None, sha256) for path, sha256 in sums.items()}
        return Expected(files, manifests=names, release_sha256=release_sha256)
    manifest = found.manifest
    files = {entry.path: entry for entry in manifest.files}
    if found.rows is not None:
        files[ROWS] = found.rows
    if release_sha256 is None:
        findings = [finding(
            "W_SUMS_MISSING", "warning", f"there is no {SUMS} beside {MANIFEST}; it is written last, so an interrupted "
            "download or write may be the cause", file=SUMS, fix="fetch it, or run `convertkit manifest` again",
        )]  # fmt: skip
    elif release_sha256 in [release.sums_sha256 for release in manifest.supersedes]:
        findings = [finding(
            "E_EARLIER_RELEASE", "error", "the file is that of an earlier release", file=SUMS, fix=EARLIER_FIX
        )]  # fmt: skip
    else:
        findings = list(_conflicts(manifest, found, sums))
        files.update(
            (path, FileEntry(path, None, sha256)) for path, sha256 in sums.items() if path not in files
        )  # fmt: skip
    return Expected(files, manifest.tensors, manifest.supersedes, tuple(findings), names, release_sha256)


def _conflicts(manifest: Manifest, found: ReadManifest, sums: Mapping[str, str]) -> Iterable[Finding]:
    """Where MANIFEST.json and SHA256SUMS disagree; both must list the same files with the same digests.

    Whether the bytes of MANIFEST.json are those that the sums state is checked with all other files.
    """
    listed = {entry.path: entry.sha256 for entry in manifest.files if not entry.is_pending}
    listed[MANIFEST] = found.sha256
    if found.rows is not None:
        listed[ROWS] = found.rows.sha256
    for path in sorted({*listed, *sums}):
        if path not in sums:
            yield _conflict(path, f"{SUMS} does not list it" + ("" if path in OWN_FILES else f", {MANIFEST} does"))
        elif path not in listed:
            yield _conflict(path, f"{MANIFEST} does not list it, {SUMS} does")
        elif listed[path] != sums[path] and path != MANIFEST:
            yield _conflict(path, f"{MANIFEST} and {SUMS} state different digests")


def _conflict(path: str, message: str) -> Finding:
    return finding(
        "E_MANIFEST_CONFLICT", "error", message, file=path,
        fix=f"fetch {MANIFEST} and {SUMS} of one release, or write both anew with `convertkit manifest`",
    )  # fmt: skip
