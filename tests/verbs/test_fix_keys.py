"""Renaming whole checkpoints: a new output, in place, from a reference, and what is refused."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.conversion import renaming
from convertkit.errors import ConvertError
from convertkit.progress import Silent
from convertkit.release.reports import validate_report
from convertkit.verbs.case import Options, Result
from convertkit.verbs.diff import diff
from convertkit.verbs.fix_keys import Keys, fix_keys
from convertkit.verbs.manifest import manifest
from convertkit.verbs.planned import DryRun
from convertkit.verbs.verify import verify
from tests.dialects.tiny import LM_CONFIG, causal_lm, planes, spec, write
from tests.release.makers import safetensors, snapshot
from tests.verbs.test_pack_and_expand import tensors

NESTED = "model.language_model.visual.{rest}=model.visual.{rest}"
LONG = "model.layers.{rest}=model.a_much_longer_name_than_there_was_before.layers.{rest}"


def vision(folder: Path, nested: bool = True, **config: Any) -> Path:
    """A packed multimodal model whose tower is one level too deep, with numbered bytes."""
    stem = "model.language_model.visual" if nested else "model.visual"
    specs = [spec(f"{stem}.blocks.{i}.attn.qkv.{leaf}", "BF16", *shape)
             for i in range(2) for leaf, shape in (("weight", (12, 16)), ("bias", (12,)))]  # fmt: skip
    specs += [
        item
        for name in ("gate", "up")
        for item in planes(f"model.language_model.layers.0.mlp.{name}_proj", "compressed-tensors")
    ]
    specs += [spec("model.language_model.embed_tokens.weight", "BF16", 48, 32), spec("lm_head.weight", "BF16", 48, 32)]
    values = {item.name: bytes((n + k) % 64 for k in range(item.size_bytes))
              for n, item in enumerate(specs) if item.dtype == "BF16"}  # fmt: skip
    block = {
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}}},
        "ignore": [f"re:{stem}.*", "lm_head"],
    }  # fmt: skip
    whole = {**LM_CONFIG, "num_hidden_layers": 1, "architectures": ["XForConditionalGeneration"], "vision_config": {},
             "quantization_config": block, **config}  # fmt: skip
    return write(folder, specs, whole, values=values)


def renamed(source: Path, out: Path, **words: Any) -> Path:
    made = fix_keys(source, out, **words)
    assert isinstance(made, Result)
    assert made.status == 0
    return out


def edited(folder: Path, **words: Any) -> Keys:
    made = fix_keys(folder, in_place=True, **words)
    assert isinstance(made, Keys)
    return made


def refused(source: Path, out: Path | None = None, **words: Any) -> ConvertError:
    before = snapshot(source) if source.is_dir() else {}
    with pytest.raises(ConvertError) as caught:
        fix_keys(source, out, **words)
    assert out is None or not out.exists()
    assert (snapshot(source) if source.is_dir() else {}) == before
    return caught.value


def test_a_nested_tower_moves_with_its_config_and_keeps_every_byte(tmp_path: Path) -> None:
    source = vision(tmp_path / "source")
    out = renamed(source, tmp_path / "out", rename=[NESTED])
    assert tensors(out) == tensors(vision(tmp_path / "right", nested=False))
    block = json.loads((out / "config.json").read_text())["quantization_config"]
    assert block["ignore"] == ["re:model.visual.*", "lm_head"]
    assert verify(out, strict=True).status == 0
    report = validate_report(out / "RENAME_REPORT.json")
    assert report["summary"]["renamed"] == 4
    [file] = report["summary"]["files"]
    assert file["payload_bytes"] == file["size_after"] - file["data_start_after"]
    for row in report["rows"]:
        assert row["start_after"] - file["data_start_after"] == row["start_before"] - file["data_start_before"]
        assert (row["was"] != row["name"]) == ("visual" in row["name"])
    one, two = ((folder / "model.safetensors").read_bytes() for folder in (source, out))
    assert one[file["data_start_before"] :] == two[file["data_start_after"] :]
    assert file["data_start_before"] % 4096 == file["data_start_after"] % 4096


def test_presets_references_and_rules_give_the_same_bytes(tmp_path: Path) -> None:
    source = vision(tmp_path / "source")
    right = vision(tmp_path / "right", nested=False)
    names = tmp_path / "names.txt"
    names.write_text("\n".join(tensors(right)))
    rules = tmp_path / "rules.txt"
    rules.write_text(f"# the tower\n{NESTED}\n")
    ways: dict[str, dict[str, Any]] = {
        "rule": {"rename": [NESTED]}, "file": {"rules": rules}, "preset": {"presets": ["nested-vision"]},
        "like": {"like": right}, "like file": {"like": right / "model.safetensors"}, "names": {"like": names},
    }  # fmt: skip
    found = {
        way: (renamed(source, tmp_path / way, **words) / "model.safetensors").read_bytes()
        for way, words in ways.items()
    }
    assert len(set(found.values())) == 1


def test_what_is_right_already_is_nothing_to_do(tmp_path: Path) -> None:
    right = vision(tmp_path / "right", nested=False)
    before = snapshot(right)
    for words in (
        {"rename": [NESTED]},
        {"presets": ["nested-vision"]},
        {"like": vision(tmp_path / "other", nested=False)},
    ):
        made = fix_keys(right, tmp_path / "out", **words)
        assert isinstance(made, Keys)
        assert made.action == "nothing"
        assert edited(right, **words).action == "nothing"
    assert not (tmp_path / "out").exists()
    assert snapshot(right) == before


def test_rules_that_fit_nothing_are_a_usage_error(tmp_path: Path) -> None:
    source = vision(tmp_path / "source")
    error = refused(source, tmp_path / "out", rename=[NESTED, "typo.{rest}=x.{rest}"])
    assert (error.code, error.status) == ("E_PATTERN_EMPTY", 2)
    assert refused(source, tmp_path / "out", presets=["midlayer"]).code == "E_PATTERN_EMPTY"


def test_a_dry_run_plans_and_writes_nothing(tmp_path: Path) -> None:
    source = vision(tmp_path / "source")
    before = snapshot(source)
    made = fix_keys(source, tmp_path / "out", rename=[NESTED], only_plan=True)
    assert isinstance(made, DryRun)
    assert made.document["units"] == {"relabel": 1}
    assert edited(source, rename=[NESTED], only_plan=True).action == "planned"
    assert snapshot(source) == before


def test_side_files_travel_byte_for_byte(tmp_path: Path) -> None:
    source = vision(tmp_path / "source")
    for name in ("tokenizer.json", "preprocessor_config.json", "chat_template.jinja", "LICENSE"):
        (source / name).write_bytes(name.encode() * 3)
    (source / "extra").mkdir()
    out = renamed(source, tmp_path / "out", rename=[NESTED])
    for name in ("tokenizer.json", "preprocessor_config.json", "chat_template.jinja", "LICENSE"):
        assert (out / name).read_bytes() == name.encode() * 3


def test_shards_and_index_follow(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    held = [{"a.one.weight": ("F32", (2,), b"abcdefgh")}, {"a.two.weight": ("F32", (2,), b"ijklmnop")}]
    for name, part in zip(names, held, strict=True):
        (source / name).write_bytes(safetensors(part))
    index = {"metadata": {"total_size": 16}, "weight_map": {"a.one.weight": names[0], "a.two.weight": names[1]}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    out = renamed(source, tmp_path / "out", rename=["a.{rest}=b.{rest}"])
    edited(source, rename=["a.{rest}=b.{rest}"])
    for folder in (out, source):
        document = json.loads((folder / "model.safetensors.index.json").read_text())
        assert document == {
            "metadata": {"total_size": 16},
            "weight_map": {"b.one.weight": names[0], "b.two.weight": names[1]},
        }
        assert tensors(folder) == {
            "b.one.weight": ("F32", (2,), b"abcdefgh"),
            "b.two.weight": ("F32", (2,), b"ijklmnop"),
        }


def test_quick_leaves_digests_pending_and_keeps_recorded_ones(tmp_path: Path) -> None:
    source = write(tmp_path / "source", causal_lm(), LM_CONFIG)
    manifest(source)
    out = renamed(source, tmp_path / "out", rename=[LONG], quick=True)
    document = json.loads((out / "MANIFEST.json").read_text())
    assert [row["path"] for row in document["pending"]] == ["model.safetensors"]
    assert len(document["tensors"]) == len(causal_lm())
    assert verify(out).status == 1
    manifest(out)
    assert verify(out, strict=True).status == 0
    default = renamed(source, tmp_path / "default", rename=[LONG])
    assert (default / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


def test_a_source_that_is_not_what_its_manifest_says_is_noticed(tmp_path: Path) -> None:
    source = write(tmp_path / "source", causal_lm(), LM_CONFIG)
    manifest(source)
    data = bytearray((source / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (source / "model.safetensors").write_bytes(data)
    error = refused(source, tmp_path / "out", rename=[LONG])
    assert (error.code, error.status) == ("E_TENSOR_DIGEST", 1)


def test_words_that_do_not_fit_together(tmp_path: Path) -> None:
    source = vision(tmp_path / "source")
    for words in (
        {}, {"in_place": True}, {"rename": [NESTED], "quick": True, "in_place": True},
        {"rename": [NESTED], "recovery": "undo"}, {"presets": ["no such"]},
    ):  # fmt: skip
        out = None if words.get("in_place") else tmp_path / "out"
        assert refused(source, out, **words).status == 2


def test_an_existing_output_is_not_replaced_unless_told(tmp_path: Path) -> None:
    source = vision(tmp_path / "source")
    out = renamed(source, tmp_path / "out", rename=[NESTED])
    with pytest.raises(ConvertError, match="E_OUT_EXISTS"):
        fix_keys(source, out, rename=[NESTED])
    renamed(source, out, rename=[NESTED], options=Options(force=True))


def test_entries_that_mean_nothing_are_told(tmp_path: Path) -> None:
    source = vision(tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"]["ignore"] += ["re:.*gone.*", "model.language_model.visual.blocks.0.attn.qkv.linear"]
    (source / "config.json").write_text(json.dumps(config))
    made = fix_keys(source, tmp_path / "out", rename=[NESTED])
    assert isinstance(made, Result)
    assert {item.data["entry"] for item in made.findings if item.code == "W_ENTRY_UNMATCHED"} == {
        "re:.*gone.*", "model.language_model.visual.blocks.0.attn.qkv.linear",
    }  # fmt: skip
    again = fix_keys(tmp_path / "out", tmp_path / "again", presets=["wrapped-linear"])
    assert isinstance(again, Result)
    block = json.loads((tmp_path / "again" / "config.json").read_text())["quantization_config"]
    assert "model.visual.blocks.0.attn.qkv" in block["ignore"]


def test_odd_tensors_keep_their_bytes(tmp_path: Path) -> None:
    specs = [TensorSpec("a.odd", "U8", (3,)), TensorSpec("a.wide", "F64", (2,)), TensorSpec("a.empty", "F32", (0, 4))]
    source = write(tmp_path / "source", specs, LM_CONFIG)
    out = renamed(source, tmp_path / "out", rename=["a.{x}=b.{x}"])
    assert {name.replace("b.", "a."): row for name, row in tensors(out).items()} == tensors(source)
    assert diff(source, out).document["summary"]["renamed"] == 3


class Interrupting(Silent):
    """Sends this process SIGINT when so many pieces of work are done."""

    def __init__(self, after: int) -> None:
        self.left = after

    def advance(self, size_bytes: int) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renaming, "RUN_BYTES", 4096)
    source = write(tmp_path / "source", causal_lm(), LM_CONFIG)
    whole = renamed(source, tmp_path / "whole", rename=[LONG])
    with pytest.raises(ConvertError) as caught:
        fix_keys(source, tmp_path / "out", rename=[LONG], options=Options(workers=1, progress=Interrupting(9)))
    assert caught.value.status == 130
    assert not (tmp_path / "out").exists()
    out = renamed(source, tmp_path / "out", rename=[LONG], options=Options(resume=True))
    assert snapshot(out) == snapshot(whole)


def test_one_weight_file_is_renamed_without_what_lies_beside_it(tmp_path: Path) -> None:
    source = write(tmp_path / "source", causal_lm(), LM_CONFIG)
    made = fix_keys(source / "model.safetensors", tmp_path / "out", rename=[LONG])
    assert isinstance(made, Result)
    assert not (tmp_path / "out" / "config.json").exists()
    assert len(tensors(tmp_path / "out")) == len(causal_lm())
    assert refused(source / "model.safetensors", None, rename=[LONG], in_place=True).code == "E_USAGE"
