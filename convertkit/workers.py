"""How many threads to use: one answer for everything that works side by side."""

from __future__ import annotations

import os


def worker_count(workers: int = 0) -> int:
    """``workers``, or for 0 as many as this process may use CPUs."""
    if workers > 0:
        return workers
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
