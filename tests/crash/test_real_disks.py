"""Errors that the kernel itself makes: file size limits, full and read-only filesystems, folders of others."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from convertkit.conversion.place import check_place, check_space
from convertkit.conversion.publish import publish
from convertkit.conversion.sink import open_sink
from convertkit.conversion.staging import open_staging, write_small
from convertkit.conversion.stop import Stop
from convertkit.errors import ConvertError
from tests.crash.pipeline import PLANS, convert, make_source

NOBODY = 65534


def in_child(body: Callable[[], object]) -> tuple[int, str]:
    """Status and code of the error that ``body`` ends with in a forked child; ``(0, "")`` if it succeeds."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = "70 crashed"
        try:
            body()
            answer = "0 "
        except ConvertError as error:
            answer = f"{error.status} {error.code}"
        finally:
            os.write(writer, answer.encode())
            os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        status, code = pipe.read().split(" ", 1)
    os.waitpid(pid, 0)
    return int(status), code


@pytest.mark.parametrize("most", [0, 100, 48_000, 60_000])
def test_a_limit_on_file_sizes(tmp_path: Path, most: int) -> None:
    make_source(tmp_path / "in")

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        convert(tmp_path / "in", tmp_path / "out")

    assert in_child(limited) == (4, "E_WRITE")
    assert sorted(os.listdir(tmp_path)) == ["in"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 256 KiB; the output of the pipeline needs about 130."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs needs privileges: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path, left_bytes: int) -> None:
    space = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(space.f_bavail * space.f_frsize - left_bytes))


def test_a_disk_known_to_be_too_small_is_refused_before_anything_is_written(tmp_path: Path, small_disk: Path) -> None:
    make_source(tmp_path / "in")
    fill(small_disk, 100 * 1024)
    with pytest.raises(ConvertError) as caught:
        convert(tmp_path / "in", small_disk / "out")
    assert (caught.value.status, caught.value.code) == (4, "E_NO_SPACE")
    assert caught.value.findings[0].data["free_bytes"] == 100 * 1024
    assert caught.value.findings[0].data["needed_bytes"] > 128_000
    assert os.listdir(small_disk) == ["filler"]


@pytest.mark.parametrize("left_kib", [0, 4, 12, 20, 64, 100])
def test_a_disk_that_is_full_when_the_files_are_reserved(tmp_path: Path, small_disk: Path, left_kib: int) -> None:
    """Reserving the whole file finds it out before any tensor is made."""
    fill(small_disk, left_kib * 1024)
    place = check_place(small_disk / "out", [], force=False)
    with (
        pytest.raises(ConvertError) as caught,
        open_staging(place, "plan") as staging,
        open_sink(staging, PLANS, Stop()),
    ):
        raise AssertionError("the disk is full")
    assert (caught.value.status, caught.value.code) == (4, "E_NO_SPACE")
    assert os.listdir(small_disk) == ["filler"]


def test_a_disk_that_fills_up_at_the_end_keeps_the_tensors(tmp_path: Path, small_disk: Path) -> None:
    make_source(tmp_path / "in")

    def fill_up(_stop: object) -> None:
        if not (small_disk / "filler").exists():
            fill(small_disk, 0)

    with pytest.raises(ConvertError) as caught:
        convert(tmp_path / "in", small_disk / "out", each_chunk=fill_up)
    assert [item.code for item in caught.value.findings] == ["E_NO_SPACE", "W_STAGING_KEPT"]
    (small_disk / "filler").unlink()
    assert convert(tmp_path / "in", small_disk / "out", resume=True).done_before
    assert os.listdir(small_disk) == ["out"]


def test_resuming_needs_only_the_space_that_is_missing(tmp_path: Path, small_disk: Path) -> None:
    make_source(tmp_path / "in")
    place = check_place(small_disk / "out", [tmp_path / "in"], force=False)
    base = place.partial("plan")
    base.mkdir()
    (base / "files").write_bytes(bytes(120_000))
    fill(small_disk, 16 * 1024)
    with pytest.raises(ConvertError):
        check_space(place, 130_000)
    check_space(place, 130_000, reuse="plan")


def test_a_read_only_filesystem(tmp_path: Path, small_disk: Path) -> None:
    make_source(tmp_path / "in")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(ConvertError) as caught:
        convert(tmp_path / "in", small_disk / "out")
    assert (caught.value.status, caught.value.code) == (4, "E_OUT_PARENT")


def test_a_mount_point_cannot_be_replaced(tmp_path: Path, small_disk: Path) -> None:
    make_source(tmp_path / "in")
    with pytest.raises(ConvertError) as caught:
        convert(tmp_path / "in", small_disk)
    assert caught.value.code == "E_OUT_EXISTS"
    with pytest.raises(ConvertError) as caught:
        convert(tmp_path / "in", tmp_path, force=True)
    assert caught.value.code == "E_OUT_INSIDE_IN"
    with pytest.raises(ConvertError) as caught:
        check_place(tmp_path, [], force=True)
    assert "disk" in str(caught.value)


def test_a_bind_mount_of_the_source_is_the_source(tmp_path: Path) -> None:
    make_source(tmp_path / "in")
    (tmp_path / "in" / "sub").mkdir()
    (tmp_path / "bound").mkdir()
    bound = subprocess.run(
        ["mount", "--bind", str(tmp_path / "in"), str(tmp_path / "bound")], capture_output=True, text=True, check=False
    )
    if bound.returncode:
        pytest.skip(f"bind mounts need privileges: {bound.stderr.strip()}")
    try:
        codes = {}
        for name in ("bound", "bound/out", "bound/sub/out"):
            with pytest.raises(ConvertError) as caught:
                check_place(tmp_path / name, [tmp_path / "in"], force=True)
            codes[name] = caught.value.code
        with pytest.raises(ConvertError) as caught:
            check_place(tmp_path / "in" / "out", [tmp_path / "bound"], force=True)
        codes["in/out"] = caught.value.code
    finally:
        subprocess.run(["umount", str(tmp_path / "bound")], check=True)
    inside = "E_OUT_INSIDE_IN"
    assert codes == {"bound": "E_OUT_IS_IN", "bound/out": inside, "bound/sub/out": inside, "in/out": inside}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user can reach (pytest's own are private)."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_a_parent_that_is_not_ours_to_write_in(open_folder: Path) -> None:
    make_source(open_folder / "in")
    parent = open_folder / "parent"
    parent.mkdir()
    parent.chmod(0o555)

    def as_nobody() -> None:
        if os.geteuid() == 0:  # root may write anywhere
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        convert(open_folder / "in", parent / "out")

    assert in_child(as_nobody) == (4, "E_OUT_PARENT")
    assert os.listdir(parent) == []
    parent.chmod(0o755)


@pytest.mark.parametrize(("mask", "file_mode", "folder_mode"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)])
def test_modes_follow_the_umask(tmp_path: Path, mask: int, file_mode: int, folder_mode: int) -> None:
    make_source(tmp_path / "in")
    before = os.umask(mask)
    try:
        convert(tmp_path / "in", tmp_path / "out")
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o7777 == folder_mode
    assert {path.stat().st_mode & 0o7777 for path in (tmp_path / "out").iterdir()} == {file_mode}


def test_a_single_file_output(tmp_path: Path) -> None:
    """The same, with one file in staging; an old file is replaced in one step."""
    out = tmp_path / "model.gguf"
    for turn, force in enumerate((False, True)):
        place = check_place(out, [], force=force, kind="file")
        with open_staging(place, "plan") as staging:
            write_small(staging, out.name, b"weights %d" % turn)
            publish(staging, Stop())
        assert out.read_bytes() == b"weights %d" % turn
        assert os.listdir(tmp_path) == ["model.gguf"]
    with pytest.raises(ConvertError) as caught:
        check_place(out, [], force=False, kind="file")
    assert caught.value.code == "E_OUT_EXISTS"
