"""What changes, is never written, or stops while a verb runs is noticed, and the verb ends."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from convertkit.containers.folder import open_checkpoint
from convertkit.containers.reader import PRESENT, Reader
from convertkit.conversion.desk import Desk
from convertkit.conversion.outputs import Made
from convertkit.conversion.stop import Interrupted, Stop
from convertkit.conversion.syscalls import Kernel
from convertkit.conversion.tiles import Buffers
from convertkit.errors import ConvertError
from convertkit.progress import SILENT
from convertkit.verbs import line
from convertkit.verbs.fix_keys import fix_keys
from convertkit.verbs.gate import compared_files
from convertkit.verbs.pack import pack_nvfp4
from tests.crash.pipeline import contents
from tests.dialects.tiny import LM_CONFIG, causal_lm, write
from tests.verbs.test_fix_keys import LONG

DRAFTER = Path(__file__).parents[2] / "fixtures" / "dflash2-tiny"


def code_of(work: Callable[[], object]) -> str:
    with pytest.raises(ConvertError) as caught:
        work()
    return caught.value.code


def test_a_config_that_changes_during_a_run_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = shutil.copytree(DRAFTER, tmp_path / "source")
    execute: Callable[..., Made] = vars(line)["execute"]

    def changing(*words: Any) -> Made:
        (source / "config.json").write_text('{"model_type": "other"}')
        return execute(*words)

    monkeypatch.setattr(line, "execute", changing)
    assert code_of(lambda: pack_nvfp4(source, tmp_path / "out")) == "E_CHANGED"
    assert not (tmp_path / "out").exists()


def test_a_weight_file_that_is_replaced_before_its_digest_is_taken_is_noticed(tmp_path: Path) -> None:
    source = shutil.copytree(DRAFTER, tmp_path / "source")
    opened = open_checkpoint(source)
    assert {row["path"] for row in compared_files(opened, 1)} == {"model.safetensors", "config.json"}
    shutil.copyfile(source / "model.safetensors", tmp_path / "other")
    (tmp_path / "other").replace(source / "model.safetensors")
    assert code_of(lambda: compared_files(opened, 1)) == "E_CHANGED"
    compared_files(open_checkpoint(source), 1)


def test_bytes_that_nobody_writes_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads behind the writers waits for every byte: it must not be asked first."""
    monkeypatch.setattr(line, "execute", lambda *words: Made({}, {}))
    monkeypatch.setattr(line, "verify_output", lambda *words: ())
    assert code_of(lambda: pack_nvfp4(DRAFTER, tmp_path / "out")) == "E_INTERNAL"
    assert list(tmp_path.iterdir()) == []


def test_hashing_a_source_tensor_hears_a_signal() -> None:
    stop = Stop()
    with Reader(open_checkpoint(DRAFTER)) as reader:
        desk = Desk(reader, stop, SILENT, Buffers())
        assert len(line._digest_of(desk, "norm.weight")) == 64
        assert line._digest_of(desk, "no.such") == ""
        stop.signum = 2
        with pytest.raises(Interrupted):
            line._digest_of(desk, "norm.weight")


def test_an_fsync_that_fails_after_blocks_were_moved_is_not_taken_for_blocks_that_cannot_move(tmp_path: Path) -> None:
    class Odd(Kernel):
        """Moves blocks by itself; the first fsync after that fails as if the call were not known."""

        moved = 0

        def shift(self, fd: int, size_bytes: int) -> None:
            data = os.pread(fd, os.fstat(fd).st_size, 0)
            data = bytes(size_bytes) + data if size_bytes > 0 else data[-size_bytes:]
            os.ftruncate(fd, len(data))
            os.pwrite(fd, data, 0)
            self.moved += 1

        def fsync(self, fd: int) -> None:
            if self.moved == 1:
                self.moved += 1
                raise OSError(errno.EINVAL, "Invalid argument")
            super().fsync(fd)

    source = write(tmp_path / "source", causal_lm(), LM_CONFIG)
    before = contents(source)
    calls = Odd()
    assert code_of(lambda: fix_keys(source, in_place=True, rename=[LONG], syscalls=calls)) == "E_WRITE"
    assert calls.moved == 3
    assert contents(source) == before


def test_only_bytes_that_were_fetched_are_read(tmp_path: Path) -> None:
    source = shutil.copytree(DRAFTER, tmp_path / "source")
    opened = open_checkpoint(source)
    ref = opened.tensors["norm.weight"]
    end = ref.start + ref.size_bytes
    whole = Reader(opened).bytes_of("norm.weight")
    for parts, is_there in (
        (f"[[0, 8], [{ref.start}, {end}]]", True),
        (f"[[{ref.start}, {end}], [0, 8]]", True),
        (f"[[0, 8], [{ref.start}, {end - 1}]]", False),
        (f"[[0, 8], [{ref.start + 1}, {end}]]", False),
        ("[]", False),
    ):
        (source / PRESENT).write_text(f'{{"model.safetensors": {parts}}}')
        with Reader(opened) as reader:
            if is_there:
                assert reader.bytes_of("norm.weight") == whole
            else:
                assert code_of(lambda: reader.bytes_of("norm.weight")) == "E_HUB_PARTIAL"


@pytest.mark.parametrize("text", ["[]", "{", '{"a": 1}', '{"a": [1]}', '{"a": [[0, "8"]]}', '{"a": [[0, 8, 9]]}'])
def test_a_list_of_fetched_bytes_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    source = shutil.copytree(DRAFTER, tmp_path / "source")
    (source / PRESENT).write_text(text)
    assert code_of(lambda: Reader(open_checkpoint(source))) == "E_JSON"
