from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from convertkit.conversion.syscalls import Kernel
from convertkit.errors import ConvertError
from convertkit.release.replace import remove_file, replace_files

OLD = {"MANIFEST.json": b"old manifest", "SHA256SUMS": b"old sums"}
NEW = {"MANIFEST.json": b"new manifest", "SHA256SUMS": b"new sums"}
CHANGING = ("open", "pwrite", "fsync", "rename", "unlink")


class Failing(Kernel):
    """The kernel's calls, of which the ``k``-th that can fail does."""

    def __init__(self, k: int, number: int) -> None:
        self.left, self.number = k, number

    def __getattribute__(self, name: str) -> Any:
        call = super().__getattribute__(name)
        if name not in CHANGING:
            return call

        def counted(*args: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise OSError(self.number, os.strerror(self.number))
            return call(*args)

        return counted


def test_files_are_replaced_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"shared")
    (tmp_path / "MANIFEST.json").symlink_to("blob")
    (tmp_path / ".SHA256SUMS.partial").write_bytes(b"left by a killed run")
    replace_files(tmp_path, NEW)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {**NEW, "blob": b"shared"}
    assert not (tmp_path / "MANIFEST.json").is_symlink()


def test_file_mode_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        replace_files(tmp_path, {"SHA256SUMS": b"x"})
    finally:
        os.umask(before)
    assert (tmp_path / "SHA256SUMS").stat().st_mode & 0o777 == 0o640


def failure(root: Path, k: int, number: int) -> ConvertError | None:
    try:
        replace_files(root, NEW, Failing(k, number))
    except ConvertError as error:
        return error
    return None


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, "E_NO_SPACE"), (errno.EIO, "E_WRITE")])
def test_whichever_call_fails_every_file_is_whole_and_nothing_is_left(tmp_path: Path, number: int, code: str) -> None:
    failures = 0
    for k in range(1, 40):
        root = tmp_path / str(k)
        root.mkdir()
        for name, data in OLD.items():
            (root / name).write_bytes(data)
        error = failure(root, k, number)
        if error is None:
            continue
        failures += 1
        assert (error.code, error.status) == (code, 4)
        found = {path.name: path.read_bytes() for path in root.iterdir()}
        assert found.keys() == OLD.keys()
        assert all(found[name] in (OLD[name], NEW[name]) for name in OLD)
        if found["SHA256SUMS"] == NEW["SHA256SUMS"]:
            assert found["MANIFEST.json"] == NEW["MANIFEST.json"]
    assert 8 <= failures < 39  # at least open, write, fsync and rename of both files failed once


def test_removing_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    remove_file(tmp_path, "x")
    remove_file(tmp_path, "x")
    assert list(tmp_path.iterdir()) == []
