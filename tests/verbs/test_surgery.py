"""Fusing and splitting: forth and back is the identity, and the parts are where their consumers look for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.conversion.repair_work import RepairRequest
from convertkit.demo.generate import generate
from convertkit.errors import ConvertError
from convertkit.verbs.audit import audit
from convertkit.verbs.case import Result
from convertkit.verbs.convert import convert
from convertkit.verbs.dequant import dequant
from convertkit.verbs.gate import gate
from convertkit.verbs.manifest import manifest
from convertkit.verbs.pack import pack_nvfp4
from convertkit.verbs.repair import repair
from convertkit.verbs.verify import verify
from tests.dialects.tiny import LM_CONFIG, planes, spec, write
from tests.verbs.test_pack_and_expand import tensors

CONFIG = {**LM_CONFIG, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 2}


def numbered(specs: list[TensorSpec]) -> dict[str, bytes]:
    """Bytes that differ from tensor to tensor and from row to row; scalars of one group share a value."""
    made = {}
    for number, item in enumerate(specs):
        leaf = item.name.rpartition(".")[2]
        if leaf in ("weight_scale_2", "weight_global_scale"):
            made[item.name] = b"\x00\x00\x00\x3a"
        elif item.dtype == "F8_E4M3":
            made[item.name] = bytes(1 + (number + k) % 0x7E for k in range(item.size_bytes))
        elif item.dtype == "BF16":
            made[item.name] = b"".join(
                (0x3C00 + 7 * number + k % 97).to_bytes(2, "little") for k in range(item.elements)
            )
        else:
            made[item.name] = bytes((13 * number + k) % 256 for k in range(item.size_bytes))
    return made


def linear(module: str, rows: int, columns: int, dialect: str | None) -> list[TensorSpec]:
    if dialect is None:
        return [spec(f"{module}.weight", "BF16", rows, columns)]
    return planes(module, dialect, rows, columns)


def layer(number: int, dialect: str | None) -> list[TensorSpec]:
    stem = f"model.layers.{number}"
    specs = [item for leaf, rows in (("q", 32), ("k", 16), ("v", 16))
             for item in linear(f"{stem}.self_attn.{leaf}_proj", rows, 32, dialect)]  # fmt: skip
    for expert in range(3):
        for leaf, rows, columns in (("gate", 16, 32), ("up", 16, 32), ("down", 32, 16)):
            specs += linear(f"{stem}.mlp.experts.{expert}.{leaf}_proj", rows, columns, dialect)
    specs += [
        item for leaf in ("gate", "up") for item in linear(f"{stem}.mlp.shared_expert.{leaf}_proj", 16, 32, dialect)
    ]
    return specs


def model(folder: Path, dialect: str | None) -> Path:
    specs = [*layer(0, dialect), *layer(1, dialect), spec("model.embed_tokens.weight", "BF16", 48, 32)]
    return write(folder, specs, CONFIG, values=numbered(specs))


def repaired(source: Path, out: Path, **words: tuple[str, ...]) -> Mapping[str, tuple[str, tuple[int, ...], bytes]]:
    made = repair(source, out, RepairRequest(**words))  # type: ignore[arg-type]
    assert isinstance(made, Result)
    return tensors(out)


@pytest.mark.parametrize("dialect", [None, "modelopt", "compressed-tensors"])
@pytest.mark.parametrize("kinds", [("qkv",), ("experts",), ("w13",), ("qkv", "experts")])
def test_forth_and_back_is_the_identity(tmp_path: Path, dialect: str | None, kinds: tuple[str, ...]) -> None:
    source = model(tmp_path / "source", dialect)
    before = tensors(source)
    fused = repaired(source, tmp_path / "fused", fuse=kinds)
    assert len(fused) < len(before)
    assert sum(len(row[2]) for row in fused.values()) <= sum(len(row[2]) for row in before.values())
    assert repaired(tmp_path / "fused", tmp_path / "back", split=kinds) == before


def test_gate_and_up_of_dense_and_shared_experts_are_joined_gate_first(tmp_path: Path) -> None:
    source = model(tmp_path / "source", None)
    before = tensors(source)
    after = repaired(source, tmp_path / "out", fuse=("gate-up",))
    stem = "model.layers.1.mlp.shared_expert"
    assert after[f"{stem}.gate_up_proj.weight"] == (
        "BF16", (32, 32), before[f"{stem}.gate_proj.weight"][2] + before[f"{stem}.up_proj.weight"][2],
    )  # fmt: skip
    assert repaired(tmp_path / "out", tmp_path / "back", split=("gate-up",)) == before


def test_stacked_experts_hold_the_gate_half_first_and_scales_per_half(tmp_path: Path) -> None:
    source = model(tmp_path / "source", "modelopt")
    before = tensors(source)
    after = repaired(source, tmp_path / "out", fuse=("w13",))
    home = "model.layers.0.mlp.experts"
    halves = [before[f"{home}.{e}.{leaf}_proj.weight"][2] for e in range(3) for leaf in ("gate", "up")]
    assert after[f"{home}.w13_weight"] == ("U8", (3, 32, 16), b"".join(halves))
    assert after[f"{home}.w13_weight_scale"][1] == (3, 32, 2)
    assert after[f"{home}.w13_weight_scale_2"][1] == (3, 2)
    assert after[f"{home}.w2_weight_scale_2"][1] == (3,)


def test_packing_says_that_stacked_experts_stay_dense(tmp_path: Path) -> None:
    source = model(tmp_path / "source", None)
    repair(source, tmp_path / "stacked", RepairRequest(fuse=("experts",)))
    made = pack_nvfp4(tmp_path / "stacked", tmp_path / "out", include=("layers.{i}.self_attn.{x}",))
    assert isinstance(made, Result)
    told = [item for item in made.findings if item.code == "N_EXPERTS_STACKED"]
    assert {(item.data["count"], "--split experts" in item.fix) for item in told} == {(4, True)}


def test_rows_0_to_7_are_gate_and_8_to_15_up(tmp_path: Path) -> None:
    specs = [
        spec("model.layers.0.mlp.experts.w13_weight", "BF16", 2, 16, 8),
        spec("model.layers.0.mlp.experts.w2_weight", "BF16", 2, 8, 8),
    ]
    source = write(tmp_path / "source", specs, {**CONFIG, "num_hidden_layers": 1}, values=numbered(specs))
    data = tensors(source)["model.layers.0.mlp.experts.w13_weight"][2]
    after = repaired(source, tmp_path / "out", split=("w13",))
    assert len(after) == 6
    row = 8 * 2
    for expert in range(2):
        start = expert * 16 * row
        assert after[f"model.layers.0.mlp.experts.{expert}.gate_proj.weight"][2] == data[start : start + 8 * row]
        assert (
            after[f"model.layers.0.mlp.experts.{expert}.up_proj.weight"][2] == data[start + 8 * row : start + 16 * row]
        )


def test_a_query_with_a_gate_keeps_its_rows(tmp_path: Path) -> None:
    specs = [spec("model.layers.0.self_attn.qkv_proj.weight", "BF16", 96, 32)]
    source = write(tmp_path / "source", specs, CONFIG, values=numbered(specs))
    after = repaired(source, tmp_path / "out", split=("qkv",))
    assert [after[f"model.layers.0.self_attn.{leaf}_proj.weight"][1][0] for leaf in "qkv"] == [64, 16, 16]


def refused(source: Path, out: Path, **words: tuple[str, ...]) -> str:
    with pytest.raises(ConvertError) as caught:
        repair(source, out, RepairRequest(**words))  # type: ignore[arg-type]
    assert not out.exists()
    return caught.value.code


def test_rows_that_are_not_the_heads_are_refused(tmp_path: Path) -> None:
    specs = [spec("model.layers.0.self_attn.qkv_proj.weight", "BF16", 70, 32)]
    assert refused(write(tmp_path / "s", specs, CONFIG), tmp_path / "out", split=("qkv",)) == "E_LAYOUT_SHAPE"


def test_parts_with_different_scales_are_not_fused(tmp_path: Path) -> None:
    specs = layer(0, "modelopt")
    values = numbered(specs) | {"model.layers.0.self_attn.k_proj.weight_scale_2": b"\x00\x00\x00\x3b"}
    source = write(tmp_path / "s", specs, CONFIG, values=values)
    assert refused(source, tmp_path / "out", fuse=("qkv",)) == "E_FUSED_SCALE"


def test_a_missing_expert_is_not_papered_over(tmp_path: Path) -> None:
    specs = [item for item in layer(0, None) if "experts.1.up_proj" not in item.name]
    source = write(tmp_path / "s", specs, CONFIG)
    assert refused(source, tmp_path / "out", fuse=("experts",)) == "E_LAYOUT_SHAPE"


def test_the_number_of_an_expert_is_not_trusted(tmp_path: Path) -> None:
    home = f"model.layers.0.mlp.experts.{10**12}"
    specs = [spec(f"{home}.{part}_proj.weight", "BF16", 4, 4) for part in ("gate", "up", "down")]
    source = write(tmp_path / "s", specs, CONFIG)
    assert refused(source, tmp_path / "out", fuse=("experts",)) == "E_LAYOUT_SHAPE"


def test_nothing_of_the_kind_is_an_error(tmp_path: Path) -> None:
    source = write(tmp_path / "s", [spec("a.weight", "BF16", 4, 4)], CONFIG)
    assert refused(source, tmp_path / "out", split=("experts",)) == "E_PATTERN_EMPTY"


@pytest.mark.parametrize("dialect", ["modelopt", "compressed-tensors"])
@pytest.mark.parametrize("kind", ["experts", "w13"])
def test_packed_stacks_are_never_read_as_dense_tensors(tmp_path: Path, kind: str, dialect: str) -> None:
    source = model(tmp_path / "source", dialect)
    made = repair(source, tmp_path / "stacked", RepairRequest(fuse=(kind,)))
    assert isinstance(made, Result)
    told = [item for item in made.findings if item.code == "E_PACK_STACKED"]
    assert {item.severity for item in told} == {"warning"}  # it was asked for
    verbs: list[Callable[[], Any]] = [
        lambda: dequant(tmp_path / "stacked", tmp_path / "dense"),
        lambda: pack_nvfp4(tmp_path / "stacked", tmp_path / "dense"),
        lambda: convert(tmp_path / "stacked", tmp_path / "dense", to="f16"),
        lambda: gate(tmp_path / "stacked", source),
    ]
    for verb in verbs:
        with pytest.raises(ConvertError) as caught:
            verb()
        assert {item.code for item in caught.value.findings} == {"E_PACK_STACKED"}
        assert {item.fix.partition(";")[0] for item in caught.value.findings} == {
            f"take them apart first: repair --split {kind}"
        }
    assert not (tmp_path / "dense").exists()
    assert "E_PACK_STACKED" in [item.code for item in audit(tmp_path / "stacked").findings if item.severity == "error"]
    repair(tmp_path / "stacked", tmp_path / "apart", RepairRequest(split=(kind,)))
    dequant(tmp_path / "apart", tmp_path / "one")
    dequant(source, tmp_path / "two")
    assert tensors(tmp_path / "one") == tensors(tmp_path / "two")


HOME = "model.layers.0.mlp.experts"
BMM = [  # as ModelOpt 0.47 exports the experts of Llama 4 and gpt-oss: hidden 32, two experts, intermediate 48
    spec(f"{HOME}.gate_up_proj", "U8", 2, 16, 96),
    spec(f"{HOME}.gate_up_proj_weight_scale", "F8_E4M3", 2, 2, 96),
    spec(f"{HOME}.gate_up_proj_weight_scale_2", "F32"),
    spec(f"{HOME}.down_proj", "U8", 2, 24, 32),
    spec(f"{HOME}.down_proj_weight_scale", "F8_E4M3", 2, 3, 32),
    spec(f"{HOME}.down_proj_weight_scale_2", "F32"),
]


def test_stacks_with_the_input_first_are_refused_and_named(tmp_path: Path) -> None:
    source = write(tmp_path / "s", BMM, {**CONFIG, "hidden_size": 32})
    assert refused(source, tmp_path / "out", split=("experts",)) == "E_LAYOUT_SHAPE"
    with pytest.raises(ConvertError, match="E_PACK_STACKED") as caught:
        dequant(source, tmp_path / "out")
    assert all(item.data["transposed"] and "Llama 4" in item.fix for item in caught.value.findings)


@pytest.mark.parametrize(
    ("shape", "config"),
    [
        ((2, 32, 48), {"hidden_size": 32}),
        ((2, 32, 32), {"hidden_size": 32, "model_type": "gpt_oss"}),
        ((2, 16, 24), {"text_config": {"model_type": "llama4_text"}}),
        ((2, 32, 48), {"text_config": {"model_type": "qwen3_vl_moe_text", "hidden_size": 32}}),
    ],
)
def test_dense_stacks_with_the_input_first_are_not_cut_the_wrong_way(
    tmp_path: Path, shape: tuple[int, ...], config: dict[str, Any]
) -> None:
    source = write(tmp_path / "s", [spec(f"{HOME}.gate_up_proj", "BF16", *shape)], {"model_type": "x", **config})
    assert refused(source, tmp_path / "out", split=("experts",)) == "E_LAYOUT_SHAPE"


@pytest.mark.parametrize("turned", [True, False])
def test_the_tensor_beside_it_tells_where_no_config_does(tmp_path: Path, turned: bool) -> None:
    shapes = ((2, 32, 96), (2, 48, 32)) if turned else ((2, 96, 32), (2, 32, 48))
    specs = [
        spec(f"{HOME}.{leaf}", "BF16", *shape)
        for leaf, shape in zip(("gate_up_proj", "down_proj"), shapes, strict=True)
    ]
    weights = write(tmp_path / "s", specs, {}) / "model.safetensors"
    if turned:
        assert refused(weights, tmp_path / "out", split=("experts",)) == "E_LAYOUT_SHAPE"
    else:
        assert len(repaired(weights, tmp_path / "out", split=("experts",))) == 6


def test_experts_are_not_stacked_for_a_class_that_wants_the_input_first(tmp_path: Path) -> None:
    specs = [item for leaf in ("gate", "up", "down") for item in linear(f"{HOME}.0.{leaf}_proj", 32, 32, None)]
    source = write(tmp_path / "s", specs, {**CONFIG, "model_type": "llama4_text"})
    assert refused(source, tmp_path / "out", fuse=("experts",)) == "E_LAYOUT_SHAPE"


def test_experts_without_a_gate_are_not_stacked_in_part(tmp_path: Path) -> None:
    specs = [item for leaf in ("up", "down") for item in linear(f"{HOME}.0.{leaf}_proj", 32, 32, None)]
    assert refused(write(tmp_path / "s", specs, CONFIG), tmp_path / "out", fuse=("experts",)) == "E_LAYOUT_SHAPE"


@pytest.mark.parametrize(
    "specs",
    [
        [spec(f"{HOME}.gate_up_proj", "F8_E4M3", 2, 32, 16), spec(f"{HOME}.gate_up_proj_weight_scale", "F32", 2)],
        [spec(f"{HOME}.gate_up_proj_blocks", "U8", 2, 32, 2, 16), spec(f"{HOME}.gate_up_proj_scales", "U8", 2, 32, 2)],
    ],
    ids=["FP8", "MXFP4"],
)
def test_stacks_of_other_quantizations_are_named(tmp_path: Path, specs: list[TensorSpec]) -> None:
    packed = planes("model.layers.0.self_attn.o_proj", rows=32)
    with pytest.raises(ConvertError, match="E_UNSUPPORTED_QUANT"):
        dequant(write(tmp_path / "s", [*specs, *packed], CONFIG), tmp_path / "out")


def test_the_quantization_config_follows_a_split(tmp_path: Path) -> None:
    specs = [*planes("model.layers.0.self_attn.qkv_proj", rows=64), spec("lm_head.weight", "BF16", 48, 32)]
    block = {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "ignore": ["lm_head"]}
    source = write(tmp_path / "s", specs, {**CONFIG, "quantization_config": block}, values=numbered(specs))
    made = repair(source, tmp_path / "out", RepairRequest(split=("qkv",)))
    assert isinstance(made, Result)
    assert made.status == 0
    assert not [item for item in made.findings if item.severity == "error"]


@pytest.mark.parametrize("dialect", ["modelopt", "modelopt-mixed", "compressed-tensors"])
@pytest.mark.parametrize("kind", ["qkv", "gate-up"])
def test_the_quantization_config_follows_dense_parts_too(tmp_path: Path, kind: str, dialect: str) -> None:
    """Parts that a pack left dense are excluded by name; joined they have another, and come back as they were."""
    dense = "{rest}.self_attn.{x}" if kind == "qkv" else "{rest}.mlp.{x}"
    generate("qwen3", tmp_path / "s")
    pack_nvfp4(tmp_path / "s", tmp_path / "pack", dialect=dialect, exclude=[dense])
    fused = repair(tmp_path / "pack", tmp_path / "fused", RepairRequest(fuse=(kind,)))
    split = repair(tmp_path / "fused", tmp_path / "split", RepairRequest(split=(kind,)))
    for made in (fused, split):
        assert isinstance(made, Result)
        assert made.status == 0
        assert "W_QCONFIG_MISMATCH" not in [item.code for item in made.findings]
    assert tensors(tmp_path / "split") == tensors(tmp_path / "pack")
    for name in ("config.json", "hf_quant_config.json") if dialect != "compressed-tensors" else ("config.json",):
        assert (tmp_path / "split" / name).read_bytes() == (tmp_path / "pack" / name).read_bytes()


def test_what_a_repair_was_asked_to_make_or_found_is_computed_anew_alike(tmp_path: Path) -> None:
    source = model(tmp_path / "source", "modelopt")
    repair(source, tmp_path / "stacked", RepairRequest(fuse=("experts",)))
    manifest(tmp_path / "stacked")
    assert verify(tmp_path / "stacked", recompute=True).status == 0
    report = tmp_path / "stacked" / "LOAD_SHAPE_AUDIT.json"
    document = json.loads(report.read_text())
    assert [item["code"] for item in document["findings"] if item["code"] == "E_PACK_STACKED"]
    document["plan"]["verb"] = "pack-nvfp4"  # no repair: then it is an error that is not stated
    report.write_text(json.dumps(document))
    manifest(tmp_path / "stacked")
    assert "E_RECOMPUTE" in [item.code for item in verify(tmp_path / "stacked", recompute=True).findings]
