"""Repairs on small checkpoints: each cures what it is for, and nothing else changes."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.conversion.repair_work import RepairRequest
from convertkit.errors import ConvertError
from convertkit.release.reports import validate_report
from convertkit.verbs.case import Result
from convertkit.verbs.diff import diff
from convertkit.verbs.planned import DryRun
from convertkit.verbs.repair import Untouched, repair
from convertkit.verbs.verify import verify
from tests.dialects.tiny import LM_CONFIG, causal_lm, planes, spec, write
from tests.verbs.test_pack_and_expand import tensors


def f32(value: float) -> bytes:
    return struct.pack("<f", value)


def fixed(tmp_path: Path, source: Path, **words: Any) -> Path:
    out = tmp_path / "out"
    made = repair(source, out, RepairRequest(**words))
    assert isinstance(made, Result)
    assert verify(out, strict=True).status == 0
    assert validate_report(out / "REPAIR_REPORT.json")["verdict"] == "pass"
    return out


def refused(tmp_path: Path, source: Path, **words: Any) -> ConvertError:
    with pytest.raises(ConvertError) as caught:
        repair(source, tmp_path / "out", RepairRequest(**words))
    assert not (tmp_path / "out").exists()
    return caught.value


QKV = tuple(f"model.layers.0.self_attn.{leaf}_proj" for leaf in "qkv")
GATE_UP = ("model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj")


def packed(tmp_path: Path, scales: Mapping[str, float], dialect: str = "modelopt", scale_byte: int = 0x38) -> Path:
    leaf = {"modelopt": "weight_scale_2", "compressed-tensors": "weight_global_scale"}[dialect]
    specs = [item for module in scales for item in planes(module, dialect)] + [spec("lm_head.weight", "BF16", 48, 32)]
    values = {f"{module}.{leaf}": f32(value) for module, value in scales.items()}
    values |= {f"{module}.weight_scale": bytes([scale_byte]) * 64 for module in scales}
    return write(tmp_path / "source", specs, LM_CONFIG, values=values)


@pytest.mark.parametrize("dialect", ["modelopt", "compressed-tensors"])
def test_unequal_halves_of_gate_and_up_are_tied_without_touching_codes(tmp_path: Path, dialect: str) -> None:
    sign = 1 if dialect == "modelopt" else -1
    source = packed(tmp_path, {GATE_UP[0]: 2.0 ** (-10 * sign), GATE_UP[1]: 2.0 ** (-11 * sign)}, dialect)
    out = fixed(tmp_path, source, tie_scales=True)
    before, after = tensors(source), tensors(out)
    changed = {name for name in before if before[name] != after[name]}
    leaf = "weight_scale_2" if dialect == "modelopt" else "weight_global_scale"
    assert changed == {f"{GATE_UP[1]}.weight_scale", f"{GATE_UP[1]}.{leaf}"}
    assert after[f"{GATE_UP[1]}.{leaf}"][2] == after[f"{GATE_UP[0]}.{leaf}"][2] == f32(2.0 ** (-10 * sign))
    assert after[f"{GATE_UP[1]}.weight_scale"][2] == bytes([0x30]) * 64  # 1 became 1/2
    assert diff(source, out).document["summary"]["elements"] == 0
    rows = json.loads((out / "REPAIR_REPORT.json").read_text())["rows"]
    assert sum(row.get("changed_values", 0) for row in rows) == 0
    assert {row["name"] for row in rows if row["promise"] == "scales"} >= changed


def test_three_scales_of_q_k_and_v_become_the_largest(tmp_path: Path) -> None:
    source = packed(tmp_path, dict(zip(QKV, (2.0**-10, 2.0**-11, 2.0**-12), strict=True)))
    after = tensors(fixed(tmp_path, source, tie_scales=True))
    assert {after[f"{module}.weight_scale_2"][2] for module in QKV} == {f32(2.0**-10)}
    assert [after[f"{module}.weight_scale"][2][0] for module in QKV] == [0x38, 0x30, 0x28]


def test_the_smaller_scale_is_shared_where_the_larger_would_lose(tmp_path: Path) -> None:
    # block scales of 2^-9, the least subnormal, cannot be halved; the others can be doubled
    source = packed(tmp_path, {GATE_UP[0]: 2.0**-10, GATE_UP[1]: 2.0**-11}, scale_byte=0x01)
    after = tensors(fixed(tmp_path, source, tie_scales=True))
    assert {after[f"{module}.weight_scale_2"][2] for module in GATE_UP} == {f32(2.0**-11)}
    assert after[f"{GATE_UP[0]}.weight_scale"][2] == b"\x02" * 64


def test_a_ratio_that_is_no_power_of_two_is_refused_or_counted(tmp_path: Path) -> None:
    source = packed(tmp_path, {GATE_UP[0]: 3e-4, GATE_UP[1]: 1.7e-4})
    error = refused(tmp_path, source, tie_scales=True)
    assert (error.code, error.status) == ("E_FUSED_SCALE", 1)
    assert error.findings[0].data["changed_values"] == 32 * 32  # every code is 1 or 2, none is zero
    out = fixed(tmp_path, source, tie_scales=True, allow_loss=True)
    summary = json.loads((out / "REPAIR_REPORT.json").read_text())["summary"]
    assert summary["changed_values"] == 32 * 32
    after = tensors(out)
    assert after[f"{GATE_UP[0]}.weight"] == tensors(source)[f"{GATE_UP[0]}.weight"]
    assert len({after[f"{module}.weight_scale_2"][2] for module in GATE_UP}) == 1


def test_names_of_other_fused_groups_are_tied_too(tmp_path: Path) -> None:
    modules = [f"model.layers.0.attn1.to_{leaf}" for leaf in "qkv"]
    source = packed(tmp_path, dict(zip(modules, (2.0**-10, 2.0**-11, 2.0**-11), strict=True)))
    after = tensors(fixed(tmp_path, source, tie_scales=True))
    assert {after[f"{module}.weight_scale_2"][2] for module in modules} == {f32(2.0**-10)}


def test_a_group_of_unknown_names_is_tied_when_it_is_given(tmp_path: Path) -> None:
    modules = [f"model.layers.0.mixer.part_{leaf}" for leaf in "ab"]
    source = packed(tmp_path, dict(zip(modules, (2.0**-10, 2.0**-11), strict=True)))
    assert isinstance(repair(source, tmp_path / "out", RepairRequest(tie_scales=True)), Untouched)
    assert refused(tmp_path, source, tie_scales=True, groups=("x.{i}.a,x.{i}.b",)).code == "E_PATTERN_EMPTY"
    group = "layers.{i}.mixer.part_a,layers.{i}.mixer.part_b"
    after = tensors(fixed(tmp_path, source, tie_scales=True, groups=(group,)))
    assert {after[f"{module}.weight_scale_2"][2] for module in modules} == {f32(2.0**-10)}


def test_a_group_may_be_two_literal_names_and_none_of_them_may_be_misspelled(tmp_path: Path) -> None:
    modules = [f"model.layers.0.mixer.part_{leaf}" for leaf in "ab"]
    source = packed(tmp_path, dict(zip(modules, (2.0**-10, 2.0**-11), strict=True)))
    assert refused(tmp_path, source, tie_scales=True, groups=(f"{modules[0]},x.part_b",)).code == "E_PATTERN_EMPTY"
    after = tensors(fixed(tmp_path, source, tie_scales=True, groups=(",".join(modules),)))
    assert {after[f"{module}.weight_scale_2"][2] for module in modules} == {f32(2.0**-10)}


def test_equal_scales_are_nothing_to_do(tmp_path: Path) -> None:
    source = packed(tmp_path, dict.fromkeys(QKV, 2.0**-10))
    made = repair(source, tmp_path / "out", RepairRequest(tie_scales=True))
    assert isinstance(made, Untouched)
    assert not (tmp_path / "out").exists()


def test_a_matrix_fused_on_disk_is_split_with_equal_scalars(tmp_path: Path) -> None:
    module = "model.layers.0.mlp.gate_up_proj"
    source = write(
        tmp_path / "source", planes(module, rows=64), LM_CONFIG,
        values={f"{module}.weight": bytes(range(256)) * 4, f"{module}.weight_scale_2": f32(0.5)},
    )  # fmt: skip
    after = tensors(fixed(tmp_path, source, split_fused_scalars=True))
    codes = bytes(range(256)) * 4
    assert after[f"{GATE_UP[0]}.weight"] == ("U8", (32, 16), codes[:512])
    assert after[f"{GATE_UP[1]}.weight"] == ("U8", (32, 16), codes[512:])
    assert after[f"{GATE_UP[0]}.weight_scale_2"] == after[f"{GATE_UP[1]}.weight_scale_2"] == ("F32", (), f32(0.5))


def test_swapped_nibbles_are_told_and_put_right(tmp_path: Path) -> None:
    module = "model.layers.0.mlp.down_proj"
    right = write(tmp_path / "right", planes(module), LM_CONFIG, values={f"{module}.weight": b"\x12\x34" * 256})
    wrong = write(tmp_path / "source", planes(module), LM_CONFIG, values={f"{module}.weight": b"\x21\x43" * 256})
    [row] = diff(right, wrong).document["values"]
    assert row["nibbles_swapped"]
    assert row["codes"] == 512
    out = fixed(tmp_path, wrong, swap_nibbles=True)
    assert tensors(out)[f"{module}.weight"] == tensors(right)[f"{module}.weight"]


def test_shards_are_cut_and_merged(tmp_path: Path) -> None:
    source = write(tmp_path / "source", causal_lm(), LM_CONFIG)
    made = repair(source, tmp_path / "cut", RepairRequest(shard_bytes=20_000))
    assert isinstance(made, Result)
    assert len(list((tmp_path / "cut").glob("*.safetensors"))) > 1
    out = fixed(tmp_path, tmp_path / "cut", merge=True)
    assert (out / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


def head(tmp_path: Path, values: Mapping[str, bytes], **config: Any) -> Path:
    return write(tmp_path / "source", causal_lm(), {**LM_CONFIG, **config}, values=values)


def test_a_head_equal_to_the_embeddings_is_dropped_and_the_config_says_so(tmp_path: Path) -> None:
    out = fixed(tmp_path, head(tmp_path, {}, tie_word_embeddings=False), drop_tied=True)
    assert "lm_head.weight" not in tensors(out)
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is True


def test_another_head_is_kept(tmp_path: Path) -> None:
    source = head(tmp_path, {"lm_head.weight": b"\x00\x3f" * (48 * 32)}, tie_word_embeddings=True)
    error = refused(tmp_path, source, drop_tied=True)
    assert (error.code, error.status) == ("E_TIED_DIFFERS", 1)
    out = fixed(tmp_path, source, set_config=True)
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is False


def test_a_packed_head_beside_dense_embeddings_is_kept_as_a_family(tmp_path: Path) -> None:
    specs = [item for item in causal_lm() if item.name != "lm_head.weight"] + planes("lm_head", rows=48)
    source = write(tmp_path / "source", specs, {**LM_CONFIG, "tie_word_embeddings": True})
    error = refused(tmp_path, source, drop_tied=True)
    assert {item.where.tensor for item in error.findings} == {
        "lm_head.weight", "lm_head.weight_scale", "lm_head.weight_scale_2",
    }  # fmt: skip


def test_a_packed_head_equal_to_packed_embeddings_goes_as_a_family(tmp_path: Path) -> None:
    specs = [item for item in causal_lm() if item.name not in ("lm_head.weight", "model.embed_tokens.weight")]
    specs += [*planes("lm_head", rows=48), *planes("model.embed_tokens", rows=48)]
    source = write(tmp_path / "source", specs, {**LM_CONFIG, "tie_word_embeddings": True})
    made = repair(source, tmp_path / "out", RepairRequest(drop_tied=True, set_config=True))
    assert isinstance(made, Result)
    assert not [name for name in tensors(tmp_path / "out") if name.startswith("lm_head")]
    dropped = {item.where.tensor for item in made.findings if item.code == "N_DROPPED"}
    assert dropped == {"lm_head.weight", "lm_head.weight_scale", "lm_head.weight_scale_2"}


def test_config_fields_follow_the_tensors(tmp_path: Path) -> None:
    specs = [item for item in causal_lm() if item.name != "lm_head.weight"]
    config = {**LM_CONFIG, "tie_word_embeddings": False, "num_nextn_predict_layers": 1, "torch_dtype": "float16"}
    out = fixed(tmp_path, write(tmp_path / "source", specs, config), set_config=True)
    after = json.loads((out / "config.json").read_text())
    assert (after["tie_word_embeddings"], after["num_nextn_predict_layers"]) == (True, 0)
    assert after["torch_dtype"] == "bfloat16"


def test_the_quantization_config_is_made_from_what_is_stored(tmp_path: Path) -> None:
    config = {**LM_CONFIG, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": []}}
    source = write(tmp_path / "source", causal_lm(pack=("down_proj",)), config)
    out = fixed(tmp_path, source, set_config=True)
    block = json.loads((out / "config.json").read_text())["quantization_config"]
    assert block["quant_algo"] == "W4A16_NVFP4"
    assert "model.layers.0.mlp.gate_proj" in block["ignore"]
    assert json.loads((out / "hf_quant_config.json").read_text())["quantization"]["exclude_modules"] == block["ignore"]


def test_the_note_of_a_new_quantization_config_names_its_file(tmp_path: Path) -> None:
    made = packed(tmp_path, {"model.layers.0.mlp.down_proj": 2.0**10}, dialect="compressed-tensors")
    result = repair(made, tmp_path / "right", RepairRequest(set_config=True))
    assert isinstance(result, Result)
    assert [item.where.file for item in result.findings if item.code == "W_CONFIG_SET"] == ["config.json"]


def test_what_quantization_left_behind_is_stripped(tmp_path: Path) -> None:
    specs = [*causal_lm(), spec("model.layers.0.mlp.down_proj.input_scale", "F32")]
    block = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": []}
    source = write(tmp_path / "source", specs, {**LM_CONFIG, "quantization_config": block}, {"quantization": block})
    out = fixed(tmp_path, source, strip_quant_residue=True)
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    assert not (out / "hf_quant_config.json").exists()
    assert "model.layers.0.mlp.down_proj.input_scale" not in tensors(out)


KV = {
    "k_proj.k_scale": ("k_proj.k_scale", "k_scale"),
    "v_proj.v_scale": ("v_proj.v_scale", "v_scale"),
    "attn.k_scale": ("k_proj.k_scale", "k_scale"),
    "qkv_proj.v_scale": ("v_proj.v_scale", "v_scale"),
    "v_scale": ("v_proj.v_scale", "v_scale"),
    "k_proj.output_scale": ("k_proj.k_scale", "k_scale"),
}


@pytest.mark.parametrize("spelling", ["modelopt", "compressed-tensors"])
@pytest.mark.parametrize("name", list(KV))
def test_every_spelling_of_kv_scales_becomes_one(tmp_path: Path, name: str, spelling: str) -> None:
    stem = "model.layers.0.self_attn"
    source = write(
        tmp_path / "source", [*causal_lm(), spec(f"{stem}.{name}", "F32")], LM_CONFIG,
        values={f"{stem}.{name}": f32(0.25)},
    )  # fmt: skip
    wanted = f"{stem}.{KV[name][spelling == 'compressed-tensors']}"
    if wanted == f"{stem}.{name}":
        made = repair(source, tmp_path / "out", RepairRequest(normalise_kv_scales=spelling))
        assert isinstance(made, Untouched)
        return
    after = tensors(fixed(tmp_path, source, normalise_kv_scales=spelling))
    assert after[wanted] == ("F32", (), f32(0.25))
    assert f"{stem}.{name}" not in after


def test_one_scale_for_keys_and_values_becomes_two(tmp_path: Path) -> None:
    stem = "model.layers.0.self_attn"
    source = write(tmp_path / "source", [*causal_lm(), spec(f"{stem}.kv_scale", "F32")], LM_CONFIG)
    after = tensors(fixed(tmp_path, source, normalise_kv_scales="modelopt"))
    assert after[f"{stem}.k_proj.k_scale"] == after[f"{stem}.v_proj.v_scale"] == ("F32", (), f32(1.0))


def test_metadata_is_added_and_format_is_always_there(tmp_path: Path) -> None:
    out = fixed(tmp_path, write(tmp_path / "source", causal_lm(), LM_CONFIG), metadata={"made": "twice"})
    data = (out / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["__metadata__"] == {"format": "pt", "made": "twice"}


def test_a_plan_writes_nothing_and_says_what_it_would(tmp_path: Path) -> None:
    source = packed(tmp_path, {GATE_UP[0]: 2.0**-10, GATE_UP[1]: 2.0**-11})
    made = repair(source, tmp_path / "out", RepairRequest(tie_scales=True), only_plan=True)
    assert isinstance(made, DryRun)
    assert made.document["units"] == {"copy": 3, "fold": 2}
    assert not (tmp_path / "out").exists()


def test_two_repairs_of_one_tensor_are_refused(tmp_path: Path) -> None:
    module = "model.layers.0.mlp.gate_up_proj"
    source = write(tmp_path / "source", planes(module, rows=64), LM_CONFIG)
    assert refused(tmp_path, source, swap_nibbles=True, split=("gate-up",)).code == "E_USAGE"


def test_no_repair_is_a_usage_error(tmp_path: Path) -> None:
    assert refused(tmp_path, write(tmp_path / "source", causal_lm(), LM_CONFIG)).status == 2


def test_every_dtype_is_copied_untouched(tmp_path: Path) -> None:
    from convertkit.dtypes import DTYPES

    specs = [TensorSpec(f"t.{name.lower()}", name, (3, 2)) for name in DTYPES]
    values = {item.name: bytes(range(1, item.size_bytes + 1)) for item in specs}
    source = write(tmp_path / "source", specs, {}, values=values)
    after = tensors(fixed(tmp_path, source, metadata={"x": "y"}))
    assert {name: row[2] for name, row in after.items()} == values


def test_a_format_that_readers_refuse_is_not_written(tmp_path: Path) -> None:
    source = write(tmp_path / "source", causal_lm(), LM_CONFIG)
    assert refused(tmp_path, source, metadata={"format": "np"}).code == "E_USAGE"


def test_the_plan_names_scales_that_get_another_name(tmp_path: Path) -> None:
    names = [f"model.layers.{i}.self_attn.kv_scale" for i in range(2)]
    source = write(tmp_path / "source", [*causal_lm(), *(spec(name, "F32") for name in names)], LM_CONFIG)
    made = repair(source, tmp_path / "out", RepairRequest(normalise_kv_scales="modelopt"), only_plan=True)
    assert isinstance(made, DryRun)
    [item] = [item for item in made.document["findings"] if item["code"] == "W_KV_SCALES"]
    assert "model.layers.0.self_attn.k_proj.k_scale and" in item["message"]
    assert "1 more" in item["message"]
