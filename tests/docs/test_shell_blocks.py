"""Commands in ``sh`` blocks, which the tests cannot run (they need a hub, keys, or hours), exist with their options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from convertkit.cli.main import COMMANDS, cli

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def lines() -> Iterator[tuple[str, str]]:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                command = line.strip().removeprefix(".venv/bin/")
                if command.startswith("convertkit "):
                    yield str(page.relative_to(ROOT)), command


@pytest.mark.parametrize(("page", "line"), [*lines()])
def test_command_and_options_exist(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    assert words[1] in COMMANDS, page
    command = cli.get_command(click.Context(cli), words[1])
    assert command is not None
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    asked = {word.partition("=")[0] for word in words[2:] if word.startswith("--")}
    assert asked <= known, page
