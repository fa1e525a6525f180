"""Signals become one exception, so that a verb can put its staging folder in order before the command ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

CAUGHT = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupted(KeyboardInterrupt):
    """A signal asks the command to stop. A ``KeyboardInterrupt``, so whoever handles Ctrl-C handles all of them."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"interrupted by {signal.Signals(number).name}")


_received: list[int] = []


def last_signal() -> int | None:
    """The signal that interrupted this process; None when none did, or a verb heard it itself."""
    return _received[-1] if _received else None


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    _received.append(number)
    signal.signal(number, signal.SIG_DFL)  # a second signal of the kind ends the process at once
    raise Interrupted(number)


@contextmanager
def raised_signals() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise ``Interrupted`` while the block runs.

    A signal that the parent had set to be ignored (``nohup``, a shell's background job) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in CAUGHT}
    ours = [number for number, action in before.items() if action not in (signal.SIG_IGN, None)]
    for number in ours:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])
