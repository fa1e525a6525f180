"""A folder as it lies on the disk, without a judgement: what engines choose their weights and configs from.

Opening a checkpoint (``containers.folder``) refuses whatever two readers could understand differently. Engines do not:
they take each file with the reader that they have. Here files are read with the same readers, Python's JSON parser and
the safetensors library, so that an audit can say what becomes of a folder that convertkit itself would not convert.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convertkit.checkpoint import Checkpoint, TensorSpec, WeightFile
from convertkit.containers.files import read_small
from convertkit.containers.folder import CONFIG, INDEX_SUFFIX, MASK_EMBEDDING, QUANT_CONFIG, WEIGHTS
from convertkit.containers.safetensors import Header
from convertkit.containers.shards import open_weights
from convertkit.errors import ConvertError, shown


@dataclass(frozen=True)
class StoredFolder:
    """``files`` maps weight files to what the safetensors library finds in them, ``unreadable`` to why it cannot.
    ``documents`` are the JSON files by name, ``faults`` those that Python cannot parse, with its message. ``opened``
    are the weight files that convertkit's own reader accepts too."""

    root: Path
    files: Mapping[str, tuple[TensorSpec, ...]]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    documents: Mapping[str, Any] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    opened: Mapping[str, tuple[WeightFile, Header]] = field(default_factory=dict)
    mask_embedding: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Weight files, whether they can be read or not."""
        return tuple(sorted({*self.files, *self.unreadable}))

    def document(self, name: str) -> Mapping[str, Any]:
        """The JSON object in a file, empty if there is none."""
        found = self.documents.get(name)
        return found if isinstance(found, Mapping) else {}


def read_folder(checkpoint: Checkpoint) -> StoredFolder:
    """The folder of an opened checkpoint: its headers are not read again, weight files that are not part of it are."""
    return read_any_folder(checkpoint.root, _by_file(checkpoint))


def planned_folder(checkpoint: Checkpoint) -> StoredFolder:
    """The folder that a plan will make (``conversion.foreseen``): with an index if it has several weight files."""
    files = _by_file(checkpoint)
    documents: dict[str, Any] = {CONFIG: checkpoint.config, QUANT_CONFIG: checkpoint.quant_config}
    if len(files) > 1:
        documents[f"model{INDEX_SUFFIX}"] = {"weight_map": {name: name for name in files}, "metadata": {}}
    return StoredFolder(
        checkpoint.root, files, documents=documents, mask_embedding=MASK_EMBEDDING in checkpoint.side_files
    )


def _by_file(checkpoint: Checkpoint) -> dict[str, tuple[TensorSpec, ...]]:
    by_file: dict[str, list[TensorSpec]] = {file.name: [] for file in checkpoint.files}
    for ref in checkpoint.tensors.values():
        by_file[ref.file].append(ref.spec)
    return {name: _in_order(specs) for name, specs in by_file.items()}


def read_any_folder(root: Path, known: Mapping[str, tuple[TensorSpec, ...]] | None = None) -> StoredFolder:
    """Headers and JSON of a folder, whatever state it is in; ``known`` are weight files that were read before. Raises
    OSError if it cannot be listed."""
    names = sorted(name for name in os.listdir(root) if not _hidden(name))
    opened: dict[str, tuple[WeightFile, Header]] = {}
    files = {name: specs for name, specs in (known or {}).items() if not _hidden(name)}
    unreadable: dict[str, str] = {}
    for name in names:
        if not name.endswith(WEIGHTS) or name in files:
            continue
        try:
            opened[name] = open_weights(root, name)
            files[name] = _in_order(ref.spec for ref in opened[name][1].tensors.values())
        except ConvertError:
            found = _by_library(root / name)
            if isinstance(found, str):
                unreadable[name] = found
            else:
                files[name] = found
    documents, faults = _documents(root, names)
    return StoredFolder(root, files, unreadable, documents, faults, opened, MASK_EMBEDDING in names)


def _hidden(name: str) -> bool:
    """Engines list a folder by glob, which passes these over."""
    return name.startswith(".")


def _in_order(specs: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    return tuple(sorted(specs, key=lambda spec: spec.name))


def _by_library(path: Path) -> tuple[TensorSpec, ...] | str:
    """What the safetensors library finds in a file that convertkit refuses, or what it says of it."""
    from safetensors import SafetensorError, safe_open

    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return "not a regular file"
        with safe_open(path, framework="numpy") as opened:
            slices = ((name, opened.get_slice(name)) for name in opened.keys())  # noqa: SIM118 - not a mapping
            return _in_order(TensorSpec(name, part.get_dtype(), tuple(part.get_shape())) for name, part in slices)
    except (SafetensorError, OSError, ValueError) as error:
        return shown(error)


def _documents(root: Path, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The JSON files that decide what is loaded, as Python parses them, and what it says of those that it cannot."""
    documents: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name in names:
        if name not in (CONFIG, QUANT_CONFIG) and not name.endswith(INDEX_SUFFIX):
            continue
        try:
            documents[name] = json.loads(read_small(root, name).decode("utf-8"))
        except ConvertError as error:
            faults[name] = error.findings[0].message
        except (ValueError, RecursionError) as error:
            faults[name] = shown(error)
    return documents, faults
