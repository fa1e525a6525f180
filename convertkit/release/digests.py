"""SHA-256 of files and of tensor ranges, streamed by a pool of threads.

``hashlib`` and ``os.preadv`` let other threads run, so as many threads as cores hash at full speed. Memory is
one buffer per thread. A file digest is sequential by nature; the ranges of its tensors are hashed beside it.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from convertkit.checkpoint import Checkpoint, FileStamp, TensorRef
from convertkit.containers.files import open_regular, read_into, stamp_of
from convertkit.errors import ConvertError, Finding, refusal
from convertkit.progress import SILENT, Progress
from convertkit.workers import worker_count

BUFFER_BYTES = 1 << 20
BATCH_BYTES = 64 << 20
"""Neighbouring tensors are hashed by one job until they have this many bytes together."""


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Size in bytes and SHA-256 (64 lower-case hex digits) of one file, and the stamp it had while it was read."""

    size_bytes: int
    sha256: str
    stamp: FileStamp


@dataclass(frozen=True)
class Digests:
    """What ``sha256_all`` found: digests by path and by (path, tensor name), and a finding for each failure."""

    files: Mapping[str, FileDigest] = field(default_factory=dict)
    tensors: Mapping[tuple[str, str], str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


class Stopped(Exception):
    """Another thread failed or the user interrupted: the job ends without a result."""


def sha256_range(
    fd: int, first_byte: int, size_bytes: int, name: str, on_bytes: Callable[[int], None] | None = None
) -> str:
    """Hex SHA-256 of ``size_bytes`` from ``first_byte`` of an open file called ``name`` in errors.

    ``on_bytes`` is told of every part read and may raise to stop. Raises ``E_READ`` or ``E_CHANGED``.
    """
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(BUFFER_BYTES, size_bytes)))
    done = 0
    while done < size_bytes:
        part = buffer[: size_bytes - done]
        read_into(fd, first_byte + done, part, name)
        digest.update(part)
        done += len(part)
        if on_bytes is not None:
            on_bytes(len(part))
    return digest.hexdigest()


def sha256_file(root: Path, name: str, on_bytes: Callable[[int], None] | None = None) -> FileDigest:
    """Digest of the regular file ``root/name``.

    Raises the codes of ``open_regular`` and ``E_CHANGED`` if size, mtime or identity changed meanwhile.
    """
    fd = open_regular(root, name)
    try:
        before = stamp_of(fd)
        sha256 = sha256_range(fd, 0, before.size_bytes, name, on_bytes)
        assert_same(before, stamp_of(fd), name)
        return FileDigest(before.size_bytes, sha256, before)
    finally:
        os.close(fd)


def assert_same(before: FileStamp, after: FileStamp, name: str) -> None:
    """``E_CHANGED`` unless both stamps are equal."""
    if before != after:
        raise refusal(
            "E_CHANGED", "the file changed while it was read", file=name,
            fix="run again when nothing writes to the folder",
        )  # fmt: skip


def sha256_files(
    root: Path, names: Iterable[str], workers: int = 0, progress: Progress = SILENT
) -> dict[str, FileDigest]:
    """Digests of several files of a folder; raises one ``ConvertError`` with every failure."""
    found = sha256_all(root, dict.fromkeys(names, 0), {}, workers, progress)
    if found.findings:
        raise ConvertError(found.findings)
    return dict(found.files)


def sha256_opened(
    checkpoint: Checkpoint, names: Iterable[str], workers: int = 0, progress: Progress = SILENT
) -> dict[str, FileDigest]:
    """Digests of the weight files of a checkpoint, then of the files ``names`` beside them. Raises as ``sha256_files``,
    and ``E_CHANGED`` for a weight file that is not the one that was opened."""
    found = sha256_files(checkpoint.root, [*(file.name for file in checkpoint.files), *names], workers, progress)
    for file in checkpoint.files:
        assert_same(file.stamp, found[file.name].stamp, file.name)
    return found


def sha256_all(
    root: Path,
    files: Mapping[str, int],
    tensors: Mapping[str, Sequence[TensorRef]],
    workers: int = 0,
    progress: Progress = SILENT,
) -> Digests:
    """Digests of ``files`` (path to size in bytes, 0 if unknown) and of ``tensors`` (path to its tensors).

    Nothing is raised for a file that cannot be read: that is a finding. The largest file starts first, and its
    tensors are hashed at the same time so that both find the same pages in memory.
    """
    paths = sorted({*files, *tensors}, key=lambda path: (-files.get(path, 0), path))
    tensor_bytes = sum(ref.size_bytes for refs in tensors.values() for ref in refs)
    progress.stage("hash", sum(files.values()) + tensor_bytes)
    stop = threading.Event()

    def advance(size_bytes: int) -> None:
        if stop.is_set():
            raise Stopped
        progress.advance(size_bytes)

    file_jobs: dict[str, Future[FileDigest]] = {}
    range_jobs: list[Future[dict[tuple[str, str], str]]] = []
    with ThreadPoolExecutor(worker_count(workers), thread_name_prefix="sha256") as pool:
        try:
            for path in paths:
                if path in files:
                    file_jobs[path] = pool.submit(sha256_file, root, path, advance)
                for batch in batches(tensors.get(path, ())):
                    range_jobs.append(pool.submit(_sha256_batch, root, path, batch, advance))
            result = _gather(file_jobs, range_jobs)
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    progress.done()
    return result


def batches(refs: Iterable[TensorRef]) -> Iterator[list[TensorRef]]:
    """Tensors of one file in the order of their bytes, in groups of about ``BATCH_BYTES``."""
    batch: list[TensorRef] = []
    size_bytes = 0
    for ref in sorted(refs, key=lambda ref: (ref.start, ref.spec.name)):
        batch.append(ref)
        size_bytes += ref.size_bytes
        if size_bytes >= BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def _sha256_batch(
    root: Path, path: str, refs: Sequence[TensorRef], on_bytes: Callable[[int], None]
) -> dict[tuple[str, str], str]:
    fd = open_regular(root, path)
    try:
        before = stamp_of(fd)
        found = {
            (path, ref.spec.name): sha256_range(fd, ref.start, ref.size_bytes, path, on_bytes) for ref in refs
        }  # fmt: skip
        assert_same(before, stamp_of(fd), path)
        return found
    finally:
        os.close(fd)


def _gather(
    file_jobs: Mapping[str, Future[FileDigest]], range_jobs: Iterable[Future[dict[tuple[str, str], str]]]
) -> Digests:
    files: dict[str, FileDigest] = {}
    tensors: dict[tuple[str, str], str] = {}
    findings: list[Finding] = []
    for path, job in file_jobs.items():
        try:
            files[path] = job.result()
        except ConvertError as error:
            findings.extend(error.findings)
    for batch in range_jobs:
        try:
            tensors.update(batch.result())
        except ConvertError as error:
            findings.extend(item for item in error.findings if item not in findings)
    return Digests(files, tensors, tuple(findings))
