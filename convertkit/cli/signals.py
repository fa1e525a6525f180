"""Signals become one exception, so that a verb can put its staging folder in order before the command ends."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

AGAIN_SECONDS = 0.05
"""After this time an exception that was lost is raised once more."""

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


def _lost(otherwise: Callable[[sys.UnraisableHookArgs], object]) -> Callable[[sys.UnraisableHookArgs], object]:
    """A hook for exceptions that Python cannot raise, as in a callback from the compiler: ``Interrupted`` comes
    again a moment later, when other code runs."""

    def hook(what: sys.UnraisableHookArgs) -> object:
        if not isinstance(what.exc_value, Interrupted):
            return otherwise(what)
        number = what.exc_value.number

        def again(_alarm: int, frame: FrameType | None) -> None:
            if signal.getsignal(number) is signal.SIG_DFL:
                _interrupt(number, frame)
            signal.raise_signal(number)  # a verb listens by now

        signal.signal(signal.SIGALRM, again)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        return None

    return hook


@contextmanager
def raised_signals() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise ``Interrupted`` while the block runs, wherever in it they come.

    A signal that the parent had set to be ignored (``nohup``, a shell's background job) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in CAUGHT}
    ours = [number for number, action in before.items() if action not in (signal.SIG_IGN, None)]
    for number in ours:
        signal.signal(number, _interrupt)
    unraisable = sys.unraisablehook
    if hasattr(signal, "setitimer"):
        sys.unraisablehook = _lost(unraisable)
    try:
        yield
    finally:
        sys.unraisablehook = unraisable
        for number in ours:
            signal.signal(number, before[number])
