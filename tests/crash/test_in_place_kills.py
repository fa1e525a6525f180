"""A change in place is killed at every system call and inside writes: the next run ends in old or new, never mixed."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path

import pytest

from convertkit.containers.folder import EDIT_FOLDER, open_checkpoint
from convertkit.conversion.syscalls import Syscalls
from convertkit.errors import ConvertError
from convertkit.verbs.fix_keys import Keys, fix_keys
from convertkit.verbs.manifest import manifest
from tests.crash.pipeline import Deadly, Tap
from tests.dialects.tiny import LM_CONFIG, causal_lm, write

RULE = "model.layers.{rest}=model.language_model.with_a_much_longer_name_than_before.layers.{rest}"
PARTS = (None, 0.0, 0.5)
"""Where in a call the process dies: before it, or after so much of a pwrite."""


class Swift(Tap):
    """Does not wait for the disk: a killed process loses nothing that it has written."""

    def fsync(self, fd: int) -> None:
        self._tap("fsync")


class DeadlyEdit(Swift, Deadly):
    """Dies as ``Deadly``; with ``no_shift`` it cannot move blocks."""

    def __init__(self, number: int, part: float | None, no_shift: bool) -> None:
        super().__init__(number, part)
        self._no_shift = no_shift

    def shift(self, fd: int, size_bytes: int) -> None:
        if self._no_shift:
            self._tap("shift")
            raise OSError(errno.EOPNOTSUPP, "no")
        super().shift(fd, size_bytes)


def base(folder: Path) -> Path:
    block = {"quant_method": "modelopt", "ignore": ["model.layers.0*"]}
    write(folder, causal_lm(), {**LM_CONFIG, "quantization_config": block})
    manifest(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def rename(folder: Path, syscalls: Syscalls | None = None, **words: object) -> Keys:
    more = {"syscalls": syscalls or Swift()}
    made = fix_keys(folder, rename=[RULE] if "recovery" not in words else [], in_place=True, **more, **words)  # type: ignore[arg-type]
    assert isinstance(made, Keys)
    return made


def killed(folder: Path, syscalls: Syscalls, **words: object) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            rename(folder, syscalls, **words)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("no_shift", [False, True], ids=["blocks moved", "rewritten"])
def test_every_kill_leaves_what_the_next_run_makes_old_or_new(tmp_path: Path, no_shift: bool) -> None:
    source = base(tmp_path / "source")
    old = contents(source)
    shutil.copytree(source, tmp_path / "undisturbed")
    tap = DeadlyEdit(-1, None, no_shift)
    rename(tmp_path / "undisturbed", tap)
    new = contents(tmp_path / "undisturbed")
    assert new.keys() == old.keys()
    assert "shift" in tap.names
    assert ("copy_range" in tap.names) == no_shift
    kills = recovered = 0
    ends: set[str] = set()
    for number, name in enumerate(tap.names):
        for part in PARTS if name == "pwrite" else (None,):
            for undo in (False, True) if part is None and number % 3 == 0 else (number % 2 == 0,):
                folder = tmp_path / "victim"
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(source, folder)
                assert killed(folder, DeadlyEdit(number, part, no_shift))
                kills += 1
                pending = (folder / EDIT_FOLDER).exists()
                recovered += pending
                if pending:
                    with pytest.raises(ConvertError, match="E_EDIT_UNFINISHED"):
                        open_checkpoint(folder)
                else:
                    assert contents(folder) in (old, new)
                if undo:
                    rename(folder, recovery="undo")
                    assert contents(folder) == (old if pending else contents(folder))
                    assert contents(folder) in (old, new)
                    ends.add("old" if contents(folder) == old else "new")
                    rename(folder)
                else:
                    if number % 4 == 1:  # the run that recovers is killed as well, half way
                        killed(folder, DeadlyEdit(number // 2, None, no_shift))
                    rename(folder)
                assert contents(folder) == new
                assert [path.name for path in folder.iterdir() if path.is_dir()] == []
    assert kills >= 100  # 200 in both
    assert recovered >= 40
    assert ends == {"old", "new"}


def test_a_failing_call_takes_the_change_back(tmp_path: Path) -> None:
    source = base(tmp_path / "source")
    old = contents(source)
    tap = Tap()
    shutil.copytree(source, tmp_path / "undisturbed")
    rename(tmp_path / "undisturbed", tap)
    new = contents(tmp_path / "undisturbed")
    for number, name in enumerate(tap.names):
        if name not in ("fsync", "shift", "pwrite"):
            continue
        failed: list[int] = []

        def fail(at: int, _name: str, number: int = number, failed: list[int] = failed) -> None:
            if at == number:
                failed.append(at)
                raise OSError(errno.ENOSPC, "full")

        folder = tmp_path / "victim"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        with pytest.raises(ConvertError) as caught:
            rename(folder, Tap(fail))
        assert caught.value.code == "E_NO_SPACE"
        assert failed
        if contents(folder) == old:
            assert [path.name for path in folder.iterdir() if path.is_dir()] == []
        else:  # it failed to tidy up after the whole change
            assert number > len(tap.names) - 20
            rename(folder, recovery="finish")
            assert contents(folder) == new
