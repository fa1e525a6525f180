from __future__ import annotations

import os
from pathlib import Path

import pytest

from convertkit.containers.folder import open_checkpoint
from convertkit.errors import ConvertError
from convertkit.progress import Silent
from convertkit.release.digests import BUFFER_BYTES, batches, sha256_all, sha256_file, sha256_files, sha256_range
from tests.release.makers import TENSORS, model, put, sha256


@pytest.mark.parametrize("size", [0, 1, BUFFER_BYTES - 1, BUFFER_BYTES, 2 * BUFFER_BYTES + 17])
def test_a_file_has_the_digest_that_hashlib_gives_it(tmp_path: Path, size: int) -> None:
    data = bytes(number * 7 % 251 for number in range(1009)) * (size // 1009 + 1)
    put(tmp_path, {"x": data[:size]})
    found = sha256_file(tmp_path, "x")
    assert (found.size_bytes, found.sha256) == (size, sha256(data[:size]))


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
def test_workers_do_not_change_digests(tmp_path: Path, workers: int) -> None:
    root = model(tmp_path, {f"sub/{number}": bytes([number]) * number for number in range(20)})
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    found = sha256_files(root, names, workers)
    assert {name: item.sha256 for name, item in found.items()} == {
        name: sha256((root / name).read_bytes()) for name in names
    }


def test_tensor_digests_are_those_of_their_raw_bytes(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(model(tmp_path))
    found = sha256_all(tmp_path, {}, {"model.safetensors": list(checkpoint.tensors.values())})
    assert found.tensors == {("model.safetensors", name): sha256(data) for name, (_, _, data) in TENSORS.items()}
    assert not found.findings


def test_all_failures_are_reported_together(tmp_path: Path) -> None:
    put(tmp_path, {"sound": b"x"})
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConvertError) as raised:
        sha256_files(tmp_path, ["sound", "gone", "fifo"])
    assert sorted(item.code for item in raised.value.findings) == ["E_NOT_FOUND", "E_NOT_REGULAR"]


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    put(tmp_path, {"x": b"a" * (BUFFER_BYTES + 1)})

    def touch(size_bytes: int) -> None:
        with open(tmp_path / "x", "ab") as file:
            file.write(b"b")

    with pytest.raises(ConvertError) as raised:
        sha256_file(tmp_path, "x", touch)
    assert raised.value.code == "E_CHANGED"


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    put(tmp_path, {"x": b"a" * 10})
    fd = os.open(tmp_path / "x", os.O_RDONLY)
    try:
        with pytest.raises(ConvertError) as raised:
            sha256_range(fd, 4, 7, "x")
    finally:
        os.close(fd)
    assert raised.value.code == "E_CHANGED"


def test_an_interrupt_stops_the_other_threads(tmp_path: Path) -> None:
    put(tmp_path, {"x": bytes(40 * BUFFER_BYTES), "y": bytes(40 * BUFFER_BYTES)})
    seen = 0

    class Impatient(Silent):
        def stage(self, name: str, total_bytes: int) -> None:
            assert total_bytes == 80 * BUFFER_BYTES

        def advance(self, size_bytes: int) -> None:
            nonlocal seen
            seen += size_bytes
            if seen > BUFFER_BYTES:
                raise KeyboardInterrupt

        def done(self) -> None:
            raise AssertionError("the work did not end")

    with pytest.raises(KeyboardInterrupt):
        sha256_all(tmp_path, {"x": 40 * BUFFER_BYTES, "y": 40 * BUFFER_BYTES}, {}, 2, Impatient())
    assert seen < 40 * BUFFER_BYTES


def test_batches_keep_every_tensor_once_in_byte_order(tmp_path: Path) -> None:
    refs = list(open_checkpoint(model(tmp_path)).tensors.values())
    batched = [ref for batch in batches(reversed(refs)) for ref in batch]
    assert sorted(batched, key=lambda ref: ref.spec.name) == sorted(refs, key=lambda ref: ref.spec.name)
    assert [ref.start for ref in batched] == sorted(ref.start for ref in refs)
