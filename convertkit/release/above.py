"""Manifests in the folders above one that is changed in place: what they list of it must not go on stating old digests.

A release may hold a whole checkpoint in a subfolder (the seeds' ``bf16/``), listed by the manifest of its root.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from convertkit.containers.files import read_small
from convertkit.errors import ConvertError
from convertkit.layouts.renames import Renaming
from convertkit.release.manifest import Manifest
from convertkit.release.manifest_reader import read_manifest
from convertkit.release.paths import MANIFEST, SUMS
from convertkit.release.recorded import renamed_records
from convertkit.release.sums import read_sums

Weights = Mapping[str, tuple[int, str]]
Contents = Mapping[str, bytes | None]


def covering(root: Path, names: list[str]) -> tuple[Path, ...]:
    """The folders above ``root``, the nearest first, whose MANIFEST.json or SHA256SUMS lists one of its files
    ``names``, or the manifest of such a folder. One that cannot be read states nothing that anybody could believe."""
    home = root.resolve()
    changed = {home / name for name in (*names, MANIFEST, SUMS)}
    found = []
    for folder in home.parents:
        listed = _listed(folder)
        if any(folder / path in changed for path in listed):
            found.append(folder)
            changed |= {folder / MANIFEST, folder / SUMS}
    return tuple(found)


def _listed(folder: Path) -> set[str]:
    try:
        manifest = _manifest(folder)
        if manifest is not None:
            return {entry.path for entry in manifest.files}
        return set(read_sums(read_small(folder, SUMS))) if os.path.lexists(folder / SUMS) else set()
    except ConvertError:
        return set()


def _manifest(folder: Path) -> Manifest | None:
    return read_manifest(folder).manifest if os.path.lexists(folder / MANIFEST) else None


def records_above(
    root: Path, folders: tuple[Path, ...], renaming: Renaming, weights: Weights, changed: Contents
) -> dict[str, bytes | None]:
    """Contents of the manifests' own files in ``folders``, by their path from ``root`` (``../MANIFEST.json``).

    ``weights`` and ``changed`` are files of ``root``, as for ``renamed_records``; a changed manifest is in turn a
    changed file for the folders above it.
    """
    home = root.resolve()
    contents = {home / name: data for name, data in changed.items()}
    made: dict[str, bytes | None] = {}
    for folder in folders:
        inside = home.relative_to(folder)
        here = {path.relative_to(folder).as_posix(): data for path, data in contents.items()}
        moved = {(inside / name).as_posix(): row for name, row in weights.items()}
        own = renamed_records(folder, _manifest(folder), renaming, moved, here, None)
        contents.update((folder / name, data) for name, data in own.items())
        made.update(("../" * len(inside.parts) + name, data) for name, data in own.items())
    return made
