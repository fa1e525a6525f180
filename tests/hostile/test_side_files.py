"""Side files of every kind: what cannot be read is refused before work begins, what is large stays out of memory."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from itertools import count as count_from
from pathlib import Path

import pytest

from convertkit.conversion.syscalls import Kernel
from convertkit.errors import ConvertError
from convertkit.verbs import line
from convertkit.verbs.case import Result
from convertkit.verbs.convert import convert

DRAFTER = Path(__file__).parents[2] / "fixtures" / "dflash-tiny"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DRAFTER, tmp_path / "source"))


def converted(source: Path) -> Result:
    made = convert(source, source.parent / "out", to="f32")
    assert isinstance(made, Result)
    return made


def left_behind(source: Path) -> list[str]:
    return sorted(path.name for path in source.parent.iterdir() if path != source)


@pytest.mark.parametrize("name", ["extra.txt", "README.md"])
def test_a_link_out_of_the_source_is_refused_before_work_begins(
    source: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / name).unlink(missing_ok=True)
    (source / name).symlink_to("/etc/passwd")
    monkeypatch.setattr(line, "open_staging", None)
    with pytest.raises(ConvertError) as caught:
        converted(source)
    assert caught.value.code == "E_PATH_ESCAPE"
    assert left_behind(source) == []


def test_what_is_not_copied_is_told(source: Path) -> None:
    """Folders may belong to the model (transformers keeps chat templates in one); hidden names never do."""
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "rag.jinja").write_text("x")
    (source / "training_args.bin").write_bytes(b"x")
    (source / ".gitattributes").write_text("x")
    (source / "kept.txt").write_text("x")
    made = converted(source)
    told = [item.data["entries"] for item in made.findings if item.code == "N_LEFT_BEHIND" and item.data is not None]
    assert told == [{"additional_chat_templates": "folder", "training_args.bin": "weights of another format"}]
    assert (made.out / "kept.txt").read_text() == "x"
    assert not (made.out / "training_args.bin").exists()


def test_a_failure_beside_the_weights_ends_the_run(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader that takes digests behind the writers waits for bytes: it must hear that none will come."""

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(line, "write_small", fail)
    with pytest.raises(ConvertError) as caught:
        converted(source)
    assert caught.value.code == "E_WRITE"
    assert left_behind(source) == []


def test_a_side_file_that_changes_while_it_is_copied_is_refused(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source / "extra.txt").write_text("one")
    real, moments = Kernel.copy_range, count_from(1)

    def changing(kernel: Kernel, *numbers: int) -> int:
        count = real(kernel, *numbers)
        os.utime(source / "extra.txt", ns=(1, next(moments)))
        return count

    monkeypatch.setattr(Kernel, "copy_range", changing)
    with pytest.raises(ConvertError) as caught:
        converted(source)
    assert caught.value.code == "E_CHANGED"
    assert left_behind(source) == []


def test_a_large_side_file_is_never_held_in_memory(source: Path) -> None:
    size = 300 << 20
    with open(source / "optimizer.state", "wb") as stream:
        stream.write(b"begin")
        stream.truncate(size)
    converted(source)
    shutil.rmtree(source.parent / "out")
    tracemalloc.start()
    try:
        converted(source)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    made = source.parent / "out" / "optimizer.state"
    assert (made.stat().st_size, made.open("rb").read(8)) == (size, b"begin\0\0\0")
    assert peak < size // 3


@pytest.mark.parametrize("name", [b"a\nb", b"\xff", b"a\\b", "\u202ex".encode(), b"C:x"])
def test_side_files_that_no_manifest_could_list_stay_behind(source: Path, name: bytes) -> None:
    with open(os.path.join(os.fsencode(source), name), "w") as stream:
        stream.write("x")
    made = converted(source)
    assert os.fsdecode(name) not in os.listdir(made.out)
