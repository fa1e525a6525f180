"""One step from staging to the final name, and what of an old output goes along."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from convertkit.conversion.place import check_place
from convertkit.conversion.publish import Carried, Published, carry_over, publish
from convertkit.conversion.staging import open_staging, write_small
from convertkit.conversion.stop import Stop
from convertkit.conversion.syscalls import How
from convertkit.errors import ConvertError, Finding
from tests.crash.pipeline import Tap, contents

OURS = (
    "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
    "config.json", "hf_quant_config.json", "SHA256SUMS", "MANIFEST.json", "FIDELITY_GATE.json", "DEQUANT_REPORT.json",
    "LOAD_SHAPE_AUDIT.json",
)  # fmt: skip


def put(
    folder: Path, files: dict[str, bytes], *, force: bool = False, tap: Tap | None = None
) -> tuple[Published, Carried, list[Finding]]:
    """An output of these files."""
    place = check_place(folder / "out", [], force=force)
    with open_staging(place, "plan", syscalls=tap or Tap()) as staging:
        for name, data in files.items():
            write_small(staging, name, data)
        carried = carry_over(staging)
        published = publish(staging, Stop())
    assert [name for name in os.listdir(folder) if name.startswith(".out")] == []
    return published, carried, staging.findings


def test_force_replaces_what_is_ours_and_carries_the_rest(tmp_path: Path) -> None:
    put(tmp_path, dict.fromkeys((*OURS, "tokenizer.json"), b"old"))
    out = tmp_path / "out"
    (out / "README.md").write_bytes(b"mine")
    (out / "bf16").mkdir(mode=0o750)
    (out / "bf16" / "model.safetensors").write_bytes(b"mine too")
    (out / "bf16" / "config.json").write_bytes(b"and this")
    (out / "link").symlink_to("README.md")
    (out / "door").symlink_to("bf16")
    inode = (out / "README.md").stat().st_ino
    published, carried, findings = put(tmp_path, {"model.safetensors": b"new", "tokenizer.json": b"new"}, force=True)
    assert published.replaced
    assert carried.carried == ("README.md", "door", "link", "bf16/config.json", "bf16/model.safetensors")
    assert carried.removed == tuple(sorted((*OURS, "tokenizer.json")))
    assert [item.code for item in findings] == ["W_CARRIED", "W_REPLACED"]
    assert "README.md" in findings[0].message
    new = {"model.safetensors": b"new", "tokenizer.json": b"new", "README.md": b"mine", "link": b"mine"}
    nested = {"bf16/model.safetensors": b"mine too", "bf16/config.json": b"and this"}
    assert contents(out) == new | nested
    assert os.readlink(out / "link") == "README.md"
    assert os.readlink(out / "door") == "bf16"
    assert (out / "README.md").stat().st_ino == inode
    assert (out / "bf16").stat().st_mode & 0o777 == 0o750


def test_files_that_the_old_manifest_lists_are_removed(tmp_path: Path) -> None:
    put(tmp_path, {"model.safetensors": b"old", "vocab.txt": b"old", "merges.txt": b"old", "chat.jinja": b"mine"})
    out = tmp_path / "out"
    (out / "SHA256SUMS").write_text("0" * 64 + "  vocab.txt\n")
    (out / "MANIFEST.json").write_text(json.dumps({"files": [{"path": "merges.txt"}]}))
    _, carried, _ = put(tmp_path, {"model.safetensors": b"new"}, force=True)
    assert carried.carried == ("chat.jinja",)
    assert sorted(os.listdir(out)) == ["chat.jinja", "model.safetensors"]


def test_files_that_appear_during_the_swap_are_kept(tmp_path: Path) -> None:
    class Late(Tap):
        def rename(self, old: str, new: str, how: How) -> None:
            if how == "exchange" and "probe" not in old:
                (tmp_path / "out" / "late" / "deep").mkdir(parents=True)
                (tmp_path / "out" / "late" / "deep" / "x").write_bytes(b"late")
                (tmp_path / "out" / "a").write_bytes(b"a new a")
            super().rename(old, new, how)

    put(tmp_path, {"a": b"old"})
    published, carried, _ = put(tmp_path, {"a": b"1"}, force=True, tap=Late())
    assert carried == Carried((), ("a",))
    assert [item.code for item in published.findings] == ["W_CARRIED"]
    assert contents(tmp_path / "out") == {"a": b"1", "late/deep/x": b"late"}


def test_an_old_output_is_never_replaced_without_carrying_over(tmp_path: Path) -> None:
    put(tmp_path, {"mine": b"mine"})
    place = check_place(tmp_path / "out", [], force=True)
    with pytest.raises(ConvertError, match="without carrying"), open_staging(place, "plan") as staging:
        write_small(staging, "a", b"1")
        publish(staging, Stop())
    assert contents(tmp_path / "out") == {"mine": b"mine"}


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"[1]", b'{"files": 3}', b'{"files": [{"path": 5}, 7]}'])
def test_a_broken_old_manifest_removes_nothing(tmp_path: Path, text: bytes) -> None:
    put(tmp_path, {"model.safetensors": b"old", "mine.txt": b"mine"})
    (tmp_path / "out" / "MANIFEST.json").write_bytes(text)
    (tmp_path / "out" / "SHA256SUMS").write_bytes(text)
    assert put(tmp_path, {"model.safetensors": b"new"}, force=True)[1].carried == ("mine.txt",)


def test_files_are_copied_where_there_are_no_hard_links(tmp_path: Path) -> None:
    class NoLinks(Tap):
        def link(self, old: str, new: str) -> None:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    put(tmp_path, {"mine.txt": b"mine"})
    (tmp_path / "out" / "link").symlink_to("mine.txt")
    os.utime(tmp_path / "out" / "mine.txt", ns=(5, 7))
    put(tmp_path, {"a": b""}, force=True, tap=NoLinks())
    assert contents(tmp_path / "out") == {"a": b"", "mine.txt": b"mine", "link": b"mine"}
    assert (tmp_path / "out" / "mine.txt").stat().st_mtime_ns == 7
    assert (tmp_path / "out" / "link").is_symlink()


def test_an_old_output_of_empty_folders_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "out" / "sub").mkdir(parents=True)
    put(tmp_path, {"a": b"1"}, force=True)
    assert os.listdir(tmp_path / "out") == ["a"]


def test_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(mode=0o700)
    published, _, _ = put(tmp_path, {"a": b"1"})
    assert not published.replaced
    assert contents(tmp_path / "out") == {"a": b"1"}


@pytest.mark.parametrize("existing", ["absent", "empty"])
@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_a_target_that_appears_during_the_run_is_left_alone(tmp_path: Path, kind: str, existing: str) -> None:
    out = tmp_path / "out"
    if existing == "empty":
        out.mkdir()
    place = check_place(out, [], force=False)
    with pytest.raises(ConvertError) as caught, open_staging(place, "plan") as staging:
        write_small(staging, "a", b"1")
        if existing == "empty":
            out.rmdir()
        if kind == "folder":
            out.mkdir()
            (out / "theirs").write_bytes(b"theirs")
        elif kind == "file":
            out.write_bytes(b"theirs")
        else:
            out.symlink_to("nowhere")
        publish(staging, Stop())
    assert (caught.value.status, caught.value.code) == (5, "E_OUT_EXISTS")
    assert os.listdir(tmp_path) == ["out"]
    assert out.is_symlink() or contents(tmp_path) in ({"out/theirs": b"theirs"}, {"out": b"theirs"})


class NoFlags(Tap):
    """A filesystem that knows rename(2) only."""

    def rename(self, old: str, new: str, how: How) -> None:
        if how != "plain":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        super().rename(old, new, how)


def test_without_rename_flags_a_new_name_still_works(tmp_path: Path) -> None:
    put(tmp_path, {"a": b"1"}, tap=NoFlags())
    assert contents(tmp_path / "out") == {"a": b"1"}


def test_without_rename_flags_a_taken_name_is_left_alone(tmp_path: Path) -> None:
    place = check_place(tmp_path / "out", [], force=False)
    with pytest.raises(ConvertError) as caught, open_staging(place, "plan", syscalls=NoFlags()) as staging:
        write_small(staging, "a", b"1")
        (tmp_path / "out").mkdir()
        publish(staging, Stop())
    assert caught.value.code == "E_OUT_EXISTS"
    assert os.listdir(tmp_path / "out") == []


def test_without_exchange_an_old_folder_is_refused_before_the_work(tmp_path: Path) -> None:
    put(tmp_path, {"a": b"1"})
    place = check_place(tmp_path / "out", [], force=True)
    with pytest.raises(ConvertError) as caught, open_staging(place, "plan", syscalls=NoFlags()):
        raise AssertionError("not reached")
    assert caught.value.code == "E_WRITE"
    assert os.listdir(tmp_path) == ["out"]
    assert contents(tmp_path / "out") == {"a": b"1"}


def test_everything_is_durable_before_the_name_and_the_name_after(tmp_path: Path) -> None:
    tap = Tap()
    put(tmp_path, {"a": b"1", "b": b"2"}, tap=tap)
    at = tap.names.index("rename noreplace")
    assert tap.names[:at].count("fsync") >= 2 + 3  # at the start two folders; two files and their folder
    assert tap.names[at + 1 : at + 4] == ["open", "fsync", "close"]


def test_what_cannot_be_removed_afterwards_is_said(tmp_path: Path) -> None:
    class Stuck(Tap):
        def rmdir(self, path: str) -> None:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    place = check_place(tmp_path / "out", [], force=False)
    with open_staging(place, "plan", syscalls=Stuck()) as staging:
        write_small(staging, "a", b"1")
        published = publish(staging, Stop())
    assert [item.code for item in published.findings] == ["W_LEFT_BEHIND"]
    assert contents(tmp_path / "out") == {"a": b"1"}


def test_a_run_that_says_nothing_and_publishes_nothing_leaves_nothing(tmp_path: Path) -> None:
    place = check_place(tmp_path / "out", [], force=False)
    with open_staging(place, "plan") as staging:
        write_small(staging, "a", b"1")
    assert os.listdir(tmp_path) == []


def test_an_os_error_of_the_body_becomes_one_for_users(tmp_path: Path) -> None:
    place = check_place(tmp_path / "out", [], force=False)
    with pytest.raises(ConvertError) as caught, open_staging(place, "plan"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert (caught.value.status, caught.value.code) == (4, "E_NO_SPACE")
    assert os.listdir(tmp_path) == []


def test_an_error_of_the_program_passes_through(tmp_path: Path) -> None:
    place = check_place(tmp_path / "out", [], force=False)
    with pytest.raises(ZeroDivisionError), open_staging(place, "plan"):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []
