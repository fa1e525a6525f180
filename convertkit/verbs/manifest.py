"""``manifest``: list a folder's files, sizes and digests in MANIFEST.json and SHA256SUMS."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from convertkit.containers.folder import WEIGHTS
from convertkit.errors import ConvertError, Finding, finding
from convertkit.progress import SILENT, Progress
from convertkit.release.inventory import given_rows, listable, read_known, take_inventory
from convertkit.release.manifest import EarlierRelease, FileEntry, Manifest, content_id, encode_manifest
from convertkit.release.manifest_reader import parse_manifest, read_earlier, read_manifest
from convertkit.release.paths import MANIFEST, ROWS, SUMS
from convertkit.release.replace import remove_file, replace_files
from convertkit.release.structure import check_structure
from convertkit.release.sums import write_sums
from convertkit.release.tree import walk

SOURCE_KEYS = ("path", "size", "sha256", "repo", "revision")
WEIGHT_SUFFIXES = (WEIGHTS, ".gguf")


def manifest(
    folder: str | os.PathLike[str],
    *,
    supersedes: str | os.PathLike[str] | None = None,
    follows: str | os.PathLike[str] | None = None,
    digests: Mapping[str, str] | None = None,
    tensors: Mapping[str, str] | None = None,
    pending: Collection[str] = (),
    lineage: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    workers: int = 0,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Write MANIFEST.json, SHA256SUMS and, above 2,000 tensors, MANIFEST.rows.jsonl into ``folder``.

    Subfolders are included, with their own manifests and reports as ordinary files; ``.git``, ``.cache`` and
    top-level ``*.sig`` are not. The weights must be sound. A manifest that is there already is replaced, and what it
    knows is kept: earlier releases; source and plan while the weights are the same; digests of the tensors of files
    whose digest is the same. Each file appears whole or stays as it was, SHA256SUMS last.

    Args:
        supersedes: folder, MANIFEST.json or SHA256SUMS of the release that this one replaces.
        follows: folder of an output that this one takes the place of: the earlier releases that its manifest knows
            are kept. One that cannot be read knows none.
        digests: SHA-256 of files (by path) that the caller took while writing them; the others are read.
        tensors: likewise SHA-256 of tensors (by name) of the weights in the folder itself.
        pending: files whose digest is not to be taken; their tensors are listed if ``tensors`` knows them all.
        lineage: ``source`` (``{"files": [{"path", "size_bytes", "sha256"}]}``) and ``plan`` (verb, fingerprint,
            parameters) of those weights.

    Returns:
        Counts, digests (``release_sha256`` is that of SHA256SUMS and pins everything), ``skipped`` paths with the
        reason, ``written`` names and ``findings`` that are not errors.

    Raises:
        ConvertError: broken weights, names that cannot be listed (E_NAME_UNSAFE, E_PATH_CASE, E_NOT_REGULAR), a
            MANIFEST.json of another kind (E_OUT_EXISTS), nothing to list (E_MANIFEST_EMPTY), E_CHANGED, E_WRITE.
    """
    root = Path(folder)
    tree = walk(root)
    listed, skipped = listable(tree)
    known = read_known(root, tree)
    earlier = (*(() if supersedes is None else read_earlier(Path(supersedes))), *_chain_of(follows))
    structure = check_structure(root, listed, listed)
    errors = [item for item in structure.findings if item.severity == "error"]
    if errors:
        raise ConvertError(errors)
    taken = {**(digests or {}), **dict.fromkeys(pending, "")}
    rows = {**known.rows, **given_rows(structure.tensors, taken, tensors or {})}
    stored = {path: refs for path, refs in structure.tensors.items() if taken.get(path) != "" or (path, "") in rows}
    entries = take_inventory(root, listed, stored, rows, taken, workers, progress)
    findings = [item for item in structure.findings if item.severity != "error"]
    document = _with_lineage(Manifest(*entries), lineage, known.own, findings)
    document = _with_earlier(document, earlier, known.own, findings)
    contents = _contents(document)
    if not dry_run:
        replace_files(root, contents)
        if ROWS not in contents:
            remove_file(root, ROWS)
    return _summary(document, contents, skipped, findings)


def _with_lineage(
    document: Manifest, lineage: Mapping[str, Any] | None, own: Manifest | None, findings: list[Finding]
) -> Manifest:
    """Source and plan: the caller's, or those of the manifest before while the weights are the same."""
    if lineage is not None:
        source = [_source_file(item) for item in lineage.get("source", {}).get("files", ())]
        return replace(document, source=tuple(source), plan=dict(lineage.get("plan", {})))
    if own is None or not (own.source or own.plan):
        return document
    was_pending = any(entry.is_pending for entry in own.files)
    if _weights(own.files) != _weights(document.files) and not (was_pending and own.tensors == document.tensors):
        findings.append(finding(
            "W_LINEAGE_DROPPED", "warning", "the weights are not those that the manifest before described; "
            "its source and plan are left out", file=MANIFEST,
        ))  # fmt: skip
        return document
    return replace(document, source=own.source, plan=own.plan)


def _source_file(item: Mapping[str, Any]) -> dict[str, Any]:
    """One source file as a manifest spells it; reports say ``size_bytes`` where a manifest says ``size``."""
    renamed = {"size" if key == "size_bytes" else key: value for key, value in item.items()}
    return {key: renamed[key] for key in SOURCE_KEYS if key in renamed}


def _chain_of(folder: str | os.PathLike[str] | None) -> tuple[EarlierRelease, ...]:
    """Earlier releases that the manifest of ``folder`` knows; none if there is no readable one."""
    if folder is None:
        return ()
    try:
        found = read_manifest(Path(folder))
    except ConvertError:
        return ()
    return () if found is None else found.manifest.supersedes


def _weights(files: Sequence[FileEntry]) -> dict[str, str]:
    """Digests of the weights of the folder itself: what its source and plan are about."""
    return _digests([entry for entry in files if entry.path.endswith(WEIGHT_SUFFIXES) and "/" not in entry.path])


def _with_earlier(
    document: Manifest, earlier: Sequence[EarlierRelease], own: Manifest | None, findings: list[Finding]
) -> Manifest:
    """Earlier releases, the newest first: the given ones, then those that the manifest before knew.

    A release with the very files of this one is not recorded, nor is one twice.
    """
    present = [_digests(document.files)]
    chain = (*earlier, *(own.supersedes if own is not None else ()))
    unique = []
    for release in chain:
        if _digests(release.files) not in present:
            present.append(_digests(release.files))
            unique.append(release)
    if earlier and _digests(earlier[0].files) == present[0]:
        findings.append(finding(
            "W_SUPERSEDES_SAME", "warning", "the earlier release has the same files, so it is not recorded",
            fix="name the release whose files were replaced",
        ))  # fmt: skip
    return replace(document, supersedes=tuple(unique))


def _digests(files: Sequence[FileEntry]) -> dict[str, str]:
    return {entry.path: entry.sha256 for entry in files}


def _contents(document: Manifest) -> dict[str, bytes]:
    """Bytes of the files to write, in the order of writing. What is written is read back strictly first."""
    data, rows = encode_manifest(document)
    try:
        parse_manifest(data, MANIFEST, lambda name: rows or b"")
    except ConvertError as error:
        raise ConvertError(
            [finding("E_SCHEMA", "error", f"the manifest to be written is not sound: {error.findings[0].message}")]
        ) from error
    contents = {MANIFEST: data} if rows is None else {ROWS: rows, MANIFEST: data}
    sums = {entry.path: entry.sha256 for entry in document.files if not entry.is_pending}
    sums.update((name, hashlib.sha256(content).hexdigest()) for name, content in contents.items())
    return {**contents, SUMS: write_sums(sums)}


def _summary(
    document: Manifest, contents: Mapping[str, bytes], skipped: Mapping[str, str], findings: Sequence[Finding]
) -> dict[str, Any]:
    return {
        "files": len(document.files),
        "size_bytes": sum(entry.size_bytes or 0 for entry in document.files),
        "tensors": len(document.tensors),
        "content_id": content_id(document.tensors, named=False) if document.tensors else None,
        "content_id_named": content_id(document.tensors, named=True) if document.tensors else None,
        "pending": [entry.path for entry in document.files if entry.is_pending],
        "supersedes": len(document.supersedes),
        "release_sha256": hashlib.sha256(contents[SUMS]).hexdigest(),
        "written": list(contents),
        "skipped": dict(skipped),
        "findings": [item.as_json() for item in findings],
    }
