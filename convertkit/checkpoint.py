"""The vocabulary of a checkpoint on disk: what a tensor is, where its bytes are, what lies beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convertkit.dtypes import elements, size_bytes
from convertkit.errors import Finding


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, storage dtype (a row of ``STORED_TYPES``) and shape of a tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return elements(self.shape)

    @property
    def size_bytes(self) -> int:
        return size_bytes(self.dtype, self.shape)


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A stored tensor: its spec, the weight file (name inside the folder) and its first byte in that file."""

    spec: TensorSpec
    file: str
    start: int

    @property
    def size_bytes(self) -> int:
        return self.spec.size_bytes


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What must not change while a source is read."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One weight file: name inside the folder, stamp at opening, first payload byte, header metadata."""

    name: str
    stamp: FileStamp
    data_start: int
    metadata: Mapping[str, str]

    @property
    def size_bytes(self) -> int:
        return self.stamp.size_bytes


@dataclass(frozen=True)
class Checkpoint:
    """An opened folder (or single file): headers and JSON read, no weight read.

    ``config`` and ``quant_config`` are ``config.json`` and ``hf_quant_config.json`` (empty if absent).
    ``side_files`` are top-level regular files that travel with a conversion; ``skipped`` maps the names of
    other entries (weights of other formats, reports, manifests, folders) to the reason they do not.
    ``is_file`` says that one weight file was opened, without the folder around it, ``planned`` that the files are not
    there yet. ``metadata`` are the typed
    key-value pairs of a GGUF (``containers.gguf_values``).
    """

    root: Path
    container: str
    files: tuple[WeightFile, ...]
    tensors: Mapping[str, TensorRef]
    config: Mapping[str, Any] = field(default_factory=dict)
    quant_config: Mapping[str, Any] = field(default_factory=dict)
    side_files: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    is_file: bool = False
    planned: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def paths(self) -> tuple[Path, ...]:
        """What the user named: the folder, or the one file."""
        return tuple(self.root / file.name for file in self.files) if self.is_file else (self.root,)

    @property
    def weight_bytes(self) -> int:
        return sum(ref.size_bytes for ref in self.tensors.values())
