"""``python -m convertkit`` and the ``convertkit`` command: the same."""

from __future__ import annotations

import gc
import signal
import sys

NEW_OBJECTS = 50_000
"""Between two looks for garbage: loading modules and reading headers make many objects that stay."""


def run() -> int:
    """The command line's exit status. Until it listens to signals itself, Ctrl-C ends the process in silence."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(NEW_OBJECTS, 20, 20)
    from convertkit.cli.main import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
