"""What a run writes to, and how each tensor gets there: its bytes in order, with their digest.

Bytes that are copied are read back from the file right behind the write and compared with the source's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from convertkit.checkpoint import TensorSpec
from convertkit.conversion.desk import Desk
from convertkit.conversion.plan import Plan
from convertkit.conversion.survey import Facts
from convertkit.conversion.tiles import bytes_view
from convertkit.errors import refusal


class Target(Protocol):
    """Where bytes go: the part of the sink that units use."""

    def write_at(self, file: str, offset: int, data: memoryview) -> None: ...

    def copy_at(self, file: str, offset: int, source: int, source_offset: int, size_bytes: int) -> None: ...

    def read_at(self, file: str, offset: int, buffer: memoryview) -> int: ...

    def tensor_done(self, name: str, sha256: str, sources: Mapping[str, str] | None = None) -> None: ...


@dataclass(frozen=True)
class Job:
    """One run: its plan, facts, desk and target, where each output tensor starts in its file, the digests of tensors
    that an interrupted run has made already, and those of source tensors that somebody has taken.

    ``differing`` is filled by the run: for each copied tensor the bytes of the file that are not the source's."""

    plan: Plan
    facts: Facts
    desk: Desk
    target: Target
    starts: Mapping[str, int]
    done: Mapping[str, str]
    known: Mapping[str, str] = field(default_factory=dict)
    differing: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Made:
    """SHA-256 of every output tensor by name, and for each copied one how many bytes of the file differ from the
    source's. A copied tensor whose digest is not the one that was known before counts as differing."""

    digests: Mapping[str, str]
    differing: Mapping[str, int]


class TensorOut:
    """Writes one output tensor from its first byte to its last and takes its digest on the way.

    A tensor that an interrupted run made already, but not the others of its unit, is made again and not written:
    it must come out the same. ``copied``: the bytes given are the source's, so the file must hold them, which is
    looked at right behind each write; ``known`` is the digest that they must have, if it was taken before.
    """

    def __init__(self, job: Job, spec: TensorSpec, *, copied: bool = False, known: str | None = None) -> None:
        self.spec = spec
        self._copied = copied
        self._known = known
        self._differing = 0
        self._job = job
        self._file = job.plan.file_of[spec.name]
        self._position = job.starts[spec.name]
        self._digest = hashlib.sha256()
        self._kept = job.done.get(spec.name)

    def write(self, data: memoryview) -> None:
        if self._kept is None:
            self._job.target.write_at(self._file, self._position, data)
        self._digest.update(data)
        if self._copied:
            back = bytes_view(self._job.desk.buffers.take("written", "|u1", (len(data),)))
            self._differing += read_and_compare(self._job.target, self._file, self._position, back, data)
        self._position += len(data)

    def close(self, copied_from: str | None = None) -> str:
        """Tell the target that the tensor is complete; its SHA-256, which is also that of ``copied_from``."""
        written = self._position - self._job.starts[self.spec.name]
        if written != self.spec.size_bytes:
            raise RuntimeError(f"{self.spec.name}: {written} bytes made, {self.spec.size_bytes} planned")
        digest = self._digest.hexdigest()
        if self._copied:
            self._job.differing[self.spec.name] = self._differing or int(self._known not in (None, digest))
        if self._kept not in (None, digest):
            raise refusal("E_RESUME", "the interrupted run made another tensor of this name: the source has changed",
                          tensor=self.spec.name, fix="run again without --resume")  # fmt: skip
        if self._kept is None:
            self._job.target.tensor_done(self.spec.name, digest, None if copied_from is None else {copied_from: digest})
        return digest


def read_and_compare(target: Target, file: str, offset: int, back: memoryview, data: memoryview) -> int:
    """Read a written file from ``offset`` into ``back``; how many of the bytes are not those of ``data``."""
    if target.read_at(file, offset, back) != len(data):
        return len(data)
    return _differing_bytes(back, data)


def _differing_bytes(left: memoryview, right: memoryview) -> int:
    """Of two runs of equal length."""
    mine, yours = np.frombuffer(left, np.uint8), np.frombuffer(right, np.uint8)
    words = mine.size // 8 * 8
    if np.array_equal(mine[:words].view(np.uint64), yours[:words].view(np.uint64)) and np.array_equal(
        mine[words:], yours[words:]
    ):
        return 0
    return int(np.count_nonzero(mine != yours))
