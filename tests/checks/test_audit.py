from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.checks.audit import audit_written
from convertkit.checks.audited import Audit
from convertkit.containers.folder import open_checkpoint
from convertkit.dialects.scheme import with_quantization
from convertkit.dialects.writing import write_quantization
from convertkit.layouts.fused import parse_fuse, user_groups
from convertkit.layouts.tables import LAYOUTS_BY_NAME
from tests.dialects.tiny import ATTENTION, DFLASH_CONFIG, LM_CONFIG, MLP, causal_lm, checkpoint, dflash, planes, spec

FIXTURES = Path(__file__).parents[2] / "fixtures"
ALL = (*MLP, *ATTENTION)


def found(audit: Audit) -> list[tuple[str, str | None]]:
    return [(item.code, item.where.tensor) for item in audit.errors]


def audited(
    tmp_path: Path,
    specs: list[TensorSpec],
    *,
    like: list[TensorSpec] | None = None,
    layout: str = "dflash",
    dialect: str = "modelopt-mixed",
    values: dict[str, bytes] | None = None,
    config: dict[str, Any] | None = None,
    **more: Any,
) -> Audit:
    """Write specs with the quantization config of ``like`` (default: of the specs themselves) and audit them."""
    base = {**(DFLASH_CONFIG if layout == "dflash" else LM_CONFIG), **(config or {})}
    block, document = write_quantization(dialect, like or specs, LAYOUTS_BY_NAME[layout])
    return audit_written(checkpoint(tmp_path, specs, with_quantization(base, block), document, values), **more)


@pytest.mark.parametrize("dialect", ["modelopt", "modelopt-mixed", "compressed-tensors"])
def test_what_is_whole_passes(tmp_path: Path, dialect: str) -> None:
    specs = dflash(MLP, dialect)
    audit = audited(tmp_path, specs, dialect=dialect, expected=specs, scan=True)
    notes = [item.code for item in audit.findings]  # all weights are ones, which lie on a grid
    assert set(notes) == {"N_ON_GRID", "N_CONSTANT"}
    assert audit.summary == {
        "layout": "dflash", "kind": "drafter", "dialect": dialect, "tensors": len(specs), "packed_linears": 6,
        "dense_linears": 9, "fused_groups": 2, "errors": 0, "warnings": 0, "notes": len(notes),
    }  # fmt: skip
    packed = [row for row in audit.rows if row["planes"]]
    assert [(row["name"], row["count"], row["shape"], row["config"]) for row in packed] == [
        (f"layers.{{i}}.mlp.{leaf}", 2, [32, 32], "packed") for leaf in sorted(MLP)
    ]
    assert {row["config"] for row in audit.rows if row["role"] == "attention"} == {"dense"}


@pytest.mark.parametrize("path", sorted(path.name for path in FIXTURES.iterdir() if path.is_dir()))
def test_fixtures_pass_unless_they_hold_fp8(path: str) -> None:
    audit = audit_written(open_checkpoint(FIXTURES / path), scan=True)
    expected = {"E_UNSUPPORTED_QUANT"} if "fp8" in path else set()
    assert {item.code for item in audit.errors} == expected


@pytest.mark.parametrize(
    ("missing", "code"),
    [
        ("layers.1.self_attn.k_proj.weight", "E_LAYOUT_MISSING"),
        ("layers.0.input_layernorm.weight", "E_LAYOUT_MISSING"),
        ("fc.weight", "E_LAYOUT_MISSING"),
    ],
)
def test_a_missing_tensor(tmp_path: Path, missing: str, code: str) -> None:
    specs = [item for item in dflash(MLP) if item.name != missing]
    audit = audited(tmp_path, specs, like=dflash(MLP))
    if missing == "fc.weight":  # without its fusion layer the folder is not recognised as a drafter at all
        assert audit.summary["layout"] != "dflash"
        return
    assert found(audit) == [(code, missing)]


def test_a_missing_layer_is_one_finding_per_family(tmp_path: Path) -> None:
    audit = audited(tmp_path, dflash(MLP), config={"num_hidden_layers": 4})
    assert {item.code for item in audit.errors} == {"E_LAYOUT_MISSING"}
    assert len(audit.errors) == 11
    assert all(item.data["count"] == 2 for item in audit.errors)


def test_unknown_tensors_and_biases_without_attention_bias(tmp_path: Path) -> None:
    extra = [spec("layers.0.self_attn.q_proj.bias", "BF16", 32), spec("surprise", "F32", 2)]
    audit = audited(tmp_path, [*dflash(MLP), *extra])
    assert found(audit) == [("E_LAYOUT_EXTRA", "layers.0.self_attn.q_proj.bias"), ("E_LAYOUT_EXTRA", "surprise")]


def test_wrong_shapes_of_dense_and_packed_linears(tmp_path: Path) -> None:
    specs = [item for item in dflash(MLP) if not item.name.startswith(("layers.0.mlp.up_proj.", "fc."))]
    specs += [*planes("layers.0.mlp.up_proj", rows=16), spec("fc.weight", "BF16", 32, 32)]
    audit = audited(tmp_path, specs)
    assert sorted(found(audit)) == [
        ("E_LAYOUT_SHAPE", "fc.weight"),
        ("E_LAYOUT_SHAPE", "layers.0.mlp.up_proj.weight"),
    ]
    assert "[32, 32]" in audit.errors[0].message + audit.errors[1].message


def test_wrong_dtype(tmp_path: Path) -> None:
    specs = [item for item in dflash(MLP) if item.name != "norm.weight"] + [spec("norm.weight", "I32", 32)]
    assert found(audited(tmp_path, specs)) == [("E_LAYOUT_DTYPE", "norm.weight")]


def test_against_a_plan(tmp_path: Path) -> None:
    planned = [*dflash(MLP), spec("layers.0.mlp.up_proj.input_scale", "F32")]
    written = dflash(MLP)
    written[1] = spec("hidden_norm.weight", "F32", 32)
    audit = audited(tmp_path, written, expected=[item for item in planned if item.name != "norm.weight"])
    assert found(audit) == [
        ("E_LAYOUT_MISSING", "layers.0.mlp.up_proj.input_scale"),
        ("E_LAYOUT_EXTRA", "norm.weight"),
        ("E_LAYOUT_SHAPE", "hidden_norm.weight"),
    ]


def f32(value: float) -> bytes:
    return struct.pack("<f", value)


def test_unequal_scales_in_a_fused_group(tmp_path: Path) -> None:
    values = {f"layers.{i}.mlp.up_proj.weight_scale_2": f32(2.0) for i in range(2)}
    (item,) = audited(tmp_path, dflash(MLP), values=values).errors
    assert (item.code, item.where.tensor, item.data["count"]) == ("E_FUSED_SCALE", "layers.0.mlp.gate_proj.weight", 2)
    assert "gate_proj 1, up_proj 2" in item.message


def test_scales_are_compared_as_bits(tmp_path: Path) -> None:
    nearly = struct.pack("<I", 0x3F800001)
    audit = audited(tmp_path, dflash(MLP), values={"layers.0.mlp.up_proj.weight_scale_2": nearly})
    assert [item.code for item in audit.errors] == ["E_FUSED_SCALE"]
    alone = audited(tmp_path / "b", dflash(MLP), values={"layers.0.mlp.down_proj.weight_scale_2": nearly})
    assert alone.errors == ()


def test_experts_may_differ_from_each_other_but_not_within(tmp_path: Path) -> None:
    names = [f"model.layers.0.mlp.experts.{e}.{leaf}" for e in range(2) for leaf in MLP]
    specs = [*causal_lm(ALL), *(plane for name in names for plane in planes(name))]
    other = {f"{name}.weight_scale_2": f32(3.0) for name in names[3:]}
    assert audited(tmp_path / "a", specs, layout="causal-lm", values=other).errors == ()
    del other[f"{names[4]}.weight_scale_2"]
    (item,) = audited(tmp_path / "b", specs, layout="causal-lm", values=other).errors
    assert (item.code, item.where.tensor) == ("E_FUSED_SCALE", "model.layers.0.mlp.experts.1.gate_proj.weight")


def test_user_groups_are_audited_too(tmp_path: Path) -> None:
    values = {"layers.0.mlp.down_proj.weight_scale_2": f32(2.0)}
    fuse = [parse_fuse("layers.{i}.mlp.up_proj,layers.{i}.mlp.down_proj")]
    (item,) = audited(tmp_path, dflash(MLP), values=values, fuse=fuse).errors
    assert (item.code, item.data["groups"]) == ("E_FUSED_SCALE", ["layers.0.mlp.gate_proj"])


def test_the_ratio_of_unequal_scales_is_told(tmp_path: Path) -> None:
    values = {"layers.0.mlp.up_proj.weight_scale_2": f32(0.8)}
    (item,) = audited(tmp_path, dflash(MLP), values=values).errors
    assert item.message.endswith("engines keep one for all and serve up_proj times 1.25")


def test_names_of_a_user_group_that_nothing_has_fail(tmp_path: Path) -> None:
    fuse = user_groups(["layers.{i}.mlp.up_proj,layers.{i}.mlp.dwn_proj"])
    (item,) = audited(tmp_path, dflash(MLP), fuse=fuse).errors
    assert item.code == "E_PATTERN_EMPTY"
    assert "layers.{i}.mlp.dwn_proj matches no linear layer" in item.message


def test_a_fused_group_that_is_packed_in_part_fails(tmp_path: Path) -> None:
    specs = [item for item in dflash(MLP) if not item.name.startswith("layers.1.mlp.up_proj.")]
    block, _ = write_quantization("modelopt-mixed", dflash(MLP), LAYOUTS_BY_NAME["dflash"])
    del block["quantized_layers"]["layers.1.mlp.up_proj"]
    specs.append(spec("layers.1.mlp.up_proj.weight", "BF16", 32, 32))
    source = checkpoint(tmp_path, specs, with_quantization(DFLASH_CONFIG, block), {})
    assert ("E_FUSED_SPLIT", "layers.1.mlp.up_proj.weight") in found(audit_written(source))


def test_unequal_scales_of_what_only_looks_like_a_group_are_a_warning(tmp_path: Path) -> None:
    names = [f"model.layers.0.cross.add_{leaf}_proj" for leaf in "qkv"]
    specs = [*causal_lm(ALL), *(plane for name in names for plane in planes(name))]
    values = {f"{names[1]}.weight_scale_2": f32(3.0)}
    equal = audited(tmp_path / "equal", specs, layout="causal-lm")
    assert "W_UNTIED" not in [item.code for item in equal.findings]
    audit = audited(tmp_path / "unequal", specs, layout="causal-lm", values=values)
    [item] = [item for item in audit.findings if item.code == "W_UNTIED"]
    assert item.data["groups"] == [names]
    assert audit.errors == ()


def mismatches(audit: Audit) -> list[str]:
    return [item.message for item in audit.findings if item.code in ("E_QCONFIG_MISMATCH", "W_QCONFIG_MISMATCH")]


def test_two_statements_that_disagree_do_not_hide_what_both_get_wrong(tmp_path: Path) -> None:
    block, document = write_quantization("modelopt", causal_lm(ALL), LAYOUTS_BY_NAME["causal-lm"])
    assert document is not None
    block["ignore"] = [*block["ignore"], "model.layers.0.mlp*"]
    config = with_quantization(LM_CONFIG, block)
    audit = audit_written(checkpoint(tmp_path, causal_lm(ALL), config, document, {}))
    conflict, *others = mismatches(audit)
    assert "left out only in the first: model.layers.0.mlp*" in conflict
    assert [text.partition("'")[2].partition("'")[0] for text in others] == [
        f"model.layers.0.mlp.{leaf}" for leaf in ("down_proj", "gate_proj", "up_proj")
    ]


def test_a_left_out_parent_of_packed_linears_is_told_apart_from_a_name_of_nothing(tmp_path: Path) -> None:
    specs = causal_lm(ALL, "compressed-tensors")
    block, _ = write_quantization("compressed-tensors", specs, LAYOUTS_BY_NAME["causal-lm"])
    block["ignore"] = [*block["ignore"], "model.layers.0.mlp", "model.nothing"]
    audit = audit_written(checkpoint(tmp_path, specs, with_quantization(LM_CONFIG, block), None, {}))
    parent, nothing = mismatches(audit)
    assert parent.startswith(
        "'model.layers.0.mlp' is left out by the quantization config, but 3 linears in it are packed"
    )
    assert nothing == "1 entry of the quantization config names no stored module: model.nothing"
    assert audit.errors == ()


def test_another_quantization_under_a_left_out_name_is_a_contradiction(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.o_proj"
    specs = [item for item in causal_lm(ALL) if not item.name.startswith(f"{name}.")]
    block, _ = write_quantization("modelopt", specs, LAYOUTS_BY_NAME["causal-lm"])
    block["ignore"] = [*block["ignore"], name]
    stored = [spec(f"{name}.weight", "F8_E4M3", 32, 32), spec(f"{name}.weight_scale", "F32")]
    audit = audit_written(checkpoint(tmp_path, [*specs, *stored], with_quantization(LM_CONFIG, block), None, {}))
    assert ("E_QCONFIG_MISMATCH", f"{name}.weight") in found(audit)
    assert [row["config"] for row in audit.rows if row["first"] == f"{name}.weight"] == ["dense"]


def test_a_linear_that_lacks_its_activation_scale_is_named(tmp_path: Path) -> None:
    whole = [*causal_lm(ALL)]
    names = {item.name.removesuffix(".weight_scale_2") for item in whole if item.name.endswith(".weight_scale_2")}
    lacking = "model.layers.0.mlp.down_proj"
    inputs = [spec(f"{name}.input_scale", "F32") for name in sorted(names)]
    block, document = write_quantization("modelopt", [*whole, *inputs], LAYOUTS_BY_NAME["causal-lm"])
    config = with_quantization(LM_CONFIG, block)
    assert audit_written(checkpoint(tmp_path / "whole", [*whole, *inputs], config, document, {})).errors == ()
    short = [*whole, *(item for item in inputs if not item.name.startswith(lacking))]
    (item,) = audit_written(checkpoint(tmp_path / "short", short, config, document, {})).errors
    assert (item.code, item.where.tensor) == ("E_QCONFIG_MISMATCH", f"{lacking}.weight")
    assert "packed without an activation scale" in item.message


@pytest.mark.parametrize(("value", "code"), [(f32(float("nan")), "E_SCALE_NONFINITE"), (f32(-0.0), "E_SCALE_ZERO")])
def test_bad_global_scales_need_no_scan(tmp_path: Path, value: bytes, code: str) -> None:
    values = {f"layers.{i}.mlp.down_proj.weight_scale_2": value for i in range(2)}
    (item,) = audited(tmp_path, dflash(MLP), values=values).errors
    assert (item.code, item.where.tensor) == (code, "layers.0.mlp.down_proj.weight_scale_2")
    assert item.data["count"] == 2


def test_scan_reads_block_scales_and_dense_weights(tmp_path: Path) -> None:
    values = {
        "layers.0.mlp.up_proj.weight_scale": b"\x38" * 61 + b"\xb8\x00\x7f",
        "fc.weight": b"\x80\x3f" * 2046 + b"\x80\x7f\xc0\xff",
    }
    specs = dflash(MLP)
    assert audited(tmp_path / "a", specs, values=values).errors == ()
    audit = audited(tmp_path / "b", specs, values=values, scan=True)
    assert found(audit) == [
        ("E_SCALE_NONFINITE", "layers.0.mlp.up_proj.weight_scale"),
        ("E_SCALE_SIGN", "layers.0.mlp.up_proj.weight_scale"),
        ("E_SCALE_ZERO", "layers.0.mlp.up_proj.weight_scale"),
        ("E_WEIGHT_NONFINITE", "fc.weight"),
    ]
    assert audit.errors[-1].data == {"count": 2}


def test_config_that_contradicts_the_tensors(tmp_path: Path) -> None:
    audit = audited(tmp_path, causal_lm(ALL), like=causal_lm(MLP), layout="causal-lm", dialect="modelopt")
    assert {item.code for item in audit.errors} == {"E_QCONFIG_MISMATCH"}
    assert len(audit.errors) == len(ATTENTION)
    audit = audited(tmp_path / "b", causal_lm(MLP), like=causal_lm(ALL), layout="causal-lm", dialect="modelopt")
    assert {item.code for item in audit.errors} == {"E_QCONFIG_MISMATCH"}
    assert all("dense" in item.message or "attn" in item.message for item in audit.errors)


def test_both_quantization_files_must_agree(tmp_path: Path) -> None:
    block, document = write_quantization("modelopt", causal_lm(ALL), LAYOUTS_BY_NAME["causal-lm"])
    assert document is not None
    document["quantization"]["exclude_modules"] = ["lm_head"]
    audit = audit_written(checkpoint(tmp_path, causal_lm(ALL), with_quantization(LM_CONFIG, block), document))
    assert [(item.code, item.where.file) for item in audit.errors] == [("E_QCONFIG_MISMATCH", "hf_quant_config.json")]


def test_a_language_model_without_one_of_its_layers(tmp_path: Path) -> None:
    audit = audit_written(checkpoint(tmp_path, causal_lm(), {**LM_CONFIG, "num_hidden_layers": 5}))
    (item,) = audit.errors
    assert (item.code, item.data) == ("E_LAYOUT_MISSING", {"layers": [2, 3, 4]})


def test_rows_do_not_depend_on_the_order_of_tensors(tmp_path: Path) -> None:
    specs = dflash(MLP)
    one = audited(tmp_path / "a", specs)
    two = audited(tmp_path / "b", specs[::-1])
    assert one.rows == two.rows
