"""Progress bars: one per stage, those of work side by side next to each other, nothing without a terminal."""

from __future__ import annotations

import io

import rich.progress
from rich.console import Console

from convertkit.cli.progress import Bars, shown_progress
from convertkit.progress import SILENT


def bars() -> tuple[Bars, rich.progress.Progress]:
    screen = rich.progress.Progress(console=Console(file=io.StringIO()))
    return Bars(screen), screen


def shown(screen: rich.progress.Progress) -> list[tuple[str, float | None, float]]:
    return [(task.description, task.total, task.completed) for task in screen.tasks]


def test_a_stage_ends_the_one_before() -> None:
    one, screen = bars()
    one.stage("read", 100)
    one.advance(40)
    assert shown(screen) == [("read", 100, 40)]
    one.stage("write", 0)
    assert shown(screen) == [("write", None, 0)]
    one.done()
    one.advance(1)
    assert shown(screen) == []


def test_work_side_by_side_has_bars_of_its_own() -> None:
    one, screen = bars()
    first, second = one.apart("bf16/"), one.apart("gguf/")
    first.stage("check", 10)
    second.stage("dequant", 20)
    first.advance(3)
    second.advance(4)
    assert shown(screen) == [("bf16/ check", 10, 3), ("gguf/ dequant", 20, 4)]
    first.done()
    assert shown(screen) == [("gguf/ dequant", 20, 4)]


def test_nobody_watches() -> None:
    with shown_progress(True) as progress:  # stderr of a test is no terminal
        assert progress is SILENT
    assert SILENT.apart("x") is SILENT
