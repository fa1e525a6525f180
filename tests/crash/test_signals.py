"""Signals and two runs at once, with real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from convertkit.conversion.stop import Interrupted, stop_on_signals
from convertkit.errors import ConvertError
from tests.crash.pipeline import LISTING, assert_sums_hold, contents, convert, make_source

ROOT = Path(__file__).parents[2]


def listen() -> None:
    """A test runner may have been started with SIGINT ignored; its children inherit that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def ignore() -> None:
    listen()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def start(
    folder: Path, seconds: float, *, out: str = "out", setup: Callable[[], None] = listen
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.crash.slow", str(folder / "in"), str(folder / out), str(seconds)]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=setup
    )  # fmt: skip


def wait_begun(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_stops_soon_and_the_run_can_go_on(tmp_path: Path, number: signal.Signals, status: int) -> None:
    make_source(tmp_path / "in")
    child = start(tmp_path, 0.05)
    wait_begun(child)
    began = time.monotonic()
    child.send_signal(number)
    _, errors = child.communicate(timeout=20)
    assert time.monotonic() - began < 2
    assert child.returncode == status
    assert f"stopped by {number.name}" in errors
    assert "--resume" in errors
    assert not (tmp_path / "out").exists()
    run = convert(tmp_path / "in", tmp_path / "out", resume=True)
    assert run.done_before
    assert_sums_hold(tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def test_an_inherited_ignore_is_honoured(tmp_path: Path) -> None:
    make_source(tmp_path / "in")
    child = start(tmp_path, 0.05, setup=ignore)
    wait_begun(child)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=20)
    assert child.returncode == 0
    assert sorted(os.listdir(tmp_path / "out")) == LISTING


def test_a_second_sigint_kills_at_once(tmp_path: Path) -> None:
    make_source(tmp_path / "in")
    child = start(tmp_path, 30)
    lock = tmp_path / ".out.lock"
    while not lock.exists():
        time.sleep(0.01)
    staged = next(iter(wait_for_staging(tmp_path)))
    child.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert child.poll() is None  # the chunk takes its thirty seconds
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=10)
    assert child.returncode == -signal.SIGINT
    assert staged.exists()
    convert(tmp_path / "in", tmp_path / "out", resume=True)
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def wait_for_staging(folder: Path) -> list[Path]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = [path for path in folder.glob(".out.partial-*") if (path / "journal").exists()]
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("the child has not begun")


def test_handlers_are_put_back_and_the_flag_is_raised_where_asked() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals() as stop:
        stop.check()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted) as caught:
            stop.check()
    assert caught.value.status == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_run_is_refused_at_once_and_names_the_first(tmp_path: Path) -> None:
    make_source(tmp_path / "in")
    child = start(tmp_path, 0.3)
    wait_begun(child)
    began = time.monotonic()
    with pytest.raises(ConvertError) as caught:
        convert(tmp_path / "in", tmp_path / "out")
    assert time.monotonic() - began < 0.3
    assert (caught.value.status, caught.value.code) == (5, "E_OUT_LOCKED")
    assert str(child.pid) in str(caught.value)
    convert(tmp_path / "in", tmp_path / "elsewhere")  # another target is not blocked
    child.communicate(timeout=20)
    assert child.returncode == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "elsewhere")
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "in", "out"]


def test_of_many_runs_one_wins(tmp_path: Path) -> None:
    make_source(tmp_path / "in")
    children = [start(tmp_path, 0.1) for _ in range(8)]
    errors = [child.communicate(timeout=60)[1] for child in children]
    assert sorted(child.returncode for child in children) == [0] + [5] * 7
    assert all(re.match("E_OUT_LOCKED|E_OUT_EXISTS", text) for text in errors if text)
    assert_sums_hold(tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def test_a_dead_runs_lock_does_not_block(tmp_path: Path) -> None:
    make_source(tmp_path / "in")
    (tmp_path / ".out.lock").write_text("1\n")
    convert(tmp_path / "in", tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]
