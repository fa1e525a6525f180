"""pack-nvfp4, dequant, convert and gate on whole small checkpoints."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from convertkit.containers.folder import open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.demo.generate import generate
from convertkit.errors import ConvertError
from convertkit.release.reports import validate_report
from convertkit.verbs.case import Options, Result
from convertkit.verbs.convert import convert
from convertkit.verbs.dequant import dequant
from convertkit.verbs.gate import gate
from convertkit.verbs.manifest import manifest
from convertkit.verbs.pack import pack_nvfp4
from convertkit.verbs.planned import DryRun
from convertkit.verbs.verify import verify

FIXTURES = Path(__file__).parents[2] / "fixtures"
DRAFTER = FIXTURES / "dflash2-tiny"
REPORTS = ("FIDELITY_GATE.json", "LOAD_SHAPE_AUDIT.json", "DEQUANT_REPORT.json")


def packed(out: Path, source: Path = DRAFTER, **words: Any) -> Path:
    made = pack_nvfp4(source, out, **words)
    assert isinstance(made, Result)
    assert made.status == 0
    return out


def tensors(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    checkpoint = open_checkpoint(folder)
    with Reader(checkpoint) as reader:
        return {n: (r.spec.dtype, r.spec.shape, reader.bytes_of(n)) for n, r in checkpoint.tensors.items()}


def listing(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_a_drafter_packs_its_fifteen_mlp_linears_and_copies_the_rest(tmp_path: Path) -> None:
    before, after = tensors(DRAFTER), tensors(packed(tmp_path / "out"))
    linears = {f"layers.{i}.mlp.{leaf}_proj" for i in range(5) for leaf in ("gate", "up", "down")}
    assert {name for name, row in after.items() if row[0] == "U8"} == {f"{module}.weight" for module in linears}
    assert len(after) == 66 + 3 * 15
    for name, row in before.items():
        if name.removesuffix(".weight") not in linears:
            assert after[name] == row
    for layer in range(5):
        gate_, up = (after[f"layers.{layer}.mlp.{leaf}_proj.weight_scale_2"] for leaf in ("gate", "up"))
        assert gate_ == up
        assert gate_[:2] == ("F32", ())


def test_the_folder_is_complete_and_verifies(tmp_path: Path) -> None:
    out = packed(tmp_path / "out")
    assert sorted(path.name for path in out.iterdir()) == [
        "FIDELITY_GATE.json", "LICENSE", "LOAD_SHAPE_AUDIT.json", "MANIFEST.json", "NOTICE", "README.md", "SHA256SUMS",
        "config.json", "hf_quant_config.json", "model.safetensors",
    ]  # fmt: skip
    assert (
        subprocess.run(["sha256sum", "-c", "--strict", "--quiet", "SHA256SUMS"], cwd=out, check=False).returncode == 0
    )
    assert verify(out, strict=True).status == 0
    for name in ("FIDELITY_GATE.json", "LOAD_SHAPE_AUDIT.json"):
        document = validate_report(out / name)
        assert document["verdict"] == "pass"
        digests = {row["path"]: row["sha256"] for row in document["output"]["files"]}
        assert digests["model.safetensors"] == hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    with safe_open(out / "model.safetensors", framework="np") as stream:
        assert stream.metadata() == {"format": "pt"}


def test_both_quantization_files_state_what_was_written(tmp_path: Path) -> None:
    out = packed(tmp_path / "out")
    block = json.loads((out / "config.json").read_text())["quantization_config"]
    other = json.loads((out / "hf_quant_config.json").read_text())["quantization"]
    assert block["quant_method"] == "modelopt"
    assert block["quant_algo"] == other["quant_algo"] == "MIXED_PRECISION"
    assert block["quantized_layers"] == other["quantized_layers"]
    assert set(block["quantized_layers"]) == {
        f"layers.{i}.mlp.{leaf}_proj" for i in range(5) for leaf in ("gate", "up", "down")
    }


@pytest.mark.parametrize("dialect", ["modelopt-mixed", "modelopt", "compressed-tensors"])
def test_packing_and_expanding_agree_in_every_dialect(tmp_path: Path, dialect: str) -> None:
    out = packed(tmp_path / "packed", dialect=dialect)
    made = dequant(out, tmp_path / "dense")
    assert isinstance(made, Result)
    summary = made.reports["DEQUANT_REPORT.json"]["summary"]
    assert (summary["expanded"], summary["differing"], summary["elements"]) == (15, 0, 15 * 64 * 128)
    dense = tensors(tmp_path / "dense")
    assert {name: row[:2] for name, row in dense.items()} == {n: row[:2] for n, row in tensors(DRAFTER).items()}
    assert "quantization_config" not in json.loads((tmp_path / "dense" / "config.json").read_text())
    assert not (tmp_path / "dense" / "hf_quant_config.json").exists()
    again = dequant(out, tmp_path / "again", against=tmp_path / "dense")
    assert isinstance(again, Result)
    assert again.reports["DEQUANT_REPORT.json"]["summary"]["against_differing"] == 0


def test_against_another_copy_says_no_and_publishes_nothing(tmp_path: Path) -> None:
    out = packed(tmp_path / "packed")
    with pytest.raises(ConvertError) as caught:
        dequant(out, tmp_path / "dense", against=DRAFTER, options=Options(report_dir=tmp_path / "reports"))
    assert (caught.value.code, caught.value.status) == ("E_AGAINST", 1)
    assert not (tmp_path / "dense").exists()
    assert validate_report(tmp_path / "reports" / "DEQUANT_REPORT.json")["verdict"] == "fail"


def test_a_gate_that_says_no_publishes_nothing_unless_told(tmp_path: Path) -> None:
    limits = {"max_rel_rms": 0.01}
    with pytest.raises(ConvertError) as caught:
        pack_nvfp4(DRAFTER, tmp_path / "out", limits=limits)
    assert (caught.value.code, caught.value.status) == ("E_GATE", 1)
    assert list(tmp_path.iterdir()) == []
    made = pack_nvfp4(DRAFTER, tmp_path / "out", limits=limits, options=Options(publish_anyway=True))
    assert isinstance(made, Result)
    assert made.status == 1
    assert validate_report(tmp_path / "out" / "FIDELITY_GATE.json")["verdict"] == "fail"


def test_respelling_moves_planes_without_decoding_and_back(tmp_path: Path) -> None:
    first = packed(tmp_path / "mo", reversible_scale=True)
    made = convert(first, tmp_path / "ct", to="nvfp4-ct")
    assert isinstance(made, Result)
    convert(tmp_path / "ct", tmp_path / "back", to="nvfp4-modelopt-mixed")
    assert tensors(tmp_path / "back") == tensors(first)
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == json.loads(
        (first / "config.json").read_text()
    )
    before, after = tensors(first), tensors(tmp_path / "ct")
    module = "layers.0.mlp.gate_proj"
    assert after[f"{module}.weight_packed"][2] == before[f"{module}.weight"][2]
    assert after[f"{module}.weight_scale"] == before[f"{module}.weight_scale"]
    multiplier = np.frombuffer(before[f"{module}.weight_scale_2"][2], np.float32)[0]
    divisor = np.frombuffer(after[f"{module}.weight_global_scale"][2], np.float32)[0]
    assert divisor == np.float32(1) / multiplier
    assert np.float32(1) / divisor == multiplier


def test_respelling_to_the_same_dialect_changes_no_tensor(tmp_path: Path) -> None:
    first = packed(tmp_path / "ct", dialect="compressed-tensors")
    convert(first, tmp_path / "again", to="nvfp4-ct")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()
    assert (tmp_path / "again" / "config.json").read_bytes() == (first / "config.json").read_bytes()


def test_the_same_bytes_for_any_worker_count_and_run(tmp_path: Path) -> None:
    one = listing(packed(tmp_path / "one", options=Options(workers=1)))
    assert listing(packed(tmp_path / "other place", options=Options(workers=3))) == one
    shutil.copytree(DRAFTER, tmp_path / "copy")
    assert listing(packed(tmp_path / "three", source=tmp_path / "copy")) == one


def test_the_source_s_sharding_does_not_matter(tmp_path: Path) -> None:
    generate("qwen3", tmp_path / "whole")
    generate("qwen3", tmp_path / "cut", max_shard_bytes=40_000)
    assert len(open_checkpoint(tmp_path / "cut").files) > 2
    outs = [packed(tmp_path / f"{name}-out", source=tmp_path / name) for name in ("whole", "cut")]
    assert outs[0].joinpath("model.safetensors").read_bytes() == outs[1].joinpath("model.safetensors").read_bytes()
    assert outs[0].joinpath("config.json").read_bytes() == outs[1].joinpath("config.json").read_bytes()


def test_output_shards_hold_the_same_tensors(tmp_path: Path) -> None:
    whole = packed(tmp_path / "whole")
    cut = packed(tmp_path / "cut", max_shard_bytes=50_000)
    checkpoint = open_checkpoint(cut)
    assert len(checkpoint.files) > 3
    assert checkpoint.findings == ()
    assert tensors(cut) == tensors(whole)
    place = {name: ref.file for name, ref in checkpoint.tensors.items()}
    for i in range(5):
        parts = {
            place[f"layers.{i}.mlp.{leaf}_proj.{plane}"]
            for leaf in ("gate", "up")
            for plane in ("weight", "weight_scale")
        }
        assert len(parts) == 1
    made = {json.loads(path.joinpath("MANIFEST.json").read_text())["content_id_named"] for path in (whole, cut)}
    assert len(made) == 1


def test_no_report_holds_a_path_or_a_clock(tmp_path: Path) -> None:
    out = packed(tmp_path / "out")
    for name in ("FIDELITY_GATE.json", "LOAD_SHAPE_AUDIT.json", "MANIFEST.json"):
        text = (out / name).read_text()
        assert str(tmp_path) not in text
        assert "2026" not in text
        assert "20:" not in text


def test_a_dry_run_writes_nothing_and_says_everything(tmp_path: Path) -> None:
    made = pack_nvfp4(DRAFTER, tmp_path / "out", only_plan=True)
    assert isinstance(made, DryRun)
    assert list(tmp_path.iterdir()) == []
    done = packed(tmp_path / "out")
    assert made.plan.files[0].header.size_bytes == (done / "model.safetensors").stat().st_size
    assert {row["name"] for row in made.document["tensors"]} == set(tensors(done))


def test_an_existing_output_is_refused_and_replaced_with_force(tmp_path: Path) -> None:
    out = packed(tmp_path / "out")
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ConvertError) as caught:
        pack_nvfp4(DRAFTER, out)
    assert (caught.value.code, caught.value.status) == ("E_OUT_EXISTS", 5)
    made = pack_nvfp4(DRAFTER, out, dialect="compressed-tensors", options=Options(force=True))
    assert isinstance(made, Result)
    assert made.carried == ("notes.txt",)
    assert (out / "notes.txt").read_text() == "mine"
    assert not (out / "hf_quant_config.json").exists()
    assert verify(out).status == 0
    again = pack_nvfp4(DRAFTER, out, options=Options(force=True))
    assert isinstance(again, Result)
    assert again.carried == ("notes.txt",)
    assert verify(out).status == 0


def test_earlier_releases_are_kept_when_an_output_is_replaced(tmp_path: Path) -> None:
    old = packed(tmp_path / "old", dialect="compressed-tensors")
    out = packed(tmp_path / "out")
    manifest(out, supersedes=old)
    pack_nvfp4(DRAFTER, out, scales="amax-llmcompressor", options=Options(force=True))
    chain = json.loads((out / "MANIFEST.json").read_text())["supersedes"]
    assert [len(release["files"]) for release in chain] == [len(list(old.iterdir())) - 2]


def test_gate_compares_any_two_dialects(tmp_path: Path) -> None:
    mo, ct = packed(tmp_path / "mo"), packed(tmp_path / "ct", dialect="compressed-tensors")
    assert gate(mo, DRAFTER).status == 0
    assert gate(ct, mo, limits={"max_rel_rms": 1e-6}).status == 0
    assert gate(mo, mo, limits={"max_changed": 0.0}).status == 0
    worse = gate(mo, DRAFTER, limits={"min_sqnr": 30.0})
    assert worse.status == 1
    assert {item.code for item in worse.findings} == {"E_GATE"}
    report = tmp_path / "reports" / "GATE.json"
    report.parent.mkdir()
    gate(mo, DRAFTER, report=report)
    assert validate_report(report)["summary"]["packed"] == 15


def test_gate_sums_over_the_users_fused_groups(tmp_path: Path) -> None:
    made = packed(tmp_path / "mo")
    fuse = ("layers.0.mlp.down_proj,layers.0.mlp.up_proj",)
    groups = [set(row["members"]) for row in gate(made, DRAFTER, fuse=fuse).rows if row.get("scope") == "group"]
    assert {f"layers.0.mlp.{leaf}_proj.weight" for leaf in ("gate", "up", "down")} in groups
    with pytest.raises(ConvertError) as caught:
        gate(made, DRAFTER, fuse=("layers.{i}.mlp.down_proj,layers.{i}.mlp.upp_proj",))
    assert caught.value.code == "E_PATTERN_EMPTY"


def test_gate_names_weights_that_one_side_lacks(tmp_path: Path) -> None:
    result = gate(DRAFTER, FIXTURES / "dflash-tiny")
    assert result.status == 1
    assert "E_REFERENCE" in {item.code for item in result.findings}


def test_an_activation_scale_is_dropped_with_its_reason_and_named(tmp_path: Path) -> None:
    made = dequant(FIXTURES / "modelopt-export-w4a4-tiny", tmp_path / "out")
    assert isinstance(made, Result)
    audit = made.reports["LOAD_SHAPE_AUDIT.json"]
    dropped = [item["where"]["tensor"] for item in audit["findings"] if item["code"] == "N_DROPPED"]
    assert len(dropped) == audit["summary"]["dropped"] == 14
    assert all(name.endswith(".input_scale") for name in dropped)


def test_activation_scales_are_respelled(tmp_path: Path) -> None:
    convert(FIXTURES / "modelopt-export-w4a4-tiny", tmp_path / "ct", to="nvfp4-ct")
    before, after = tensors(FIXTURES / "modelopt-export-w4a4-tiny"), tensors(tmp_path / "ct")
    module = "model.layers.0.mlp.down_proj"
    value = np.frombuffer(before[f"{module}.input_scale"][2], np.float32)[0]
    assert np.frombuffer(after[f"{module}.input_global_scale"][2], np.float32)[0] == np.float32(1) / value
    group = json.loads((tmp_path / "ct" / "config.json").read_text())["quantization_config"]["config_groups"]["group_0"]
    assert group["input_activations"]["num_bits"] == 4


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_dense_weights_are_cast_and_packed_ones_expanded(tmp_path: Path, dtype: str) -> None:
    out = packed(tmp_path / "packed")
    convert(out, tmp_path / "dense", to=dtype)
    assert {row[0] for row in tensors(tmp_path / "dense").values()} == {dtype.upper()}
    assert (
        json.loads((tmp_path / "dense" / "config.json").read_text())["dtype"]
        == {"f16": "float16", "f32": "float32"}[dtype]
    )


def test_widths_that_cannot_be_packed_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConvertError) as caught:
        pack_nvfp4(
            DRAFTER,
            tmp_path / "out",
            include=["candidate_selector.hidden_projection", "layers.{i}.mlp.down_proj"],
            exclude=["{rest}"],
        )
    assert caught.value.status == 2
    assert list(tmp_path.iterdir()) == []


def test_bad_values_are_all_refused_before_anything_is_written(tmp_path: Path) -> None:
    shutil.copytree(DRAFTER, tmp_path / "bad")
    checkpoint = open_checkpoint(tmp_path / "bad")
    names = ["layers.1.mlp.up_proj.weight", "layers.3.mlp.down_proj.weight"]
    with open(tmp_path / "bad" / "model.safetensors", "r+b") as stream:
        for name, bits in zip(names, (b"\x80\x7f", b"\xc0\xff"), strict=True):
            stream.seek(checkpoint.tensors[name].start + 40)
            stream.write(bits)
    with pytest.raises(ConvertError) as caught:
        pack_nvfp4(tmp_path / "bad", tmp_path / "out")
    assert [(item.code, item.where.tensor) for item in caught.value.findings] == [
        ("E_WEIGHT_NONFINITE", name) for name in names
    ]
    assert not (tmp_path / "out").exists()


def test_a_source_that_is_packed_already_is_refused(tmp_path: Path) -> None:
    out = packed(tmp_path / "one")
    with pytest.raises(ConvertError) as caught:
        pack_nvfp4(out, tmp_path / "two")
    assert caught.value.code == "E_ALREADY_QUANTIZED"
    with pytest.raises(ConvertError) as caught:
        dequant(DRAFTER, tmp_path / "three")
    assert caught.value.code == "E_NOT_QUANTIZED"


def test_header_slack_leaves_room_and_changes_no_tensor(tmp_path: Path) -> None:
    plain, slack = packed(tmp_path / "plain"), packed(tmp_path / "slack", header_slack_bytes=4096)
    assert tensors(plain) == tensors(slack)
    difference = (slack / "model.safetensors").stat().st_size - (plain / "model.safetensors").stat().st_size
    assert 4096 <= difference < 4104


def test_a_device_that_is_not_there_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        one = listing(packed(tmp_path / "cpu"))
        assert listing(packed(tmp_path / "cuda", options=Options(device="cuda"))) == one
        return
    with pytest.raises(ConvertError) as caught:
        pack_nvfp4(DRAFTER, tmp_path / "out", options=Options(device="cuda"))
    assert (caught.value.code, caught.value.status) == ("E_DEVICE", 2)
    assert list(tmp_path.iterdir()) == []
