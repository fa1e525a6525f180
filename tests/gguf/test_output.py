"""What ``to-gguf`` leaves on disk: a file or a folder, whole or not at all, and the words of the command line."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from numpy.typing import NDArray

import convertkit
from convertkit.cli.main import main
from convertkit.containers.folder import open_any
from convertkit.conversion.gguf_run import GGUF_RUNNERS
from convertkit.conversion.gguf_units import Recode
from convertkit.errors import ConvertError
from convertkit.grids.ggml import decode as decoding
from convertkit.verbs.case import Options
from convertkit.verbs.convert import convert as convert_to
from convertkit.verbs.pack import pack_nvfp4
from tests.gguf.made import convert, tensors
from tests.gguf.models import (
    write_model,
)


def test_output_is_the_same_for_any_number_of_workers(tmp_path: Path, target: Path) -> None:
    source = write_model(tmp_path / "m", "dflash2")
    for workers in (1, 3):
        convert(source, tmp_path / f"{workers}.gguf", target, type="nvfp4", options=Options(workers=workers))
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "3.gguf").read_bytes()


def test_a_folder_gets_report_and_manifest_and_a_file_nothing_beside_it(tmp_path: Path, target: Path) -> None:
    source = write_model(tmp_path / "m", "dflash")
    (source / "README.md").write_text("A drafter.\n")
    convert(source, tmp_path / "out", target)
    assert sorted(os.listdir(tmp_path / "out")) == [
        "GGUF_REPORT.json", "LOAD_SHAPE_AUDIT.json", "MANIFEST.json", "README.md", "SHA256SUMS", "model.gguf",
    ]  # fmt: skip
    convert(source, tmp_path / "one.gguf", target, options=Options(report_dir=tmp_path / "reports"))
    assert sorted(os.listdir(tmp_path)) == ["m", "one.gguf", "out", "reports"]
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "out" / "model.gguf").read_bytes()
    assert sorted(os.listdir(tmp_path / "reports")) == ["GGUF_REPORT.json", "LOAD_SHAPE_AUDIT.json"]


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_model(tmp_path / "m", "dflash2")
    convert(source, tmp_path / "whole.gguf", target, type="q8_0")
    run = GGUF_RUNNERS[Recode]
    done: list[Any] = []

    def full_disk(job: Any, unit: Any) -> dict[str, str]:
        if len(done) == 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        done.append(unit)
        return run(job, unit)

    with monkeypatch.context() as patched:
        patched.setitem(GGUF_RUNNERS, Recode, full_disk)
        with pytest.raises((ConvertError, OSError)):
            convert(source, tmp_path / "x.gguf", target, type="q8_0", options=Options(workers=1))
    assert not (tmp_path / "x.gguf").exists()
    again: list[Any] = []

    def counted(job: Any, unit: Any) -> dict[str, str]:
        again.append(unit)
        return run(job, unit)

    with monkeypatch.context() as patched:
        patched.setitem(GGUF_RUNNERS, Recode, counted)
        convert(source, tmp_path / "x.gguf", target, type="q8_0", options=Options(resume=True, workers=1))
    assert len(done) + len(again) == len(tensors(tmp_path / "whole.gguf"))
    assert (tmp_path / "x.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def test_an_existing_file_is_kept_without_force(tmp_path: Path, target: Path) -> None:
    source = write_model(tmp_path / "m", "dflash")
    (tmp_path / "x.gguf").write_bytes(b"mine")
    with pytest.raises(ConvertError) as caught:
        convert(source, tmp_path / "x.gguf", target)
    assert caught.value.code == "E_OUT_EXISTS"
    assert (tmp_path / "x.gguf").read_bytes() == b"mine"
    convert(source, tmp_path / "x.gguf", target, options=replace(Options(), force=True))
    assert (tmp_path / "x.gguf").read_bytes()[:4] == b"GGUF"


def test_the_command_line(tmp_path: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_model(tmp_path / "m", "eagle3")
    words = ["to-gguf", str(source), str(tmp_path / "m.gguf"), "--target-model", str(target)]
    assert main([*words, "--dry-run"]) == 0
    assert not (tmp_path / "m.gguf").exists()
    assert main([*words, "--report-dir", str(tmp_path / "reports")]) == 0
    assert "convertkit audit" in capsys.readouterr().out
    report = json.loads((tmp_path / "reports" / "GGUF_REPORT.json").read_text())
    assert [item["code"] for item in report["findings"]] == ["N_DROPPED"]
    assert main([*words, "--force", "--max-shard-size", "1GB"]) == 2
    capsys.readouterr()
    assert main([*words, "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "pass"
    assert main(["from-gguf", str(tmp_path / "m.gguf"), str(tmp_path / "back"), "--quiet"]) == 0
    assert main(["verify", str(tmp_path / "back"), "--quiet"]) == 0
    convertkit.to_gguf(source, tmp_path / "api.gguf", target_model=target)
    convertkit.from_gguf(tmp_path / "api.gguf", tmp_path / "api")
    assert (tmp_path / "api.gguf").read_bytes() == (tmp_path / "m.gguf").read_bytes()
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "api" / name).read_bytes() == (tmp_path / "back" / name).read_bytes()


def test_help_shows_what_applies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["to-gguf", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--split-max-size" in text
    assert "--max-shard-size" not in text
    assert "--header-slack" not in text


def test_the_named_format_keeps_the_types(tmp_path: Path, target: Path) -> None:
    source = write_model(tmp_path / "m", "dflash", "F16")
    convert_to(source, tmp_path / "m.gguf", to="gguf", target_model=target)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(tmp_path / "m.gguf").tensors}
    assert kinds["blk.0.ffn_up.weight"] == "F16"
    pack_nvfp4(source, tmp_path / "packed")
    convert_to(tmp_path / "packed", tmp_path / "p.gguf", to="gguf", target_model=target)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(tmp_path / "p.gguf").tensors}
    assert kinds["blk.0.ffn_up.weight"] == "NVFP4"
    assert kinds["blk.0.attn_q.weight"] == "F16"


def test_the_manifest_lists_tensors_and_verify_finds_a_changed_one(
    tmp_path: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_model(tmp_path / "m", "dflash")
    convert(source, tmp_path / "out", target, type="q8_0")
    listed = json.loads((tmp_path / "out" / "MANIFEST.json").read_text())["tensors"]
    assert {row["dtype"] for row in listed} == {"Q8_0", "F32"}
    assert main(["verify", str(tmp_path / "out")]) == 0
    start = open_any(tmp_path / "out").tensors["blk.1.ffn_up.weight"].start
    path = tmp_path / "out" / "model.gguf"
    data = bytearray(path.read_bytes())
    data[start + 5] ^= 1
    path.write_bytes(data)
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "out")]) == 1
    assert "blk.1.ffn_up.weight" in capsys.readouterr().out
    path.write_bytes(data[:-64])
    assert main(["verify", str(tmp_path / "out")]) != 0


@pytest.mark.parametrize("kind", ["q8_0", "q5_1", "mxfp4"])
def test_a_wrong_decoder_does_not_judge_what_was_encoded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = decoding._decode

    def wrong(blocks: Any, dtype: str, out: NDArray[np.float32]) -> None:
        decode(blocks, dtype, out)
        out[-1, -1] = np.nextafter(out[-1, -1], np.float32(2))

    source = write_model(tmp_path / "m", "qwen3")
    convert(source, tmp_path / "good.gguf", type=kind)
    monkeypatch.setattr(decoding, "_decode", wrong)
    with pytest.raises(ConvertError) as caught:
        convert(source, tmp_path / "m.gguf", type=kind)
    assert {item.code for item in caught.value.findings} == {"E_PROMISE"}
    assert not (tmp_path / "m.gguf").exists()
