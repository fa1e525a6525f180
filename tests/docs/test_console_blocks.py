"""Every ``console`` block in README and docs/ does what it shows.

The blocks of one page run in order in one empty folder. A line that starts with ``$ `` is a command and must end
with status 0; the lines under it are its standard output, where ``…`` alone stands for any lines.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ANYTHING = "…"


class Command(NamedTuple):
    """A command line and the output shown under it."""

    words: str
    shown: list[str]


def commands_of(page: Path) -> list[Command]:
    found: list[Command] = []
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                found.append(Command(line[2:], []))
            else:
                found[-1].shown.append(line)
    return found


def matches(shown: list[str], said: list[str]) -> bool:
    """Whether ``said`` is ``shown``, with ``…`` standing for any number of lines."""
    if not shown:
        return not said
    if shown[0].strip() == ANYTHING:
        return any(matches(shown[1:], said[start:]) for start in range(len(said) + 1))
    return bool(said) and shown[0].rstrip() == said[0].rstrip() and matches(shown[1:], said[1:])


def pages() -> Iterator[Path]:
    yield from (page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if commands_of(page))


@pytest.fixture
def path_with_convertkit(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH on which ``convertkit`` and ``python`` are those under test."""
    folder = tmp_path_factory.mktemp("bin")
    for name, words in {"convertkit": "-m convertkit", "python": ""}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.slow
@pytest.mark.parametrize("page", list(pages()), ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path, tmp_path: Path, path_with_convertkit: str) -> None:
    environment = {**os.environ, "PATH": path_with_convertkit, "PYTHONPATH": str(ROOT)}
    for command in commands_of(page):
        done = subprocess.run(
            ["bash", "-c", command.words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"$ {command.words}\n{done.stdout}{done.stderr}"
        if command.shown:
            said = done.stdout.splitlines()
            assert matches(command.shown, said), f"$ {command.words}\n{done.stdout}"


def test_readme_shows_the_whole_way() -> None:
    words = [command.words for command in commands_of(ROOT / "README.md")]
    for verb in ("inspect", "pack-nvfp4", "dequant", "gate", "manifest", "verify"):
        assert any(f"convertkit {verb} " in line for line in words), verb


def test_matching() -> None:
    assert matches(["a", "…", "d"], ["a", "b", "c", "d"])
    assert matches(["…"], [])
    assert not matches(["a"], ["a", "b"])
    assert not matches(["a", "…", "d"], ["a", "d", "e"])
