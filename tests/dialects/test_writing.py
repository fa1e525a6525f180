"""Configs are generated from tensors: what they say, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.dialects.coverage import coherence_findings, coverage_of
from convertkit.dialects.linears import dense_linears, embeddings
from convertkit.dialects.reading import read_scheme
from convertkit.dialects.spelling import SPELLINGS
from convertkit.dialects.writing import DIALECTS, default_dialect, partial_groups, write_quantization
from convertkit.errors import ConvertError
from convertkit.layouts.tables import LAYOUTS_BY_NAME
from tests.dialects.tiny import ATTENTION, MLP, causal_lm, dflash, planes, spec

DRAFTER, MODEL = LAYOUTS_BY_NAME["dflash"], LAYOUTS_BY_NAME["causal-lm"]
EAGLE = LAYOUTS_BY_NAME["speculators-eagle3"]
W4A16 = {"quant_algo": "W4A16_NVFP4", "group_size": 16}


def refused(*arguments: Any, **keywords: Any) -> ConvertError:
    with pytest.raises(ConvertError) as caught:
        write_quantization(*arguments, **keywords)
    return caught.value


def test_modelopt_for_a_model_equals_what_modelopt_writes() -> None:
    block, document = write_quantization("modelopt", causal_lm((*ATTENTION, *MLP)), MODEL)
    assert document == {
        "producer": {"name": "modelopt", "version": "0.47.0"},
        "quantization": {
            "quant_algo": "W4A16_NVFP4",
            "kv_cache_quant_algo": None,
            "group_size": 16,
            "exclude_modules": ["lm_head", "model.embed_tokens"],
        },
    }
    assert block == {
        "config_groups": {
            "group_0": {
                "weights": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16},
                "targets": ["Linear"],
            }
        },
        "ignore": ["lm_head", "model.embed_tokens"],
        "quant_algo": "W4A16_NVFP4",
        "producer": {"name": "modelopt", "version": "0.47.0"},
        "quant_method": "modelopt",
    }


def test_mixed_lists_each_packed_linear_by_its_stored_name() -> None:
    block, document = write_quantization("modelopt-mixed", dflash(MLP), DRAFTER)
    listed = {f"layers.{i}.mlp.{leaf}": W4A16 for i in range(2) for leaf in MLP}
    assert block["quantized_layers"] == listed
    assert block["config_groups"]["group_0"]["targets"] == sorted(listed)
    assert (block["quant_algo"], block["quant_method"], block["ignore"]) == ("MIXED_PRECISION", "modelopt", [])
    assert document is not None
    assert document["quantization"] == {
        "quant_algo": "MIXED_PRECISION",
        "kv_cache_quant_algo": None,
        "quantized_layers": listed,
    }


def test_uniform_modelopt_for_a_drafter_also_excludes_the_fused_names() -> None:
    block, _ = write_quantization("modelopt", dflash(MLP), DRAFTER)
    assert set(block["ignore"]) == {"fc"} | {
        f"layers.{i}.self_attn.{leaf}" for i in range(2) for leaf in (*ATTENTION, "qkv_proj")
    }


def test_compressed_tensors_for_a_model_ignores_by_name() -> None:
    block, document = write_quantization("compressed-tensors", causal_lm(MLP, "compressed-tensors"), MODEL)
    assert document is None
    assert block["config_groups"]["group_0"]["targets"] == ["Linear"]
    attention = [f"model.layers.{i}.self_attn.{leaf}" for i in range(2) for leaf in ATTENTION]
    assert block["ignore"] == sorted([*attention, "lm_head"])
    assert block["config_groups"]["group_0"]["input_activations"] is None
    assert (block["quant_method"], block["format"]) == ("compressed-tensors", "nvfp4-pack-quantized")


@pytest.mark.parametrize(
    ("pack", "targets"),
    [
        (MLP, [r"re:.*\.mlp\..*"]),
        ((*MLP, *ATTENTION), [r"re:.*\.mlp\..*", r"re:.*\.self_attn\..*"]),
        (("down_proj",), [r"re:(.*\.)?mlp\.down_proj$"]),
        (("gate_proj", "up_proj"), [r"re:(.*\.)?mlp\.(gate_proj|up_proj|gate_up_proj)$"]),
        (("q_proj", "k_proj", "v_proj"), [r"re:(.*\.)?self_attn\.(k_proj|q_proj|v_proj|qkv_proj)$"]),
    ],
)
def test_compressed_tensors_for_a_drafter_selects_by_expression(pack: tuple[str, ...], targets: list[str]) -> None:
    block, _ = write_quantization("compressed-tensors", dflash(pack, "compressed-tensors"), DRAFTER)
    assert block["config_groups"]["group_0"]["targets"] == targets
    assert block["ignore"] == []


def test_a_packed_fc_is_selected_at_the_root() -> None:
    specs = [item for item in dflash(MLP, "compressed-tensors") if item.name != "fc.weight"]
    block, _ = write_quantization("compressed-tensors", [*specs, *planes("fc", "compressed-tensors")], DRAFTER)
    assert block["config_groups"]["group_0"]["targets"] == [r"re:(.*\.)?fc$", r"re:.*\.mlp\..*"]


def test_single_layers_of_a_drafter_need_modelopt_mixed() -> None:
    some = [item for item in dflash((), "compressed-tensors") if not item.name.startswith("layers.0.mlp.")]
    specs = [*some, *(plane for leaf in MLP for plane in planes(f"layers.0.mlp.{leaf}", "compressed-tensors"))]
    error = refused("compressed-tensors", specs, DRAFTER)
    assert error.code == "E_LOSS"
    assert "modelopt-mixed" in str(error)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_half_a_fused_matrix_is_refused(dialect: str) -> None:
    error = refused(dialect, dflash(("gate_proj", "down_proj"), dialect), DRAFTER)
    assert [item.code for item in error.findings] == ["E_FUSED_SPLIT"]
    assert error.findings[0].where.tensor == "layers.0.mlp.up_proj.weight"
    assert [item.code for item in partial_groups(["a.w1"], ["a.w3"], MODEL)] == ["E_FUSED_SPLIT"]
    assert partial_groups(["a.w1", "a.w3"], ["a.w2", "b.w1"], MODEL) == ()


@pytest.mark.parametrize("dialect", ["modelopt", "modelopt-mixed"])
def test_eagle_needs_the_number_of_target_layers(dialect: str) -> None:
    specs = dflash(MLP)
    assert refused(dialect, specs, EAGLE).code == "E_NEEDS_TARGET"
    block, _ = write_quantization(dialect, specs, EAGLE, target_layers=36)
    text = str(block)
    assert "model.layers.36." in text or "model.layers.37." in text
    assert "'layers.0." not in text
    assert write_quantization("compressed-tensors", dflash(MLP, "compressed-tensors"), EAGLE)[1] is None


def test_activation_scales_make_it_w4a4() -> None:
    for dialect, leaf in (("modelopt", "input_scale"), ("compressed-tensors", "input_global_scale")):
        shape = SPELLINGS[dialect].global_shape
        extra = [spec(f"model.layers.{i}.mlp.{name}.{leaf}", "F32", *shape) for i in range(2) for name in MLP]
        block, document = write_quantization(dialect, [*causal_lm(MLP, dialect), *extra], MODEL)
        group = block["config_groups"]["group_0"]
        assert group["input_activations"]["num_bits"] == 4
        scheme, _ = read_scheme({"quantization_config": block}, document or {})
        assert scheme is not None
        assert scheme.algorithms == ("NVFP4",)


def test_activation_scales_on_some_linears_only() -> None:
    some = [*causal_lm(MLP), spec("model.layers.0.mlp.up_proj.input_scale", "F32")]
    assert refused("modelopt", some, MODEL).code == "E_LOSS"
    block, _ = write_quantization("modelopt-mixed", some, MODEL)
    assert block["quantized_layers"]["model.layers.0.mlp.up_proj"]["quant_algo"] == "NVFP4"
    assert block["quantized_layers"]["model.layers.0.mlp.down_proj"]["quant_algo"] == "W4A16_NVFP4"
    assert sorted(block["config_groups"]) == ["group_0", "group_1"]


def test_kv_cache_scheme_is_carried() -> None:
    block, document = write_quantization("modelopt", causal_lm(MLP), MODEL, kv_cache="FP8")
    assert block["kv_cache_scheme"] == {"dynamic": False, "num_bits": 8, "type": "float"}
    assert document is not None
    assert document["quantization"]["kv_cache_quant_algo"] == "FP8"
    block, _ = write_quantization("compressed-tensors", causal_lm(MLP, "compressed-tensors"), MODEL, kv_cache="FP8")
    assert block["kv_cache_scheme"]["num_bits"] == 8


def test_a_tied_head_is_excluded_by_name() -> None:
    tied = [item for item in causal_lm(MLP) if item.name != "lm_head.weight"]
    assert "lm_head" in write_quantization("modelopt", tied, MODEL)[0]["ignore"]


def test_a_router_whose_name_is_part_of_a_packed_one_is_refused_in_uniform_modelopt() -> None:
    """vLLM matches excluded names as substrings: ``mlp.gate`` would also leave out ``mlp.gate_proj``."""
    specs = [*causal_lm(MLP), spec("model.layers.0.mlp.gate.weight", "BF16", 4, 32)]
    error = refused("modelopt", specs, MODEL)
    assert error.code == "E_LOSS"
    assert "modelopt-mixed" in str(error)
    write_quantization("modelopt-mixed", specs, MODEL)


def test_nothing_packed_is_refused() -> None:
    assert refused("modelopt", causal_lm(), MODEL).code == "E_NOT_QUANTIZED"


def test_default_dialects() -> None:
    assert default_dialect(DRAFTER) == "modelopt-mixed"
    assert default_dialect(MODEL) == "modelopt"


def test_configs_do_not_depend_on_the_order_of_tensors() -> None:
    for dialect in DIALECTS:
        specs = dflash(MLP, dialect)
        assert write_quantization(dialect, specs, DRAFTER) == write_quantization(dialect, specs[::-1], DRAFTER)


# ------------------------------------------------------------------ config against tensors


def coherence(
    block: dict[str, Any], specs: list[TensorSpec], layout: Any = MODEL, severity: Any = "error"
) -> list[Any]:
    scheme, faults = read_scheme({"quantization_config": block}, {})
    assert faults == ()
    assert scheme is not None
    packed = [item.name.rpartition(".")[0] for item in specs if item.name.endswith(("_scale_2", "weight_global_scale"))]
    dense = dense_linears([item for item in specs if item.dtype == "BF16"], layout)
    return list(coherence_findings(scheme, packed, dense, embeddings(specs, layout), layout, severity))


def modelopt(ignore: list[str]) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "ignore": ignore}


def test_packed_but_excluded_and_dense_but_counted() -> None:
    specs = causal_lm(MLP)
    found = coherence(modelopt(["lm_head", "*.mlp.*"]), specs)
    assert [(item.code, item.data["template"]) for item in found] == [
        *(("E_QCONFIG_MISMATCH", f"model.layers.{{i}}.mlp.{leaf}") for leaf in sorted(MLP)),
        *(("E_QCONFIG_MISMATCH", f"model.layers.{{i}}.self_attn.{leaf}") for leaf in sorted(ATTENTION)),
    ]
    assert all(item.data["count"] == 2 for item in found)
    assert {item.code for item in coherence(modelopt(["lm_head"]), specs, severity="warning")} == {"W_QCONFIG_MISMATCH"}


@pytest.mark.parametrize(
    "entry",
    ["model.layers.0.self_attn", "model.layers.0.self_attn*", "model.layers.0.self_attn.*", "*layers.0.self_attn*"],
)
def test_modelopt_entries_may_name_a_parent_or_be_globs(entry: str) -> None:
    ignore = ["lm_head", "model.layers.1.self_attn*", entry]
    assert coherence(modelopt(ignore), causal_lm(MLP)) == []


def test_the_language_model_prefix_may_stand_in_either_order() -> None:
    specs = [
        *planes("model.language_model.layers.0.mlp.up_proj"),
        spec("model.language_model.a.weight", "BF16", 32, 32),
    ]
    block = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {"language_model.model.layers.0.mlp.up_proj": W4A16},
    }
    assert coherence(block, specs) == []


def test_entries_that_name_nothing_are_listed() -> None:
    block, _ = write_quantization("compressed-tensors", causal_lm(MLP, "compressed-tensors"), MODEL)
    block["ignore"] = [*block["ignore"], "model.visual.merger.linear_fc1", "re:.*visual.*"]
    (found,) = coherence(block, causal_lm(MLP, "compressed-tensors"))
    assert (found.severity, found.data["entries"]) == ("warning", ["model.visual.merger.linear_fc1", "re:.*visual.*"])


@pytest.mark.parametrize("ignore", [["re:(?!mlp).*", "lm_head"], ["lm_head", "re:(?!mlp).*", "re:.*visual.*"]])
def test_an_expression_that_is_not_read_is_told(ignore: list[str]) -> None:
    block, _ = write_quantization("compressed-tensors", causal_lm(MLP, "compressed-tensors"), MODEL)
    (found,) = coherence({**block, "ignore": ignore}, causal_lm(MLP, "compressed-tensors"))
    assert (found.code, found.severity, found.where.file) == ("W_ENTRY_UNREAD", "warning", "config.json")
    assert found.data == {"count": 1, "entries": ["re:(?!mlp).*"]}


def test_an_entry_that_is_stated_twice_names_its_module_both_times() -> None:
    ignore = ["lm_head", "model.layers.0.self_attn*", "model.layers.1.self_attn.q_proj", "model.layers.1.self_attn*"]
    block = {**modelopt(ignore), "exclude_modules": ignore}
    assert coherence(block, causal_lm(MLP)) == []


def test_a_mixed_config_that_leaves_out_what_it_lists_is_a_contradiction() -> None:
    module = "model.layers.0.mlp.up_proj"
    specs = [*planes(module), spec("model.norm.weight", "BF16", 32)]
    block = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {module: W4A16},
        "exclude_modules": ["model.layers.0.mlp*"],
    }
    (found,) = coherence(block, specs)
    assert (found.code, found.data["modules"]) == ("E_QCONFIG_MISMATCH", [module])


def test_unlisted_routers_are_a_warning_only() -> None:
    specs = [*causal_lm(MLP, layers=1), spec("model.layers.0.block_sparse_moe.gate.weight", "BF16", 4, 32)]
    ignore = ["lm_head", "model.layers.0.self_attn*"]
    (found,) = coherence(modelopt(ignore), specs)
    assert (found.severity, found.code) == ("warning", "W_QCONFIG_MISMATCH")


def test_an_excluded_name_inside_a_packed_one_is_found() -> None:
    ignore = ["lm_head", "model.layers.0.self_attn*", "model.layers.1.self_attn*", "mlp.gate"]
    found = coherence(modelopt(ignore), causal_lm(MLP))
    assert [item.code for item in found] == ["W_QCONFIG_MISMATCH", "E_QCONFIG_MISMATCH"]  # unused, and a substring
    assert "'mlp.gate' is part of the packed 'model.layers.0.mlp.gate_proj'" in found[1].message


def test_coverage_answers_none_where_classes_decide() -> None:
    block, _ = write_quantization("compressed-tensors", causal_lm(MLP, "compressed-tensors"), MODEL)
    block["ignore"] = [*block["ignore"], "Qwen3RouterGate"]
    scheme, _ = read_scheme({"quantization_config": block}, {})
    assert scheme is not None
    assert coverage_of(scheme).covers("model.layers.0.mlp.up_proj") is None
    assert coverage_of(scheme).covers("lm_head") is False
