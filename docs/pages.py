"""Writes the pages that are made from the program itself: ``python docs/pages.py`` after a change of either.

``errors.md`` comes from the table of codes, ``cli.md`` from the help texts; a test compares them with the files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import click

from convertkit.cli.main import COMMANDS, cli
from convertkit.codes import CODES

STATUSES = {
    0: "Only said, never stops the work",
    1: "A check said no",
    2: "Usage",
    3: "Input not acceptable",
    4: "Could not read or write",
    5: "Output refused",
    6: "Files of an earlier release",
    70: "Internal error: a bug in convertkit",
    130: "Interrupted",
}

ERRORS_INTRO = """\
# Findings and exit statuses

Whatever convertkit has to say about a checkpoint is a *finding*: a code, a severity, a place, a message and, where
there is one, a cure. A code never changes its meaning. A finding of severity `error` that stops the work decides the
exit status of the command:

    error E_WIDTH: 'fc' has 100 input features, not a multiple of 16 [model.safetensors, tensor 'fc.weight']
      fix: leave it out with --exclude fc

All problems that can be found together are reported together; the first one decides the status. With `--json` the
same findings are one JSON document on standard output (`convertkit schema error`). A code can also appear as a
warning or a note, then the work goes on.

This page is made from the table of codes by `python docs/pages.py`.
"""

CLI_INTRO = """\
# The command line

Each command has the same shared options: `--json` prints one JSON document on standard output, and nothing else
there, as its [schema](reports.md#documents-of---json) says; `--quiet` prints no text and no progress; `--traceback`
shows where in the program an error arose. Errors go to standard error. Progress goes to standard error too, and only
when it is a terminal.

| exit status | meaning |
|--:|---|
| 0 | done, or passed |
| 1 | a check said no |
| 2 | usage: the command line does not make sense |
| 3 | input not acceptable |
| 4 | could not read or write; standard output counts |
| 5 | output refused: it exists, is the source, or is in use |
| 6 | `verify`: the files are those of an earlier release |
| 70 | internal error: a bug in convertkit |
| 129, 130, 143 | interrupted by SIGHUP, SIGINT, SIGTERM |

[errors.md](errors.md) lists all codes. The help texts below are made by `python docs/pages.py`.
"""


def errors_page() -> str:
    rows = sorted(CODES.items(), key=lambda item: item[1].status)
    parts = [ERRORS_INTRO]
    for status, group in itertools.groupby(rows, key=lambda item: item[1].status):
        lines = [f"| `{code}` | {row.meaning} |" for code, row in group]
        title = (
            STATUSES[status] if status == 0 else f"Status {status}: {STATUSES[status][0].lower()}{STATUSES[status][1:]}"
        )
        parts.append("\n".join([f"## {title}\n", "| code | meaning |", "|---|---|", *lines]) + "\n")
    return "\n".join(parts)


def help_text(name: str) -> str:
    """The help of one command as a terminal of 100 columns shows it."""
    context = click.Context(cli, info_name="convertkit", terminal_width=100, help_option_names=["-h", "--help"])
    command = cli.get_command(context, name)
    if command is None:
        raise LookupError(name)
    with click.Context(command, parent=context, info_name=name, terminal_width=100) as inner:
        return command.get_help(inner)


def cli_page() -> str:
    parts = [CLI_INTRO]
    parts += [f"## convertkit {name}\n\n```text\n{help_text(name)}\n```\n" for name in COMMANDS]
    return "\n".join(parts)


PAGES: dict[str, Callable[[], str]] = {"errors.md": errors_page, "cli.md": cli_page}


def main() -> None:
    for name, page in PAGES.items():
        (Path(__file__).parent / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
