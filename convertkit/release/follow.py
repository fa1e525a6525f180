"""Digests of files while they are read or written: one sequential reader behind the work, in its own thread."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from convertkit.checkpoint import TensorSpec
from convertkit.containers.files import read_into
from convertkit.containers.reader import Reader
from convertkit.conversion.plan import PlannedFile

CHUNK_BYTES = 1 << 20


class Written(Protocol):
    """The part of the sink that a follower uses."""

    def wait_prefix(self, file: str, beyond: int) -> int: ...

    def read_at(self, file: str, offset: int, buffer: memoryview) -> int: ...


@dataclass(frozen=True)
class Followed:
    """SHA-256 of the staged files, and of the tensors that were asked for, as they are on the disk."""

    files: Mapping[str, str]
    tensors: Mapping[str, str]


class Background:
    """One thread beside the work. Leaving the block without ``result`` tells its job to stop."""

    def __init__(self, job: Callable[[threading.Event], Any]) -> None:
        self._halt = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="digest")
        self._future: Future[Any] = self._pool.submit(job, self._halt)

    def __enter__(self) -> Background:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._halt.set()
        self._pool.shutdown(wait=True)

    def result(self) -> Any:
        return self._future.result()


def source_digests(reader: Reader, halt: threading.Event) -> dict[str, str]:
    """SHA-256 of every weight file of a source, one after the other."""
    buffer = memoryview(bytearray(CHUNK_BYTES))
    digests: dict[str, str] = {}
    for file in reader.checkpoint.files:
        digest = hashlib.sha256()
        for offset in range(0, file.size_bytes, CHUNK_BYTES):
            if halt.is_set():
                return digests
            part = buffer[: min(CHUNK_BYTES, file.size_bytes - offset)]
            read_into(reader.fd(file.name), offset, part, file.name)
            digest.update(part)
        digests[file.name] = digest.hexdigest()
    return digests


def follow(written: Written, files: Sequence[PlannedFile], wanted: Iterable[str], halt: threading.Event) -> Followed:
    """Read every staged file behind its completed prefix; digests of the files and of the ``wanted`` tensors."""
    asked = frozenset(wanted)
    file_digests: dict[str, str] = {}
    tensor_digests: dict[str, str] = {}
    buffer = memoryview(bytearray(CHUNK_BYTES))
    for file in files:
        whole = hashlib.sha256()
        for size, spec in _pieces(file):
            one = hashlib.sha256() if spec is not None and spec.name in asked else None
            for offset, length in _steps(*size):
                written.wait_prefix(file.name, offset + length - 1)
                if halt.is_set():
                    return Followed(file_digests, tensor_digests)
                part = buffer[:length]
                got = written.read_at(file.name, offset, part)
                if got != length:
                    raise RuntimeError(f"{file.name}: staged file is shorter than its completed prefix")
                whole.update(part)
                if one is not None:
                    one.update(part)
            if one is not None and spec is not None:
                tensor_digests[spec.name] = one.hexdigest()
        file_digests[file.name] = whole.hexdigest()
    return Followed(file_digests, tensor_digests)


def _pieces(file: PlannedFile) -> Iterable[tuple[tuple[int, int], TensorSpec | None]]:
    """((first byte, end), tensor or None for header and padding) in file order."""
    yield (0, len(file.header.prefix)), None
    gaps = dict(file.header.gaps)
    for spec in file.header.order:
        start = file.header.starts[spec.name]
        end = start + spec.size_bytes
        yield (start, end), spec
        if end in gaps:
            yield (end, end + gaps[end]), None


def _steps(first: int, end: int) -> Iterable[tuple[int, int]]:
    for offset in range(first, end, CHUNK_BYTES):
        yield offset, min(CHUNK_BYTES, end - offset)
