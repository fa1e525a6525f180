"""``python -m convertkit`` and the ``convertkit`` command: the same."""

from __future__ import annotations

import gc
import signal
import sys

NEW_OBJECTS = 100_000
"""Between two looks for garbage: loading modules and reading headers make many objects that stay."""


def run() -> int:
    """The command line's exit status. Until it listens to signals itself, Ctrl-C ends the process in silence."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(NEW_OBJECTS, 50, 50)
    from convertkit.cli.main import main

    status = main()
    gc.freeze()  # the process ends: looking through every object once more takes a fifth of a second with numba loaded
    return status


if __name__ == "__main__":
    sys.exit(run())
