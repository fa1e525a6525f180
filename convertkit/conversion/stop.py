"""Stopping on a signal: the handler only notes it, the work stops at its next chunk.

A handler that raised would tear whatever line it hits. Workers call ``Stop.check`` between chunks; the sink
does so in every call.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from convertkit.errors import ConvertError, Finding, finding

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupted(ConvertError):
    """A signal asked the run to stop. Exit status 128 + signal number (130, 143, 129)."""

    def __init__(self, signum: int, notes: Iterable[Finding] = ()) -> None:
        name = signal.Signals(signum).name
        super().__init__([finding("E_INTERRUPTED", "error", f"stopped by {name}"), *notes], 128 + signum)
        self.signum = signum


class Stop:
    """Whether a signal came. One object per run, shared by all its threads."""

    def __init__(self) -> None:
        self.signum: int | None = None

    def check(self) -> None:
        """Raise ``Interrupted`` if a signal came. Cheap: call it for every chunk."""
        if self.signum is not None:
            raise Interrupted(self.signum)


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """A ``Stop`` that SIGINT, SIGTERM and SIGHUP set; a SIGINT after that kills at once.

    A signal that the process inherited as ignored (``nohup``, a shell's background job) stays ignored.
    Outside the main thread no handler can be installed: the ``Stop`` is then set by the caller or never.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    heard = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}

    def note(signum: int, _frame: FrameType | None) -> None:
        stop.signum = signum
        if signal.SIGINT in heard:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    for number in heard:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in heard.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
