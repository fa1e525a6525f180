"""The journal survives being cut or damaged at any byte: what precedes is read, what follows is not."""

from __future__ import annotations

import os
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from convertkit.checkpoint import FileStamp
from convertkit.conversion.journal import Entry, Head, read_journal, start_journal
from convertkit.conversion.syscalls import KERNEL
from convertkit.errors import ConvertError
from tests.crash.pipeline import SPECS, Tap, contents, convert, make_source

HEAD = Head("plan", 7, {"model.safetensors": FileStamp(1, 2, 3, 4)})
ENTRIES = [
    Entry("a", "00" * 32, 4, {}),
    Entry('wéird "name"\n\u2028', "11" * 32, 0, {"x": "22" * 32, "y": "33" * 32}),
    Entry("c", "44" * 32, 1 << 40, {"c": "44" * 32}),
]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    opened = start_journal(KERNEL, path, HEAD, ENTRIES[:1])
    opened.append(ENTRIES[1:2])
    opened.append(ENTRIES[2:], durable=False)
    opened.close()
    assert os.listdir(tmp_path) == ["journal"]
    return path


def test_round_trip(journal: Path) -> None:
    assert read_journal(journal) == (HEAD, ENTRIES)


def test_the_last_line_of_a_tensor_counts(journal: Path) -> None:
    opened = start_journal(KERNEL, journal, HEAD, [*ENTRIES, Entry("a", "99" * 32, 4, {})])
    opened.close()
    _, entries = read_journal(journal)
    assert {entry.name: entry.sha256[:2] for entry in entries}["a"] == "99"
    assert len(entries) == 3


def test_cut_at_any_byte(journal: Path) -> None:
    whole = journal.read_bytes()
    ends = [position + 1 for position, byte in enumerate(whole) if byte == 10]
    for cut in range(len(whole)):
        journal.write_bytes(whole[:cut])
        complete = sum(end <= cut for end in ends)
        expected = (HEAD, ENTRIES[: complete - 1]) if complete else (None, [])
        assert read_journal(journal) == expected, cut


def test_damaged_at_any_byte(journal: Path) -> None:
    whole = journal.read_bytes()
    for position in range(len(whole)):
        journal.write_bytes(whole[:position] + bytes([whole[position] ^ 0x41]) + whole[position + 1 :])
        line = whole[:position].count(10)
        expected = (HEAD, ENTRIES[: line - 1]) if line else (None, [])
        assert read_journal(journal) == expected, position


def test_no_journal_or_another_version(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "none") == (None, [])
    text = b'{"folder":7,"plan":"plan","stamps":{},"version":2}'
    (tmp_path / "other").write_bytes(sha256(text).hexdigest()[:16].encode() + b" " + text + b"\n")
    assert read_journal(tmp_path / "other") == (None, [])


def interrupted(folder: Path) -> Path:
    """A staging folder in which every tensor is finished, but not the config."""
    make_source(folder / "in")
    tap = Tap()
    convert(folder / "in", folder / "other", syscalls=tap)
    config = tap.names.index("unlink", tap.names.index("fdatasync"))

    def before(number: int, _name: str) -> None:
        if number == config:
            raise OSError(28, "full")

    with pytest.raises(ConvertError):
        convert(folder / "in", folder / "out", syscalls=Tap(before))
    return next(folder.glob(".out.partial-*"))


def resume(folder: Path) -> frozenset[str]:
    run = convert(folder / "in", folder / "out", resume=True)
    assert contents(folder / "out") == contents(folder / "other")
    assert sorted(os.listdir(folder)) == ["in", "other", "out"]
    return run.done_before


ALL = frozenset(spec.name for spec in SPECS)


def test_resume_trusts_what_hashes_as_recorded(tmp_path: Path) -> None:
    interrupted(tmp_path)
    assert resume(tmp_path) == ALL


@pytest.mark.parametrize(("file", "byte"), [("model-1.safetensors", -1), ("model-2.safetensors", -70_000)])
def test_resume_makes_damaged_tensors_anew(tmp_path: Path, file: str, byte: int) -> None:
    staged = interrupted(tmp_path) / "files" / file
    data = bytearray(staged.read_bytes())
    data[byte] ^= 1
    staged.write_bytes(data)
    done = resume(tmp_path)
    assert len(done) == len(ALL) - 1
    assert done < ALL


def test_resume_with_a_staged_file_cut_longer_or_gone(tmp_path: Path) -> None:
    for change in (
        lambda path: path.unlink(),
        lambda path: os.truncate(path, 50),
        lambda path: os.truncate(path, 1 << 20),
    ):
        folder = tmp_path / str(len(os.listdir(tmp_path)))
        folder.mkdir()
        change(interrupted(folder) / "files" / "model-1.safetensors")
        assert len(resume(folder)) >= len(ALL) - 1


def test_resume_makes_tensors_of_a_changed_source_anew(tmp_path: Path) -> None:
    interrupted(tmp_path)
    source = tmp_path / "in" / "model.safetensors"
    data = bytearray(source.read_bytes())
    data[-1] ^= 1  # the last tensor in the file is a.weight
    source.write_bytes(data)
    run = convert(tmp_path / "in", tmp_path / "out", resume=True)
    assert run.done_before == ALL - {"a.weight"}
    assert [item.code for item in run.findings] == ["W_SOURCE_TOUCHED"]
    convert(tmp_path / "in", tmp_path / "fresh")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_resume_without_source_digests_needs_untouched_files(tmp_path: Path) -> None:
    base = interrupted(tmp_path)
    head, entries = read_journal(base / "journal")
    assert head is not None
    start_journal(KERNEL, base / "journal", head, [Entry(e.name, e.sha256, e.size_bytes, {}) for e in entries]).close()
    shutil.copytree(tmp_path, tmp_path.parent / (tmp_path.name + "-b"), symlinks=True)
    os.utime(tmp_path / "in" / "model.safetensors", ns=(1, 1))
    assert resume(tmp_path) == frozenset()


def test_resume_of_another_plan_or_of_nothing(tmp_path: Path) -> None:
    base = interrupted(tmp_path)
    with pytest.raises(ConvertError) as caught:
        convert(tmp_path / "in", tmp_path / "out", resume=True, fingerprint="another")
    assert (caught.value.status, caught.value.code) == (5, "E_RESUME")
    assert base.name in str(caught.value)
    run = convert(tmp_path / "in", tmp_path / "third", resume=True)
    assert [item.code for item in run.findings] == ["N_NOTHING_TO_RESUME"]
    assert run.done_before == frozenset()
    assert sorted(os.listdir(tmp_path)) == [base.name, "in", "other", "third"]


def test_another_plan_leaves_the_debris_and_names_it(tmp_path: Path) -> None:
    base = interrupted(tmp_path)
    run = convert(tmp_path / "in", tmp_path / "out", fingerprint="another")
    assert [item.code for item in run.findings] == ["W_UNFINISHED"]
    assert base.name in run.findings[0].message
    assert base.exists()
    convert(tmp_path / "in", tmp_path / "out", fingerprint="a third", force=True, keep=False)
    assert sorted(os.listdir(tmp_path)) == ["in", "other", "out"]


def test_the_same_plan_without_resume_begins_anew(tmp_path: Path) -> None:
    interrupted(tmp_path)
    run = convert(tmp_path / "in", tmp_path / "out")
    assert run.done_before == frozenset()
    assert [item.code for item in run.findings] == ["W_UNFINISHED"]
    assert sorted(os.listdir(tmp_path)) == ["in", "other", "out"]


def test_an_old_output_that_was_swapped_in_is_not_mistaken_for_staged_files(tmp_path: Path) -> None:
    """A run that dies right after the exchange leaves the old output where its staged files were."""
    base = interrupted(tmp_path)
    (base / "files").rename(tmp_path / "out")
    (base / "files").mkdir()
    (base / "files" / "model-1.safetensors").write_bytes(b"old")
    shutil.rmtree(tmp_path / "out")
    assert resume(tmp_path) == frozenset()


def test_a_staged_hard_link_is_never_written_through(tmp_path: Path) -> None:
    base = interrupted(tmp_path)
    precious = tmp_path / "in" / "precious"
    os.link(base / "files" / "model-1.safetensors", precious)
    before = precious.read_bytes()
    convert(tmp_path / "in", tmp_path / "out", resume=True)
    assert precious.read_bytes() == before
    assert precious.stat().st_nlink == 1
