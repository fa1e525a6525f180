"""``python -m convertkit`` and the ``convertkit`` command: the same."""

from __future__ import annotations

import signal
import sys


def run() -> int:
    """The command line's exit status. Until it listens to signals itself, Ctrl-C ends the process in silence."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from convertkit.cli.main import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
