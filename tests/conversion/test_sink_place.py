"""Places that must be refused, before anything is read, and those that must not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from convertkit.conversion.place import check_place, check_space
from convertkit.errors import ConvertError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "sub" / "notes.txt").write_bytes(b"notes")
    return folder


def refused(out: Path, sources: list[Path], *, force: bool = False, kind: str = "folder") -> str:
    with pytest.raises(ConvertError) as caught:
        check_place(out, sources, force=force, kind=kind)  # type: ignore[arg-type]
    assert caught.value.status == (4 if caught.value.code == "E_OUT_PARENT" else 5)
    return caught.value.code


def link_folder(base: Path, source: Path) -> Path:
    (base / "out").symlink_to(source)
    return base / "out"


def hard_link(base: Path, source: Path) -> Path:
    (base / "out").mkdir()
    os.link(source / "model.safetensors", base / "out" / "model.safetensors")
    return base / "out"


def deep_hard_link(base: Path, source: Path) -> Path:
    (base / "out" / "a" / "b").mkdir(parents=True)
    os.link(source / "sub" / "notes.txt", base / "out" / "a" / "b" / "x")
    return base / "out"


def link_to_a_file(base: Path, source: Path) -> Path:
    (base / "out").mkdir()
    (base / "out" / "model.safetensors").symlink_to(source / "model.safetensors")
    return base / "out"


def link_to_a_subfolder(base: Path, source: Path) -> Path:
    (base / "door").symlink_to(source / "sub")
    return base / "door" / "out"


SAME: dict[str, Callable[[Path, Path], Path]] = {
    "itself": lambda base, source: source,
    "dotdot": lambda base, source: source / ".." / "in",
    "link": link_folder,
    "hard link": hard_link,
    "deep hard link": deep_hard_link,
    "link to a file": link_to_a_file,
}
INSIDE: dict[str, Callable[[Path, Path], Path]] = {
    "below": lambda base, source: source / "out",
    "in its subfolder": lambda base, source: source / "sub" / "out",
    "the subfolder": lambda base, source: source / "sub",
    "through a link": link_to_a_subfolder,
    "above": lambda base, source: base,
    "dotdot": lambda base, source: base / "x" / ".." / "in" / "out",
}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("case", SAME)
def test_an_output_that_is_the_source(tmp_path: Path, source: Path, case: str, force: bool) -> None:
    assert refused(SAME[case](tmp_path, source), [tmp_path / "other", source], force=force) == "E_OUT_IS_IN"


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("case", INSIDE)
def test_one_inside_the_other(tmp_path: Path, source: Path, case: str, force: bool) -> None:
    assert refused(INSIDE[case](tmp_path, source), [source], force=force) == "E_OUT_INSIDE_IN"


def test_what_exists_is_refused_and_with_force_replaced(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "keep.txt").write_bytes(b"precious")
    assert refused(out, [source]) == "E_OUT_EXISTS"
    assert check_place(out, [source], force=True).existing == "old"
    assert (out / "keep.txt").read_bytes() == b"precious"


@pytest.mark.parametrize(("kind", "make"), [("folder", Path.touch), ("file", Path.mkdir)])
def test_the_wrong_kind_is_refused_even_with_force(
    tmp_path: Path, source: Path, kind: str, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "out")
    assert refused(tmp_path / "out", [source], force=True, kind=kind) == "E_OUT_EXISTS"


def test_special_files_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe", [], force=True, kind="file") == "E_OUT_EXISTS"
    assert refused(Path("/"), [], force=True) == "E_OUT_EXISTS"


def test_a_dangling_link_is_something(tmp_path: Path, source: Path) -> None:
    (tmp_path / "out").symlink_to("nowhere/x")
    assert refused(tmp_path / "out", [source]) == "E_OUT_EXISTS"
    assert refused(tmp_path / "out", [source], force=True) == "E_OUT_PARENT"
    (tmp_path / "nowhere").mkdir()
    assert check_place(tmp_path / "out", [source], force=True).out == tmp_path / "nowhere" / "x"


def test_an_empty_folder_counts_as_absent(tmp_path: Path, source: Path) -> None:
    (tmp_path / "out").mkdir()
    place = check_place(tmp_path / "out", [source], force=False)
    assert (place.out, place.existing) == (tmp_path / "out", "empty")


def test_a_single_file_source_may_lie_beside_the_output(tmp_path: Path, source: Path) -> None:
    file = source / "model.safetensors"
    assert check_place(source / "out", [file], force=False).out == source / "out"
    assert refused(file, [file], force=True, kind="file") == "E_OUT_IS_IN"
    os.link(file, tmp_path / "other.gguf")
    assert refused(tmp_path / "other.gguf", [source], force=True, kind="file") == "E_OUT_IS_IN"
    assert refused(source / "new.gguf", [source], kind="file") == "E_OUT_INSIDE_IN"


def test_the_parent_must_be_there(tmp_path: Path, source: Path) -> None:
    assert refused(tmp_path / "no" / "out", [source]) == "E_OUT_PARENT"
    assert refused(source / "model.safetensors" / "out", []) == "E_OUT_PARENT"
    assert not (tmp_path / "no").exists()


def test_names_beside_a_very_long_name_fit(tmp_path: Path) -> None:
    for name in ("x" * 255, "ü" * 127, "short"):
        place = check_place(tmp_path / name, [], force=False)
        for beside in (place.lock, place.partial("plan")):
            assert len(os.fsencode(beside.name)) <= 255
            beside.touch()
    assert len(os.listdir(tmp_path)) == 6


def test_known_space(tmp_path: Path) -> None:
    place = check_place(tmp_path / "out", [], force=False)
    check_space(place, 0)
    with pytest.raises(ConvertError) as caught:
        check_space(place, 1 << 60)
    assert (caught.value.status, caught.value.code) == (4, "E_NO_SPACE")
    assert caught.value.findings[0].data["needed_bytes"] == (1 << 60) * 101 // 100


def test_space_is_counted_to_the_byte_with_a_hundredth_to_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = check_place(tmp_path / "out", [], force=False)
    disk = SimpleNamespace(f_blocks=100, f_bavail=10, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    check_space(place, 40_554)  # and one percent: 40,959
    check_space(place, 40_555)  # 40,960
    with pytest.raises(ConvertError) as caught:
        check_space(place, 40_556)
    assert caught.value.findings[0].data == {"needed_bytes": 40_961, "free_bytes": 40_960}
    place.partial("plan").mkdir()
    (place.partial("plan") / "staged").write_bytes(bytes(10_000))
    staged = os.stat(place.partial("plan") / "staged").st_blocks * 512
    assert staged >= 10_000
    check_space(place, (40_960 + staged) * 100 // 101, reuse="plan")
    with pytest.raises(ConvertError):
        check_space(place, 40_960 + staged, reuse="plan")
    disk.f_blocks = 0  # the filesystem does not say
    check_space(place, 1 << 60)


def test_an_output_that_is_refused_anyway_is_not_walked_to_its_end(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convertkit.conversion.place.MAX_LOOKED_AT", 3)
    looked_at = []
    real = os.walk

    def walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for step in real(folder):
            looked_at.append(step[0])
            yield step

    monkeypatch.setattr(os, "walk", walk)
    for number in range(20):
        (tmp_path / "out" / str(number)).mkdir(parents=True)
        (tmp_path / "out" / str(number) / "file").write_text("x")
    assert refused(tmp_path / "out", [source]) == "E_OUT_EXISTS"
    assert sum(folder.startswith(str(tmp_path / "out")) for folder in looked_at) <= 2
