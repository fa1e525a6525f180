"""The one place that writes payload bytes: planned files, filled at planned offsets by several threads.

How a run uses this package, from the planned output to the published one::

    place = check_place(out, sources, force=force)                       # place.py, before planning
    check_space(place, plan.output_bytes, reuse=plan.fingerprint if resume else None)
    with stop_on_signals() as stop:                                      # stop.py
        with open_staging(place, plan.fingerprint, resume=resume, keep=keep) as staging:    # staging.py
            with open_sink(staging, plan.files, stop, stamps=stamps, digest_source=digest) as sink:
                # workers, for each tensor that is not in sink.done (name to sha256):
                sink.write_at(file, offset, buffer)
                sink.tensor_done(name, sha256, {input tensor: sha256, …})
                # a reader per file: end = sink.wait_prefix(file, position); sink.read_at(file, position, buffer)
                sink.finish()
            write_small(staging, "config.json", data)                    # staging.py; and side files
            carried = carry_over(staging)                                # publish.py; with --force, else nothing
            # checks, reports, manifest: read and write in staging.files
            published = publish(staging, stop)                           # publish.py

Errors are ``ConvertError`` (E_WRITE, E_NO_SPACE: status 4) or ``Interrupted``. The first error stops the sink:
every later call of every thread raises it again. A failed fsync is never retried: the kernel may have dropped the
bytes already.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from convertkit.checkpoint import FileStamp
from convertkit.containers.safetensors import EncodedHeader
from convertkit.conversion.failures import write_failure
from convertkit.conversion.flusher import PACE, Flusher, Pace, StagedFile
from convertkit.conversion.journal import Entry, Head, start_journal
from convertkit.conversion.resume import DigestSource, Span, entries_to_keep
from convertkit.conversion.spans import Spans
from convertkit.conversion.staging import Staging
from convertkit.conversion.stop import Stop
from convertkit.conversion.syscalls import copy_step, write_all
from convertkit.errors import ConvertError, refusal, shown

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

CHUNK_BYTES = 16 << 20
"""Most bytes in one system call, so that a signal is heard soon."""

POLL_SECONDS = 0.1
"""How long a waiting reader may overlook a signal."""


class WeightFilePlan(Protocol):
    """A file to be written: its plain name, and its header with the place of every tensor."""

    @property
    def name(self) -> str: ...
    @property
    def header(self) -> EncodedHeader: ...


class Sink:
    """Staged weight files, open for writing. Every method may be called from any thread.

    ``done`` are the tensors (name to sha256) that a resumed run has already: they are written and journalled.
    """

    def __init__(self, staging: Staging, places: Mapping[str, Span], stop: Stop, pace: Pace) -> None:
        self.done: dict[str, str] = {}
        self._staging, self._places, self._stop, self._pace = staging, places, stop, pace
        self._files: dict[str, StagedFile] = {}
        self._finished: set[str] = set()
        self._changed = threading.Condition()
        self._failed: ConvertError | None = None
        self._flusher: Flusher | None = None

    def write_at(self, file: str, offset: int, data: ReadableBuffer) -> None:
        """Write C-contiguous ``data`` at byte ``offset`` of ``file``. Each byte of a file is written once.

        Raises ``ConvertError``: E_NO_SPACE, E_WRITE, E_INTERRUPTED; E_INTERNAL for a byte outside the plan.
        """
        view = memoryview(data)
        if view.nbytes == 0:
            return
        view = view.cast("B")
        target = self._files[file]
        if offset < 0 or offset + view.nbytes > target.spans.size_bytes:
            raise self._fail(_internal(f"byte {offset} and {view.nbytes} more do not lie in {shown(file)}"))
        for first in range(0, view.nbytes, CHUNK_BYTES):
            self._check()
            chunk = view[first : first + CHUNK_BYTES]
            try:
                write_all(self._staging.syscalls, target.fd, chunk, offset + first)
            except OSError as error:
                raise self._fail_call(error, target.path) from error
            self._note_written(file, offset + first, chunk.nbytes)

    def copy_at(self, file: str, offset: int, source: int, source_offset: int, size_bytes: int) -> None:
        """Copy bytes of another open file to byte ``offset`` of ``file`` without bringing them into memory.

        Blocks are shared with the source where the filesystem can and both offsets are aligned alike. Raises as
        ``write_at``.
        """
        target = self._files[file]
        if offset < 0 or offset + size_bytes > target.spans.size_bytes:
            raise self._fail(_internal(f"byte {offset} and {size_bytes} more do not lie in {shown(file)}"))
        done = 0
        while done < size_bytes:
            self._check()
            step = copy_step(source_offset + done, size_bytes - done, CHUNK_BYTES)
            try:
                count = self._staging.syscalls.copy_range(source, source_offset + done, target.fd, offset + done, step)
            except OSError as error:
                raise self._fail_call(error, target.path) from error
            self._note_written(file, offset + done, count)
            done += count

    def _note_written(self, file: str, offset: int, count: int) -> None:
        with self._changed:
            try:
                self._files[file].spans.add(offset, offset + count)
            except ValueError as error:
                raise self._fail(_internal(f"{shown(file)}: {error}")) from error
            self._changed.notify_all()
        if self._flusher is not None:
            self._flusher.note_bytes(file, count)

    def tensor_done(self, name: str, sha256: str, sources: Mapping[str, str] | None = None) -> None:
        """All bytes of an output tensor are written; ``sha256`` (hex) is theirs.

        ``sources``: sha256 of the stored bytes of every input tensor it was made from. Without them a resumed
        run trusts the tensor only if every source file still has its stamp.
        """
        self._check()
        file, start, size = self._places[name]
        with self._changed:
            if not self._files[file].spans.covers(start, start + size) or name in self._finished:
                raise self._fail(_internal(f"{shown(name)} is not complete, or complete twice"))
            self._finished.add(name)
        self._live_flusher().note_tensor(Entry(name, sha256, size, dict(sources or {})))

    def wait_prefix(self, file: str, beyond: int) -> int:
        """Wait until more than ``beyond`` bytes from the start of ``file`` are written, or all are; how many.

        Raises what stopped the sink, so a reader never waits for a dead writer.
        """
        spans = self._files[file].spans
        with self._changed:
            while True:
                self._check()
                if spans.prefix > beyond or spans.prefix == spans.size_bytes:
                    return spans.prefix
                self._changed.wait(POLL_SECONDS)

    def read_at(self, file: str, offset: int, buffer: WriteableBuffer) -> int:
        """Read staged bytes into ``buffer``; how many (fewer only at the end of the file). For the hashing reader."""
        self._check()
        target = self._files[file]
        try:
            return os.preadv(target.fd, [buffer], offset)
        except OSError as error:
            raise self._fail_call(error, target.path) from error

    def abort(self, error: ConvertError) -> None:
        """Stop every thread that uses the sink: its next call raises ``error``. For failures outside the sink."""
        self._fail(error)

    def finish(self) -> None:
        """Check that every planned byte and tensor is there, and put all of it on the disk."""
        flusher = self._live_flusher()
        flusher.join()
        self._check()
        for target in self._files.values():
            if target.spans.prefix != target.spans.size_bytes:
                raise self._fail(_internal(f"{target.path.name} has bytes that were never written"))
        if len(self._finished) != len(self._places):
            raise self._fail(_internal("a tensor was never declared complete"))
        for target in self._files.values():
            try:
                self._staging.syscalls.fsync(target.fd)
            except OSError as error:
                raise self._fail_call(error, target.path) from error
        flusher.flush()

    def _live_flusher(self) -> Flusher:
        if self._flusher is None:
            raise _internal("the sink is not open")
        return self._flusher

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed
        self._stop.check()

    def _fail(self, error: ConvertError) -> ConvertError:
        """Record the first error; that is the one to raise."""
        with self._changed:
            self._failed = self._failed or error
            self._changed.notify_all()
            return self._failed

    def _fail_call(self, error: OSError, path: Path) -> ConvertError:
        return self._fail(write_failure(error, path, self._missing_bytes()))

    def _missing_bytes(self) -> int:
        with self._changed:
            return sum(item.spans.size_bytes - item.spans.written_bytes for item in self._files.values())

    def _open(self, plans: Sequence[WeightFilePlan], kept: Sequence[Entry], head: Head) -> None:
        """Open and reserve every file, write the headers, note what a resumed run has already, start the journal."""
        syscalls = self._staging.syscalls
        for plan in plans:
            path, size = self._staging.files / plan.name, plan.header.size_bytes
            try:
                fd = syscalls.open(str(path), os.O_RDWR | os.O_CREAT)
                self._files[plan.name] = StagedFile(path, fd, Spans(size))
                if os.fstat(fd).st_size > size:
                    syscalls.truncate(fd, size)
                syscalls.allocate(fd, size)
            except OSError as error:
                raise self._fail_call(error, path) from error
        for plan in plans:
            self.write_at(plan.name, 0, plan.header.prefix)
            for offset, length in plan.header.gaps:
                self.write_at(plan.name, offset, bytes(length))
        for entry in kept:
            file, start, size = self._places[entry.name]
            self._files[file].spans.add(start, start + size)
            self._finished.add(entry.name)
            self.done[entry.name] = entry.sha256
        try:
            journal = start_journal(syscalls, self._staging.journal, head, kept)
        except OSError as error:
            raise self._fail_call(error, self._staging.journal) from error
        self._staging.tensors_done, self._staging.tensors_planned = len(kept), len(self._places)
        self._flusher = Flusher(self._staging, self._files, journal, self._pace, self._fail_call)

    def _close(self) -> None:
        if self._flusher is not None:
            self._flusher.close()
        for target in self._files.values():
            try:
                self._staging.syscalls.close(target.fd)
            except OSError as error:
                self._fail_call(error, target.path)


@contextmanager
def open_sink(
    staging: Staging,
    files: Iterable[WeightFilePlan],
    stop: Stop,
    *,
    stamps: Mapping[str, FileStamp] | None = None,
    digest_source: DigestSource | None = None,
    workers: int = 1,
    pace: Pace = PACE,
) -> Iterator[Sink]:
    """Create the planned files in ``staging`` (or continue a resumed run's) with their headers written.

    ``stamps``: the source files as they are now. ``digest_source(name)``: sha256 of an input tensor's stored
    bytes, needed on resume if ``tensor_done`` was given ``sources``. ``finish`` must be called before the end of
    the block. Raises ``ConvertError`` as ``Sink.write_at``, and E_RESUME.
    """
    plans = list(files)
    places = {
        spec.name: (plan.name, plan.header.starts[spec.name], spec.size_bytes)
        for plan in plans for spec in plan.header.order
    }  # fmt: skip
    stamps = stamps or {}
    kept: list[Entry] = []
    if staging.resumed:
        names = {plan.name for plan in plans}
        kept = entries_to_keep(staging, names, places, stamps, digest_source, stop, workers)
    sink = Sink(staging, places, stop, pace)
    try:
        sink._open(plans, kept, Head(staging.fingerprint, os.stat(staging.files).st_ino, stamps))
        yield sink
    finally:
        sink._close()
    if sink._failed is not None:
        raise sink._failed


def _internal(message: str) -> ConvertError:
    return refusal("E_INTERNAL", message)
