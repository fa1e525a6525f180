"""Values that become infinite, cards that speak of the source's bytes, and disks that fail while they are read."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convertkit.containers import safetensors
from convertkit.containers.folder import open_checkpoint
from convertkit.demo.generate import generate
from convertkit.errors import ConvertError
from convertkit.verbs.case import Result
from convertkit.verbs.convert import convert
from convertkit.verbs.dequant import dequant
from convertkit.verbs.pack import pack_nvfp4
from tests.containers.test_strict_reader import entry, file_of, raw
from tests.dialects.tiny import LM_CONFIG, MLP, causal_lm, spec, write
from tests.drafters.make import drafter, eagle, target

CT = "compressed-tensors"
MODULE = "model.layers.0.mlp.up_proj"


def test_an_expansion_to_infinity_is_refused_with_its_count(tmp_path: Path) -> None:
    # Codes 1.0 and 0.5 on a block scale of 1.0: with G = 2^-16 the one is 65536 and the other 32768.
    source = write(
        tmp_path / "source", causal_lm(MLP, CT), LM_CONFIG,
        values={f"{MODULE}.weight_global_scale": np.float32(2.0**-16).tobytes()},
    )  # fmt: skip
    with pytest.raises(ConvertError) as caught:
        dequant(source, tmp_path / "out", dtype="f16")
    assert [(item.code, item.where.tensor, item.data["count"]) for item in caught.value.findings] == [
        ("E_NONFINITE_OUTPUT", f"{MODULE}.weight", 512)
    ]
    assert not (tmp_path / "out").exists()
    dequant(source, tmp_path / "out")


def test_a_cast_to_infinity_is_refused_with_its_count(tmp_path: Path) -> None:
    values = np.array([65519.0, 65520.0, -70000.0, np.inf] * 8, np.float32)  # the first rounds to 65504; inf stays
    name = "model.layers.1.input_layernorm.weight"
    specs = [item for item in causal_lm() if item.name != name]
    source = write(tmp_path / "source", [*specs, spec(name, "F32", 32)], LM_CONFIG, values={name: values.tobytes()})
    with pytest.raises(ConvertError) as caught:
        convert(source, tmp_path / "out", to="f16")
    assert [(item.code, item.where.tensor, item.data["count"]) for item in caught.value.findings] == [
        ("E_NONFINITE_OUTPUT", name, 16)
    ]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("claim", ["sha256: " + "0a" * 32, "3,848,817,920 bytes", ""])
def test_a_card_that_states_sizes_or_digests_is_told(tmp_path: Path, claim: str) -> None:
    generate("dflash2", tmp_path / "source")
    (tmp_path / "source" / "README.md").write_text(f"# A drafter\n\n{claim}\n")
    made = pack_nvfp4(tmp_path / "source", tmp_path / "out")
    assert isinstance(made, Result)
    told = [item.where.file for item in made.findings if item.code == "W_CARD_STATES_SIZES"]
    assert told == (["README.md"] if claim else [])
    assert (tmp_path / "out" / "README.md").read_bytes() == (tmp_path / "source" / "README.md").read_bytes()


def test_a_disk_that_fails_ends_the_run_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate("dflash2", tmp_path / "source")
    size = (tmp_path / "source" / "model.safetensors").stat().st_size
    real = os.preadv

    def preadv(fd: int, buffers: Any, offset: int, *flags: int) -> int:
        if os.fstat(fd).st_size == size and offset > size // 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, buffers, offset, *flags)

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(ConvertError) as caught:
        pack_nvfp4(tmp_path / "source", tmp_path / "out")
    assert (caught.value.code, caught.value.status) == ("E_READ", 4)
    assert caught.value.findings[0].where.file == "model.safetensors"
    assert os.listdir(tmp_path) == ["source"]


def test_padding_is_noted_and_too_many_tensors_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of(raw('{"a":@}\n\t')))
    assert [item.code for item in open_checkpoint(path).findings] == ["W_ST_PADDING"]
    monkeypatch.setattr(safetensors, "MAX_TENSORS", 2)
    path.write_bytes(file_of({name: entry(shape=[0], offsets=(0, 0)) for name in "abc"}, b""))
    with pytest.raises(ConvertError) as caught:
        open_checkpoint(path)
    assert (caught.value.code, caught.value.status) == ("E_ST_COUNT", 3)


def test_the_target_of_an_eagle3_drafter_is_asked_for(tmp_path: Path) -> None:
    source = drafter(tmp_path / "drafter", "eagle3", eagle())
    with pytest.raises(ConvertError) as caught:
        pack_nvfp4(source, tmp_path / "out")
    assert (caught.value.code, list(tmp_path.iterdir())) == ("E_NEEDS_TARGET", [source])
    big = target(tmp_path / "target", layers=36)
    made = pack_nvfp4(source, tmp_path / "out", target_model=big)
    assert isinstance(made, Result)
    block = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert sorted(block["quantized_layers"]) == [f"model.layers.36.mlp.{leaf}_proj" for leaf in ("down", "gate", "up")]
