"""Damage that people have reported, one small checkpoint each, and what is said or done about it."""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.containers.folder import open_checkpoint
from convertkit.conversion.identify import identify
from convertkit.conversion.repair_work import RepairRequest
from convertkit.errors import ConvertError, Finding
from convertkit.verbs.audit import audit
from convertkit.verbs.case import Result
from convertkit.verbs.dequant import dequant
from convertkit.verbs.fix_keys import fix_keys
from convertkit.verbs.repair import repair
from tests.dialects.tiny import LM_CONFIG, causal_lm, planes, spec, write
from tests.release.makers import safetensors
from tests.verbs.test_pack_and_expand import tensors

MULTIMODAL = {**LM_CONFIG, "architectures": ["XForConditionalGeneration"]}


def found(tmp_path: Path, specs: Iterable[TensorSpec], config: Mapping[str, Any], **more: Any) -> dict[str, Finding]:
    checkpoint = open_checkpoint(write(tmp_path / "m", specs, config, **more))
    return {item.code: item for item in identify(checkpoint).findings}


def raw(path: Path, header: Mapping[str, Any], payload: bytes, padding: bytes = b"") -> Path:
    """A weight file with this very header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(header).encode() + padding
    path.write_bytes(struct.pack("<Q", len(text)) + text + payload)
    return path


def test_a_divisor_below_one_looks_inverted(tmp_path: Path) -> None:
    module = "model.layers.0.mlp.down_proj"
    source = write(
        tmp_path / "m", [*planes(module, "compressed-tensors"), spec("lm_head.weight", "BF16", 48, 32)],
        {**LM_CONFIG, "num_hidden_layers": 1}, values={f"{module}.weight_global_scale": struct.pack("<f", 3.7e-4)},
    )  # fmt: skip
    [item] = [item for item in audit(source).findings if item.code == "W_SCALE_INVERTED"]
    assert item.where.tensor == f"{module}.weight_global_scale"
    assert "0.00037 looks inverted" in item.message
    made = dequant(source, tmp_path / "dense")
    assert isinstance(made, Result)
    assert [found.data["modules"] for found in made.findings if found.code == "W_SCALE_INVERTED"] == [
        item.data["modules"]
    ]


def test_swizzled_scales_are_refused(tmp_path: Path) -> None:
    module = "model.layers.0.mlp.down_proj"
    specs = [item for item in planes(module) if not item.name.endswith("weight_scale")]
    codes = found(tmp_path, [*specs, spec(f"{module}.weight_scale", "U8", 64)], LM_CONFIG)
    assert codes["E_SCALE_DTYPE"].severity == "error"


def test_a_fused_matrix_with_one_scalar_is_flagged_with_its_slots(tmp_path: Path) -> None:
    item = found(tmp_path, planes("model.layers.0.mlp.gate_up_proj", rows=64), LM_CONFIG)["W_FUSED_SCALAR"]
    assert item.data["slots"] == 2
    assert item.fix == "repair --split-fused-scalars"


def test_experts_under_another_prefix_than_the_model_get_a_rename_that_works(tmp_path: Path) -> None:
    experts = [spec(f"model.layers.0.mlp.experts.{e}.up_proj.weight", "BF16", 8, 16) for e in range(2)]
    rest = [spec(item.name.replace("model.", "model.language_model."), item.dtype, *item.shape) for item in causal_lm()]
    item = found(tmp_path, [*experts, *rest], MULTIMODAL)["W_NAME_PREFIX"]
    assert item.data["count"] == 2
    made = fix_keys(tmp_path / "m", tmp_path / "out", rename=[item.data["rule"]])
    assert isinstance(made, Result)
    assert "model.language_model.layers.0.mlp.experts.1.up_proj.weight" in tensors(tmp_path / "out")


def test_multimodal_names_under_a_text_only_label_are_told(tmp_path: Path) -> None:
    specs = [spec(f"language_model.{item.name}", item.dtype, *item.shape) for item in causal_lm()]
    assert found(tmp_path, specs, LM_CONFIG)["W_LAYOUT_LABEL"].data["count"] == len(specs)


def test_a_language_model_stripped_for_a_text_only_class_beside_its_tower_is_told(tmp_path: Path) -> None:
    tower = spec("model.visual.blocks.0.attn.qkv.weight", "BF16", 12, 16)
    item = found(tmp_path, [*causal_lm(), tower], {**MULTIMODAL, "vision_config": {}})["W_LAYOUT_LABEL"]
    assert item.fix == "fix-keys --preset add-language-model"
    made = fix_keys(tmp_path / "m", tmp_path / "out", presets=["add-language-model"])
    assert isinstance(made, Result)
    assert not [item for item in identify(open_checkpoint(tmp_path / "out")).findings if item.code == "W_LAYOUT_LABEL"]


def test_a_promised_tower_without_tensors_is_told(tmp_path: Path) -> None:
    item = found(tmp_path, causal_lm(), {**MULTIMODAL, "vision_config": {"depth": 1}})["W_ADVERTISED_ABSENT"]
    assert item.where.key == "vision_config"


def test_packed_experts_with_their_numbers_last_move_as_families(tmp_path: Path) -> None:
    specs = [item for e in range(2) for item in planes(f"model.layers.0.mlp.experts.gate_proj.{e}")]
    source = write(tmp_path / "m", specs, {**LM_CONFIG, "num_hidden_layers": 1})
    made = fix_keys(source, tmp_path / "out", presets=["experts-transposed"])
    assert isinstance(made, Result)
    assert set(tensors(tmp_path / "out")) == {
        f"model.layers.0.mlp.experts.{e}.gate_proj.{leaf}"
        for e in range(2) for leaf in ("weight", "weight_scale", "weight_scale_2")
    }  # fmt: skip


def test_a_stack_under_the_name_of_one_expert_is_told(tmp_path: Path) -> None:
    specs = [*causal_lm(), spec("model.layers.0.mlp.experts.0.up_proj.weight", "BF16", 4, 8, 8)]
    assert found(tmp_path, specs, LM_CONFIG)["W_EXPERT_RANK"].where.tensor == specs[-1].name


def test_a_stray_file_beside_shards_is_told_and_left_behind(tmp_path: Path) -> None:
    source = tmp_path / "m"
    source.mkdir()
    name = "model-00001-of-00001.safetensors"
    (source / name).write_bytes(safetensors({"a.weight": ("F32", (2,), b"abcdefgh")}))
    (source / "consolidated.safetensors").write_bytes(safetensors({"x": ("F32", (2,), b"abcdefgh")}))
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a.weight": name}}))
    assert "W_SHARD_UNLISTED" in [item.code for item in open_checkpoint(source).findings]
    made = fix_keys(source, tmp_path / "out", rename=["a.{x}=b.{x}"])
    assert isinstance(made, Result)
    assert not (tmp_path / "out" / "consolidated.safetensors").exists()


def test_a_pack_with_its_expansion_in_a_subfolder_is_one_model(tmp_path: Path) -> None:
    source = write(tmp_path / "m", causal_lm(), LM_CONFIG)
    write(source / "bf16", causal_lm(), LM_CONFIG)
    made = fix_keys(source, tmp_path / "out", presets=["add-language-model"])
    assert isinstance(made, Result)
    assert not (tmp_path / "out" / "bf16").exists()
    assert len(tensors(tmp_path / "out")) == len(causal_lm())


def without_head() -> list[TensorSpec]:
    return [item for item in causal_lm() if item.name != "lm_head.weight"]


def test_an_untied_model_without_a_head_is_told_with_both_ways_out(tmp_path: Path) -> None:
    item = found(tmp_path, without_head(), {**LM_CONFIG, "tie_word_embeddings": False})["W_HEAD_MISSING"]
    assert "--set-config" in item.fix
    assert "fetch" in item.fix


def test_a_tied_head_is_said_to_come_from_the_embeddings(tmp_path: Path) -> None:
    config = {**LM_CONFIG, "text_config": {"tie_word_embeddings": True}}
    assert "comes from the embeddings" in found(tmp_path, without_head(), config)["N_TIED_HEAD"].message


def test_a_stored_head_of_a_tied_config_names_the_repair(tmp_path: Path) -> None:
    item = found(tmp_path, causal_lm(), {**LM_CONFIG, "tie_word_embeddings": True})["N_TIED_HEAD"]
    assert "--drop-tied" in item.fix


@pytest.mark.parametrize("metadata", [None, {}, {"z": "1", "a": "2"}])
def test_outputs_always_say_format_pt_with_sorted_metadata(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    header: dict[str, Any] = {"a.w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    if metadata is not None:
        header["__metadata__"] = metadata
    raw(tmp_path / "m" / "model.safetensors", header, b"abcdefgh")
    data = []
    for out in ("one", "two"):
        fix_keys(tmp_path / "m", tmp_path / out, rename=["a.{x}=b.{x}"])
        data.append((tmp_path / out / "model.safetensors").read_bytes())
    assert data[0] == data[1]
    found_ = json.loads(data[0][8 : 8 + int.from_bytes(data[0][:8], "little")])["__metadata__"]
    assert list(found_.items()) == sorted({**(metadata or {}), "format": "pt"}.items())


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_outputs_have_the_mode_that_the_umask_says(tmp_path: Path, umask: int, mode: int) -> None:
    source = write(tmp_path / "m", causal_lm(), LM_CONFIG)
    before = os.umask(umask)
    try:
        fix_keys(source, tmp_path / "out", presets=["add-language-model"])
        repair(source, tmp_path / "repaired", RepairRequest(metadata={"a": "b"}))
        fix_keys(source, in_place=True, presets=["add-language-model"])
    finally:
        os.umask(before)
    for folder in ("out", "repaired"):
        assert stat.S_IMODE((tmp_path / folder / "model.safetensors").stat().st_mode) == mode
    assert stat.S_IMODE((source / "model.safetensors").stat().st_mode) == 0o644


def test_a_header_of_100_000_bytes_is_read_and_renamed(tmp_path: Path) -> None:
    header = {"a.w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    padding = b" " * (100_000 - len(json.dumps(header)))
    path = raw(tmp_path / "m" / "model.safetensors", header, b"abcdefgh", padding)
    (tmp_path / "m" / "config.json").write_text("{}")
    fix_keys(tmp_path / "m", in_place=True, rename=["a.{x}=much.longer.name.{x}"])
    assert path.stat().st_size == 8 + 100_000 + 8
    assert tensors(tmp_path / "m") == {"much.longer.name.w": ("F32", (2,), b"abcdefgh")}


def test_short_long_and_padded_files_are_three_findings(tmp_path: Path) -> None:
    good = safetensors({"a.w": ("U8", (128,), bytes(128))})
    codes = []
    for data in (good[:-64], good + bytes(64)):
        (tmp_path / "model.safetensors").write_bytes(data)
        with pytest.raises(ConvertError) as caught:
            fix_keys(tmp_path, in_place=True, rename=["a.{x}=b.{x}"])
        codes.append(caught.value.code)
    raw(tmp_path / "model.safetensors", {"a.w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"x", b"\0\0\0")
    with pytest.raises(ConvertError) as caught:
        fix_keys(tmp_path, in_place=True, rename=["a.{x}=b.{x}"])
    assert [*codes, caught.value.code] == ["E_ST_TRUNCATED", "E_ST_TRAILING", "E_ST_HEADER"]


def test_misaligned_tensors_are_counted_and_laid_out_anew(tmp_path: Path) -> None:
    header = {
        "a.odd": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "b.wide": {"dtype": "F32", "shape": [2], "data_offsets": [3, 11]},
    }
    raw(tmp_path / "m" / "model.safetensors", header, b"abc12345678")
    (tmp_path / "m" / "config.json").write_text(json.dumps(LM_CONFIG))
    items = {item.code: item for item in identify(open_checkpoint(tmp_path / "m")).findings}
    assert items["W_MISALIGNED"].data["count"] == 1
    made = repair(tmp_path / "m", tmp_path / "out", RepairRequest(merge=True))
    assert isinstance(made, Result)
    for ref in open_checkpoint(tmp_path / "out").tensors.values():
        assert ref.start % {"F32": 4, "U8": 1}[ref.spec.dtype] == 0
    assert tensors(tmp_path / "out") == tensors(tmp_path / "m")


def test_a_header_padded_with_nul_is_told_as_that(tmp_path: Path) -> None:
    header = {"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    path = raw(tmp_path / "m" / "model.safetensors", header, b"x", b"\0" * 5)
    with pytest.raises(ConvertError) as caught:
        open_checkpoint(path.parent)
    assert caught.value.code == "E_ST_HEADER"
    assert "padded with 5 NUL bytes" in str(caught.value)


@pytest.mark.parametrize(("leaf", "kind"), [("gate_up_proj", "experts"), ("w13_weight", "w13")])
def test_the_cure_of_stacked_experts_is_the_repair_for_their_names(tmp_path: Path, leaf: str, kind: str) -> None:
    stack = spec(f"model.layers.0.mlp.experts.{leaf}", "BF16", 2, 32, 32)
    codes = found(tmp_path, [*causal_lm(), stack], LM_CONFIG)
    assert codes["N_EXPERTS_STACKED"].fix == f"to pack them: repair --split {kind} first"
