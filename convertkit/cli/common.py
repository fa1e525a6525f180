"""Options that several commands share, so that they look and mean the same everywhere."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from convertkit.cli.runner import Shared

SIZE_FACTORS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)", re.ASCII)


def parse_size(text: str) -> int:
    """Bytes of ``5GB``, ``500MB`` (powers of 1000), ``2GiB`` (powers of 1024), ``1.5GB`` or plain ``123456``.

    Raises:
        ValueError: not a size, or less than one byte.
    """
    match = SIZE.fullmatch(text.strip())
    if match is None or match[2].upper() not in SIZE_FACTORS:
        raise ValueError(f"{text!r} is not a size such as 5GB, 500MB or 2GiB")
    size_bytes = int(Fraction(match[1]) * SIZE_FACTORS[match[2].upper()])
    if size_bytes < 1:
        raise ValueError(f"{text!r} is less than one byte")
    return size_bytes


def size_option_value(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """The bytes that an option of a size stands for, as a click callback."""
    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx=context, param=option) from error


class SourcePath(click.Path):
    """A path, or ``hf://org/name[@revision][/sub]``, which is fetched: whole, or with ``headers_only`` its headers.

    ``headers_if`` names an eager flag of the command that asks for headers only.
    """

    def __init__(self, *, headers_only: bool = False, headers_if: str = "") -> None:
        super().__init__(path_type=Path)
        self.headers_only = headers_only
        self.headers_if = headers_if

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.startswith("hf://"):
            from convertkit.hub.download import fetch

            asked = ctx is not None and bool(ctx.params.get(self.headers_if))
            return fetch(value, headers_only=self.headers_only or asked)
        return super().convert(value, param, ctx)


def source_argument(
    name: str, *, headers_only: bool = False, headers_if: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A positional checkpoint: a path or an address on the hub. Whether it is there is for the verb to say."""
    return click.argument(name, type=SourcePath(headers_only=headers_only, headers_if=headers_if))


def folder_argument(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A positional path, passed on as ``Path``. Whether it exists is for the verb to say."""
    return click.argument(name, type=click.Path(path_type=Path))


def shared_options(command: Callable[..., int]) -> Callable[..., int]:
    """``--json``, ``--quiet`` and ``--traceback``, collected into the keyword ``shared``. Every command has them."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
    @click.option("-q", "--quiet", is_flag=True, help="Print no text and no progress; errors are still printed.")
    @click.option("--traceback", is_flag=True, help="Print where in the program an error arose.")
    @functools.wraps(command)
    def with_shared(*, as_json: bool, quiet: bool, traceback: bool, **rest: Any) -> int:
        return command(shared=Shared(as_json, quiet, traceback), **rest)

    return with_shared


DIALECTS = ("modelopt-mixed", "modelopt", "compressed-tensors")
"""Spellings of packed weights, the usual one first."""

workers_option = click.option(
    "--workers",
    type=click.IntRange(0, 1024),
    default=0,
    metavar="N",
    help="Threads to use; 0, the default, means one per core. The result does not depend on it.",
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Plan and check everything, write nothing.")
force_option = click.option("--force", is_flag=True, help="Replace an existing output, whole, when all is done.")
resume_option = click.option(
    "--resume", is_flag=True, help="Go on with an interrupted run of the same plan, if there is one."
)
max_shard_size_option = click.option(
    "--max-shard-size",
    "max_shard_bytes",
    callback=size_option_value,
    metavar="SIZE",
    help="Split the weights into files of at most this size, e.g. 5GB or 2GiB.",
)
include_option = click.option(
    "--include",
    multiple=True,
    metavar="PATTERN",
    help="Modules to work on, instead of the default choice; may be repeated.",
)
exclude_option = click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Modules to leave out of the choice; may be repeated.",
)
