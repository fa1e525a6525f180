"""Fail the first system call, then the second, … until a run has none left to fail.

After each failure the target is exactly what it was, staging is gone (or kept where the contract says so), the
source is untouched, no descriptor leaks, and a further run gives the same bytes.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from convertkit.conversion.stop import Interrupted
from convertkit.errors import ConvertError
from tests.crash.pipeline import LISTING, Tap, assert_sums_hold, contents, convert, make_source, snapshot

ERRORS = {"ENOSPC": errno.ENOSPC, "EDQUOT": errno.EDQUOT, "EIO": errno.EIO}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], list[str]]:
    """Bytes of an undisturbed output, and the names of the calls that made it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    make_source(folder / "in")
    tap = Tap()
    convert(folder / "in", folder / "out", syscalls=tap)
    assert sorted(os.listdir(folder / "out")) == LISTING
    assert_sums_hold(folder / "out")
    return contents(folder / "out"), tap.names


def fail_at(number: int, code: int) -> Tap:
    def before(count: int, _name: str) -> None:
        if count == number:
            raise OSError(code, os.strerror(code))

    return Tap(before)


def problem_of(run: Callable[[], object]) -> tuple[int, str] | None:
    """Status and code of the error that the run ends with; None if it succeeds."""
    try:
        run()
    except ConvertError as error:
        return error.status, error.code
    return None


def test_the_run_makes_every_kind_of_call(undisturbed: tuple[dict[str, bytes], list[str]]) -> None:
    _, names = undisturbed
    assert 60 < len(names) < 200
    assert set(names) >= {"open", "close", "pwrite", "allocate", "fsync", "fdatasync", "mkdir", "rename noreplace"}


@pytest.mark.parametrize("error", ERRORS)
def test_every_call_failing_once(tmp_path: Path, undisturbed: tuple[dict[str, bytes], list[str]], error: str) -> None:
    expected, names = undisturbed
    make_source(tmp_path / "in")
    before = snapshot(tmp_path / "in")
    fds = os.listdir("/proc/self/fd")
    out = tmp_path / "out"
    kept = failed = 0
    for number, name in enumerate(names):
        tap = fail_at(number, ERRORS[error])
        published = "rename noreplace" in names[:number]
        problem = problem_of(partial(convert, tmp_path / "in", out, syscalls=tap))
        failed += problem is not None
        if problem is None:
            assert published, (number, name)  # only tidying up may fail quietly
        else:
            assert problem == (4, "E_WRITE" if error == "EIO" else "E_NO_SPACE"), (number, name)
        assert os.path.exists(out) or not published
        if out.exists():
            assert contents(out) == expected
            remove(out)
        left = [entry for entry in os.listdir(tmp_path) if entry.startswith(".out.partial-")]
        if left and not published:
            assert error != "EIO", (number, name)
            kept += 1
        again = convert(tmp_path / "in", out, resume=bool(left and not published))
        assert bool(again.done_before) == bool(left and not published)
        assert contents(out) == expected
        remove(out)
        clean(tmp_path)
    assert failed > 50
    assert (kept > 10) == (error != "EIO")
    assert snapshot(tmp_path / "in") == before
    assert os.listdir("/proc/self/fd") == fds


def test_every_call_failing_while_an_old_output_is_replaced(tmp_path: Path) -> None:
    make_source(tmp_path / "in")
    out, pristine = tmp_path / "out", tmp_path / "pristine"
    convert(tmp_path / "in", pristine, fingerprint="earlier")
    (pristine / "config.json").write_bytes(b"old\n")
    (pristine / "mine.txt").write_bytes(b"precious")
    (pristine / "notes").mkdir()
    (pristine / "notes" / "a.txt").write_bytes(b"also precious")
    old = contents(pristine)
    shutil.copytree(pristine, out)
    tap = Tap()
    run = convert(tmp_path / "in", out, syscalls=tap, force=True)
    new = contents(out)
    assert run.carried.carried == ("mine.txt", "notes/a.txt")
    assert {"mine.txt", "notes/a.txt"} | set(LISTING) == set(new)
    assert_sums_hold(out)
    swap = len(tap.names) - 1 - tap.names[::-1].index("rename exchange")
    names = tap.names
    for number, name in enumerate(names):
        remove(out)
        clean(tmp_path)
        shutil.copytree(pristine, out)
        tap = fail_at(number, errno.EIO)
        problem = problem_of(partial(convert, tmp_path / "in", out, syscalls=tap, force=True))
        assert problem in (None, (4, "E_WRITE"))
        assert contents(out) == (new if number > swap else old), (number, name)


@pytest.mark.parametrize("most", [53, 4096])
def test_short_writes_lose_nothing(tmp_path: Path, undisturbed: tuple[dict[str, bytes], list[str]], most: int) -> None:
    make_source(tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "out", syscalls=Tap(shorten=most))
    assert contents(tmp_path / "out") == undisturbed[0]


def test_a_write_that_takes_nothing_is_an_error(tmp_path: Path) -> None:
    make_source(tmp_path / "in")
    with pytest.raises(ConvertError) as caught:
        convert(tmp_path / "in", tmp_path / "out", syscalls=Tap(shorten=0))
    assert caught.value.code == "E_WRITE"
    assert sorted(os.listdir(tmp_path)) == ["in"]


def test_a_failed_fsync_is_not_tried_again(tmp_path: Path) -> None:
    """The kernel drops dirty pages when it reports EIO; a second fsync would lie."""
    make_source(tmp_path / "in")
    synced: list[int] = []

    class OnceFailing(Tap):
        def fdatasync(self, fd: int) -> None:
            synced.append(fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def fsync(self, fd: int) -> None:
            assert fd not in synced
            super().fsync(fd)

    with pytest.raises(ConvertError) as caught:
        convert(tmp_path / "in", tmp_path / "out", syscalls=OnceFailing())
    assert caught.value.code == "E_WRITE"
    assert len(synced) == 1
    assert sorted(os.listdir(tmp_path)) == ["in"]


def test_a_full_disk_keeps_finished_tensors_and_says_so(tmp_path: Path) -> None:
    make_source(tmp_path / "in")
    writes = 0

    def full(_count: int, name: str) -> None:
        nonlocal writes
        writes += name == "pwrite"
        if name == "pwrite" and writes > 9:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ConvertError) as caught:
        convert(tmp_path / "in", tmp_path / "out", syscalls=Tap(full))
    first, note = caught.value.findings
    assert (caught.value.status, first.code, note.code) == (4, "E_NO_SPACE", "W_STAGING_KEPT")
    assert first.data["needed_bytes"] > 0
    assert first.data["free_bytes"] > 0
    assert "--resume" in note.fix
    writes = 0
    with pytest.raises(ConvertError):
        convert(tmp_path / "in", tmp_path / "out", syscalls=Tap(full), keep=False)
    assert sorted(os.listdir(tmp_path)) == ["in"]


def test_stopping_at_every_chunk(tmp_path: Path, undisturbed: tuple[dict[str, bytes], list[str]]) -> None:
    make_source(tmp_path / "in")
    resumed = 0
    for last in range(1, 7):
        left = last

        def stop_soon(stop: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                stop.signum = 15  # type: ignore[attr-defined]

        with pytest.raises(Interrupted) as caught:
            convert(tmp_path / "in", tmp_path / "out", each_chunk=stop_soon)
        assert caught.value.status == 143
        names = sorted(os.listdir(tmp_path))
        finished = names != ["in"]
        assert len(names) == 1 + finished
        run = convert(tmp_path / "in", tmp_path / "out", resume=finished)
        resumed += len(run.done_before)
        assert contents(tmp_path / "out") == undisturbed[0]
        remove(tmp_path / "out")
    assert resumed > 3


def remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def clean(folder: Path) -> None:
    for entry in os.listdir(folder):
        if entry.startswith(".out"):
            path = folder / entry
            remove(path) if path.is_dir() else path.unlink()
