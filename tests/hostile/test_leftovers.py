"""What lies beside or at the destination may be anything: left by an interrupted run, by a user, or planted."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from convertkit.conversion.sink import Sink
from convertkit.conversion.stop import Interrupted
from convertkit.errors import ConvertError
from convertkit.verbs.case import Options, Result
from convertkit.verbs.pack import pack_nvfp4
from convertkit.verbs.verify import verify

DRAFTER = Path(__file__).parents[2] / "fixtures" / "dflash-tiny"


def listing(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def packed(out: Path, options: Options = Options()) -> Path:
    made = pack_nvfp4(DRAFTER, out, options=options)
    assert isinstance(made, Result)
    return out


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return listing(packed(tmp_path_factory.mktemp("undisturbed") / "out"))


def interrupted(out: Path, after: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The staging folder of a run that a signal stops once ``after`` tensors are finished."""
    seen = []
    real = Sink.tensor_done

    def done(sink: Sink, *words: object) -> None:
        real(sink, *words)  # type: ignore[arg-type]
        seen.append(words[0])
        if len(seen) == after:
            raise Interrupted(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Sink, "tensor_done", done)
        with pytest.raises(Interrupted):
            packed(out, Options(workers=1))
    return next(path for path in out.parent.iterdir() if ".partial-" in path.name)


@pytest.mark.parametrize("after", [1, 2, 3, 4, 5, 7, 9, 20, 30, 40, 43])
def test_a_run_that_stopped_inside_a_fused_group_is_resumed(
    tmp_path: Path, after: int, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(tmp_path / "out", after, monkeypatch)
    assert listing(packed(tmp_path / "out", Options(resume=True))) == undisturbed
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_tensor_that_comes_out_differently_is_not_mixed_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal vouches for bytes that this source does not give: a lie, or another source."""
    base = interrupted(tmp_path / "out", 4, monkeypatch)
    head, *entries = (json.loads(line[17:]) for line in (base / "journal").read_bytes().splitlines())
    entry = next(entry for entry in entries if entry["name"].endswith("mlp.gate_proj.weight"))
    staged = base / "files" / "model.safetensors"
    data = bytearray(staged.read_bytes())
    first = int.from_bytes(data[:8], "little") + 8
    start, end = json.loads(data[8:first])[entry["name"]]["data_offsets"]
    data[first + start : first + end] = bytes(end - start)
    staged.write_bytes(data)
    entry["sha256"] = hashlib.sha256(bytes(end - start)).hexdigest()
    write_journal(base, head, entry)
    with pytest.raises(ConvertError) as caught:
        packed(tmp_path / "out", Options(resume=True))
    assert (caught.value.code, caught.value.status) == ("E_RESUME", 5)
    assert list(tmp_path.iterdir()) == []


def write_journal(base: Path, *values: object) -> None:
    lines = (json.dumps(value).encode() if not isinstance(value, bytes) else value for value in values)
    text = b"".join(hashlib.sha256(line).hexdigest()[:16].encode() + b" " + line + b"\n" for line in lines)
    (base / "journal").write_bytes(text)


def another_kind(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(base: Path) -> None:
        (base / name).unlink()
        make(base / name)

    return damage


def moved_behind_a_link(name: str) -> Callable[[Path], None]:
    def damage(base: Path) -> None:
        place = base / name if name else base
        elsewhere = base.parent.parent / f"{base.parent.name}-elsewhere"
        place.rename(elsewhere)
        place.symlink_to(elsewhere)

    return damage


DAMAGE: dict[str, Callable[[Path], object]] = {
    "journal is a FIFO": another_kind("journal", os.mkfifo),
    "journal is a folder": another_kind("journal", Path.mkdir),
    "journal is deep": lambda base: write_journal(base, b"[" * 100_000),
    "journal is no JSON": lambda base: write_journal(base, b"{"),
    "journal has odd types": lambda base: write_journal(base, {"version": 1, "plan": 5, "folder": [], "stamps": []}),
    "note is a folder": another_kind("run.json", Path.mkdir),
    "files behind a link": moved_behind_a_link("files"),
    "all behind a link": moved_behind_a_link(""),
    "a stranger": lambda base: (base / "files" / "evil.py").write_text("x"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_staging_of_any_kind_is_never_trusted(
    tmp_path: Path, damage: Callable[[Path], object], undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(interrupted(tmp_path / "out", 4, monkeypatch))
    assert listing(packed(tmp_path / "out", Options(resume=True))) == undisturbed
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("kind", ["link", "file", "folder", "fifo"])
def test_a_stranger_under_the_name_of_the_lock_is_left_alone(tmp_path: Path, kind: str) -> None:
    lock, precious = tmp_path / ".out.lock", tmp_path / "precious"
    precious.write_text("of somebody")
    make: dict[str, Callable[[], object]] = {
        "link": lambda: lock.symlink_to(precious),
        "file": lambda: lock.write_text("of somebody"),
        "folder": lock.mkdir,
        "fifo": lambda: os.mkfifo(lock),
    }
    make[kind]()
    before = os.lstat(lock)
    with pytest.raises(ConvertError) as caught:
        packed(tmp_path / "out")
    assert (caught.value.code, caught.value.status) == ("E_OUT_EXISTS", 5)
    assert os.path.samestat(before, os.lstat(lock))
    assert precious.read_text() == "of somebody"
    assert kind != "file" or lock.read_text() == "of somebody"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"12345", b"12345\n"])
def test_a_lock_of_a_dead_run_is_taken_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".out.lock").write_bytes(content)
    assert verify(packed(tmp_path / "out")).status == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["MANIFEST.json", "SHA256SUMS"])
def test_an_old_output_whose_manifest_is_a_fifo_is_replaced(tmp_path: Path, name: str) -> None:
    packed(tmp_path / "out")
    (tmp_path / "out" / name).unlink()
    os.mkfifo(tmp_path / "out" / name)
    shutil.copy(DRAFTER / "config.json", tmp_path / "out" / "notes.txt")
    assert verify(packed(tmp_path / "out", Options(force=True))).status == 0
    assert (tmp_path / "out" / "notes.txt").exists()


def test_a_report_folder_that_cannot_be_made_does_not_hide_the_verdict(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConvertError) as caught:
        pack_nvfp4(
            DRAFTER, tmp_path / "out", limits={"max_rel_rms": 0.0}, options=Options(report_dir=tmp_path / "file")
        )
    codes = [item.code for item in caught.value.findings]
    assert (codes[0], codes[-1], caught.value.status) == ("E_GATE", "E_WRITE", 1)
    assert str(tmp_path / "file") in caught.value.findings[-1].message
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("name", "code"), [("pipe", "E_NOT_REGULAR"), ("two\nlines", "E_NAME_UNSAFE")])
def test_an_old_output_that_cannot_be_listed_again_is_refused_before_any_work(
    tmp_path: Path, name: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = packed(tmp_path / "out")
    before = listing(out)
    if name == "pipe":
        os.mkfifo(out / name)
    else:
        (out / name).write_text("the user's")
    monkeypatch.setattr(Sink, "tensor_done", lambda *words: pytest.fail("worked before it looked"))
    with pytest.raises(ConvertError) as caught:
        packed(out, Options(force=True))
    assert caught.value.code == code
    os.remove(out / name)
    assert listing(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_replaces_an_odd_entry_of_ours_is_not_refused(tmp_path: Path, undisturbed: dict[str, str]) -> None:
    out = packed(tmp_path / "out")
    os.remove(out / "config.json")
    os.mkfifo(out / "config.json")
    packed(out, Options(force=True))
    assert listing(out).keys() == undisturbed.keys()
