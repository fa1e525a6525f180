"""Progress bars on stderr, for a person who watches: nothing is shown when stderr is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from convertkit.progress import SILENT, Progress

if TYPE_CHECKING:
    import rich.progress


class Bars:
    """One bar per stage, drawn by rich. rich takes its own lock, so any thread may call."""

    def __init__(self, screen: rich.progress.Progress, title: str = "") -> None:
        self._screen = screen
        self._title = title
        self._task: rich.progress.TaskID | None = None

    def stage(self, name: str, total_bytes: int) -> None:
        self.done()
        self._task = self._screen.add_task(f"{self._title} {name}".strip(), total=total_bytes or None)

    def advance(self, size_bytes: int) -> None:
        if self._task is not None:
            self._screen.advance(self._task, size_bytes)

    def done(self) -> None:
        if self._task is not None:
            self._screen.remove_task(self._task)
            self._task = None

    def apart(self, title: str) -> Progress:
        return Bars(self._screen, title)


@contextmanager
def shown_progress(wanted: bool) -> Iterator[Progress]:
    """Bars while the block runs, erased at its end; silence unless wanted and stderr is a terminal."""
    if not wanted or sys.stderr is None or not sys.stderr.isatty():
        yield SILENT
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=5) as screen:
        yield Bars(screen)
