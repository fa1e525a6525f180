"""The checks of a run: one flipped bit in what was staged is found for every kind of unit, and nothing is published."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import convertkit.conversion.run as run
import convertkit.verbs.line as line
from convertkit.errors import ConvertError
from convertkit.verbs.convert import convert
from convertkit.verbs.dequant import dequant
from convertkit.verbs.fix_keys import fix_keys
from convertkit.verbs.pack import pack_nvfp4
from convertkit.verbs.to_gguf import to_gguf
from tests.gguf.models import write_model

FIXTURES = Path(__file__).parents[2] / "fixtures"
DRAFTER, EXPORT = FIXTURES / "dflash2-tiny", FIXTURES / "modelopt-export-tiny"
MODULE = "model.layers.0.mlp.down_proj"


def flip(monkeypatch: pytest.MonkeyPatch, tensor: str, byte: int = 0) -> None:
    """Flip the lowest bit of one byte on its way to the disk, as a wrong buffer or a bad disk would."""
    execute = run.execute

    def spoiled(plan: Any, facts: Any, desk: Any, sink: Any, workers: int, done: Any, known: Any) -> object:
        file = plan.file_of[tensor]
        place = byte + next(item.header.starts[tensor] for item in plan.files if item.name == file)
        write_at = sink.write_at

        def write(name: str, offset: int, data: memoryview) -> None:
            changed = bytearray(data)
            if name == file and offset <= place < offset + len(changed):
                changed[place - offset] ^= 1
            write_at(name, offset, memoryview(changed))

        def copy(name: str, offset: int, source: int, source_offset: int, size: int) -> None:
            copy_at(name, offset, source, source_offset, size)
            if name == file and offset <= place < offset + size:
                fd = sink._files[name].fd
                os.pwrite(fd, bytes([os.pread(fd, 1, place)[0] ^ 1]), place)

        copy_at = sink.copy_at
        sink.write_at, sink.copy_at = write, copy
        return execute(plan, facts, desk, sink, workers, done, known)

    monkeypatch.setattr(line, "execute", spoiled)


def pack(out: Path) -> object:
    return pack_nvfp4(DRAFTER, out)


def respell(out: Path) -> object:
    return convert(EXPORT, out, to="nvfp4-ct")


def expand(out: Path) -> object:
    return dequant(EXPORT, out)


def cast(out: Path) -> object:
    return convert(DRAFTER, out, to="f32")


def rename(out: Path) -> object:
    return fix_keys(DRAFTER, out, rename=["{rest}=model.{rest}"])


def to_dflash_gguf(out: Path) -> object:
    target = write_model(out.parent / "target", "qwen3")
    source = write_model(out.parent / "drafter", "dflash")
    try:
        return to_gguf(source, out, target_model=target)
    finally:
        shutil.rmtree(target)
        shutil.rmtree(source)


CASES: dict[str, tuple[Callable[[Path], object], str, int]] = {
    "copied tensor of a pack": (pack, "norm.weight", 1),
    "codes": (pack, "layers.2.mlp.up_proj.weight", 77),
    "block scales": (pack, "layers.2.mlp.up_proj.weight_scale", 5),
    "global scale": (pack, "layers.2.mlp.up_proj.weight_scale_2", 0),
    "expanded weight": (expand, f"{MODULE}.weight", 40),
    "copied tensor of an expansion": (expand, "model.norm.weight", 0),
    "re-spelled codes": (respell, f"{MODULE}.weight_packed", 9),
    "re-spelled block scales": (respell, f"{MODULE}.weight_scale", 3),
    "re-spelled global scale": (respell, f"{MODULE}.weight_global_scale", 1),
    "cast tensor": (cast, "fc.weight", 12),
    "renamed tensor": (rename, "model.norm.weight", 3),
    "tensor copied into a GGUF": (to_dflash_gguf, "fc.weight", 7),
}


@pytest.mark.parametrize("case", CASES)
def test_one_flipped_bit_breaks_the_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    run, tensor, byte = CASES[case]
    flip(monkeypatch, tensor, byte)
    with pytest.raises(ConvertError) as caught:
        run(tmp_path / "out")
    assert (caught.value.code, caught.value.status) == ("E_PROMISE", 70)
    assert {item.where.tensor for item in caught.value.findings} == {tensor}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("run", [pack, expand, respell, cast, rename, to_dflash_gguf])
def test_untouched_runs_pass(tmp_path: Path, run: Callable[[Path], object]) -> None:
    run(tmp_path / "out")
    assert (tmp_path / "out" / "SHA256SUMS").exists()
