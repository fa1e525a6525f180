"""Making finished tensors durable while the run goes on: data first, then the journal lines that speak of it.

The background thread also starts the disk early, so the end of a run has little left to wait for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from convertkit.conversion.journal import Entry, Journal
from convertkit.conversion.spans import Spans
from convertkit.conversion.staging import Staging
from convertkit.errors import ConvertError


@dataclass(frozen=True, slots=True)
class Pace:
    """How often finished tensors are made durable: after so many seconds, or so many new bytes.

    With ``seconds`` 0 that happens as soon as a tensor is finished, in the thread that says so.
    """

    seconds: float = 1.0
    size_bytes: int = 256 << 20


PACE = Pace()
"""A second of work is little to lose, and one journal line set a second costs nothing that can be measured."""


@dataclass
class StagedFile:
    """An open staged file and which of its bytes are written."""

    path: Path
    fd: int
    spans: Spans


@dataclass
class _Backlog:
    """What is not durable yet."""

    entries: list[Entry] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    size_bytes: int = 0


class Flusher:
    """Collects what is written and finished, and flushes it at its pace. ``fail`` is told of errors."""

    def __init__(
        self,
        staging: Staging,
        files: Mapping[str, StagedFile],
        journal: Journal,
        pace: Pace,
        fail: Callable[[OSError, Path], ConvertError],
    ) -> None:
        self._staging, self._files, self._journal, self._pace, self._fail = staging, files, journal, pace, fail
        self._backlog = _Backlog()
        self._due = threading.Condition()
        self._flushing = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True) if pace.seconds > 0 else None
        if self._thread is not None:
            self._thread.start()

    def note_bytes(self, file: str, count: int) -> None:
        """``count`` new bytes of ``file`` are written."""
        with self._due:
            self._backlog.files.add(file)
            self._backlog.size_bytes += count
            if self._backlog.size_bytes >= self._pace.size_bytes:
                self._due.notify()

    def note_tensor(self, entry: Entry) -> None:
        """A tensor is finished: its bytes were noted before."""
        with self._due:
            self._backlog.entries.append(entry)
        if self._thread is None:
            self.flush()

    def flush(self) -> None:
        """Put everything noted so far on the disk. Raises what ``fail`` gives back for an ``OSError``."""
        with self._flushing:
            with self._due:
                backlog, self._backlog = self._backlog, _Backlog()
            path = self._staging.journal
            try:
                for name in sorted(backlog.files):
                    path = self._files[name].path
                    self._staging.syscalls.fdatasync(self._files[name].fd)
                path = self._staging.journal
                if backlog.entries:
                    self._journal.append(backlog.entries)
                    self._staging.tensors_done += len(backlog.entries)
            except OSError as error:
                with self._due:  # the bytes may be whole: a stopped run still lists these, and a resume hashes them
                    self._backlog.entries[:0] = backlog.entries
                raise self._fail(error, path) from error

    def join(self) -> None:
        """End the background thread; what it was doing is done first."""
        with self._due:
            self._closing = True
            self._due.notify()
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """End the thread, list finished tensors that are not listed yet without waiting for the disk, close."""
        self.join()
        with suppress(OSError):
            self._journal.append(self._backlog.entries, durable=False)
            self._staging.tensors_done += len(self._backlog.entries)
        try:
            self._journal.close()
        except OSError as error:
            self._fail(error, self._staging.journal)

    def _run(self) -> None:
        while True:
            with self._due:
                self._due.wait_for(self._is_due, self._pace.seconds)
                if self._closing:
                    return
                if not self._backlog.entries and self._backlog.size_bytes < self._pace.size_bytes:
                    continue
            try:
                self.flush()
            except ConvertError:  # recorded by ``fail``: the writers raise it
                return

    def _is_due(self) -> bool:
        return self._closing or self._backlog.size_bytes >= self._pace.size_bytes
