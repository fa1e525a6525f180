"""Digests of files while they are read or written: one sequential reader behind the work, in its own thread."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Protocol

from convertkit.containers.files import read_into
from convertkit.containers.reader import Reader
from convertkit.conversion.plan import PlannedFile

CHUNK_BYTES = 1 << 20


class Written(Protocol):
    """The part of the sink that a follower uses."""

    def wait_prefix(self, file: str, beyond: int) -> int: ...

    def read_at(self, file: str, offset: int, buffer: memoryview) -> int: ...


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


def follow(written: Written, files: Sequence[PlannedFile], halt: threading.Event) -> dict[str, str]:
    """Read every staged file behind its completed prefix; SHA-256 by name of the files as they lie there."""
    digests: dict[str, str] = {}
    buffer = memoryview(bytearray(CHUNK_BYTES))
    for file in files:
        digest = hashlib.sha256()
        position, size = 0, file.header.size_bytes
        while position < size:
            end = written.wait_prefix(file.name, position)
            while position < end:
                if halt.is_set():
                    return digests
                part = buffer[: min(CHUNK_BYTES, end - position)]
                if written.read_at(file.name, position, part) != len(part):
                    raise RuntimeError(f"{file.name}: staged file is shorter than its completed prefix")
                digest.update(part)
                position += len(part)
        digests[file.name] = digest.hexdigest()
    return digests
