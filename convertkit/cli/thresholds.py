"""``--max-rel-rms`` and the other limits of the fidelity gate, made from the tables of limits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import click

from convertkit.checks.fidelity import THRESHOLDS
from convertkit.forward.limits import FORWARD_LIMITS


class Row(Protocol):
    """What an option needs of a limit."""

    @property
    def limit(self) -> float | None: ...

    @property
    def meaning(self) -> str: ...


Command = Callable[..., int]


def _limit_options(table: Mapping[str, Row], keyword: str, prefix: str = "") -> Callable[[Command], Command]:
    """One option per row of ``table``, collected into ``keyword``; ``prefix`` begins their help."""

    def decorated(command: Command) -> Command:
        @functools.wraps(command)
        def collected(**values: Any) -> int:
            limits = {name: values.pop(name) for name in table}
            return command(**{keyword: limits}, **values)

        for name, row in reversed(list(table.items())):
            option = click.option(
                f"--{name.replace('_', '-')}",
                name,
                type=float,
                default=row.limit,
                show_default=row.limit is not None,
                metavar="X",
                help=prefix + row.meaning,
            )
            collected = option(collected)
        return collected

    return decorated


threshold_options = _limit_options(THRESHOLDS, "limits")
forward_options = _limit_options(FORWARD_LIMITS, "forward_limits", "With --forward: ")
