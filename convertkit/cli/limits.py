"""What the command asks of the system before it starts."""

from __future__ import annotations

import contextlib
import sys


def raise_open_files() -> None:
    """As many open files as the system allows: a sharded source and its output are all open at once, and shells
    start programs with 1,024 although far more are allowed."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # macOS states more than it allows
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
