"""``--max-rel-rms`` and the other limits of the fidelity gate, made from the table of thresholds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from convertkit.checks.fidelity import THRESHOLDS


def threshold_options(command: Callable[..., int]) -> Callable[..., int]:
    """One option per row of ``THRESHOLDS``, collected into the keyword ``limits``."""

    @functools.wraps(command)
    def collected(**values: Any) -> int:
        limits = {name: values.pop(name) for name in THRESHOLDS}
        return command(limits=limits, **values)

    for name, row in reversed(THRESHOLDS.items()):
        option = click.option(
            f"--{name.replace('_', '-')}",
            name,
            type=float,
            default=row.limit,
            show_default=row.limit is not None,
            metavar="X",
            help=row.meaning,
        )
        collected = option(collected)
    return collected
