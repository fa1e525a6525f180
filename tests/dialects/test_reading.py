from __future__ import annotations

import copy
from typing import Any

import pytest

from convertkit.dialects.reading import read_scheme
from convertkit.dialects.scheme import strip_quantization, with_quantization

WEIGHTS = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
CT: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}},
    "ignore": ["lm_head"],
}
MO: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "ignore": ["lm_head"]}
MIXED: dict[str, Any] = {
    "quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {"layers.0.mlp.up_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16}},
}


def changed(block: dict[str, Any], *path: Any) -> dict[str, Any]:
    """A copy with the value at a path of keys replaced by the last argument."""
    block = copy.deepcopy(block)
    place = block
    for key in path[:-2]:
        place = place[key]
    place[path[-2]] = path[-1]
    return block


GROUP = ("config_groups", "group_0")


@pytest.mark.parametrize(
    ("block", "key"),
    [
        (changed(CT, *GROUP, "weights", "group_size", 0), "group_size"),
        (changed(CT, *GROUP, "weights", "group_size", -16), "group_size"),
        (changed(CT, *GROUP, "weights", "group_size", 32), "group_size"),
        (changed(CT, *GROUP, "weights", "group_size", None), "group_size"),
        (changed(CT, *GROUP, "weights", "num_bits", 5), "num_bits"),
        (changed(CT, *GROUP, "weights", "num_bits", True), "num_bits"),
        (changed(CT, *GROUP, "weights", "type", "fp"), "type"),
        (changed(CT, *GROUP, "weights", "strategy", "rows"), "strategy"),
        (changed(CT, *GROUP, "weights", "symmetric", False), "symmetric"),
        (changed(CT, *GROUP, "weights", "dynamic", True), "dynamic"),
        (changed(CT, *GROUP, "weights", None), "weights"),
        (changed(CT, *GROUP, "targets", []), "targets"),
        (changed(CT, *GROUP, "targets", "Linear"), "targets"),
        (changed(CT, *GROUP, "input_activations", 4), "input_activations"),
        (changed(CT, "config_groups", {}), "config_groups"),
        (changed(CT, "config_groups", []), "config_groups"),
        (changed(CT, "format", "nvfp5-pack"), "format"),
        (changed(CT, "ignore", ["re:(a+)+$"]), "ignore"),
        (changed(CT, "ignore", [7]), "ignore"),
        (changed(CT, "kv_cache_scheme", {"num_bits": 3}), "kv_cache_scheme"),
        (changed(CT, "quant_method", "nvfp4"), "quant_method"),
        (changed(CT, "quant_method", None), "quant_method"),
        (changed(MO, "quant_algo", "W4A17"), "quant_algo"),
        (changed(MO, "quant_algo", 4), "quant_algo"),
        (changed(MO, "group_size", 32), "group_size"),
        (changed(MO, "ignore", "lm_head"), "ignore"),
        (changed(MO, "ignore", ["*" * 9 + "a"]), "ignore"),
        (changed(MO, "config_groups", {"g": {"weights": {"num_bits": 8}}}), "num_bits"),
        (changed(MO, "config_groups", {"g": {"weights": {"group_size": 8}}}), "group_size"),
        (changed(MIXED, "quantized_layers", {}), "quantized_layers"),
        (changed(MIXED, "quantized_layers", {"a": {}}), "quantized_layers"),
        (changed(MIXED, "quantized_layers", "layers.0.mlp.up_proj", "group_size", 32), "group_size"),
        ([], "quantization_config"),
        ("fp4", "quantization_config"),
    ],
)
def test_malformed_configs_are_refused_with_the_key(block: Any, key: str) -> None:
    for config in ({"quantization_config": block}, {"text_config": {"quantization_config": block}}):
        _, findings = read_scheme(config, {})
        assert {item.code for item in findings} == {"E_QCONFIG"}
        assert findings[0].where.key in (key, f"text_config.{key}")
        assert findings[0].where.file == "config.json"
        assert findings[0].severity == "error"


@pytest.mark.parametrize(
    "block",
    [
        changed(CT, *GROUP, "weights", {"num_bits": 8, "type": "float", "strategy": "channel"}),
        changed(CT, *GROUP, "weights", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}),
        changed(CT, *GROUP, "input_activations", {"num_bits": 8, "type": "float"}),
        changed(MO, "quant_algo", "FP8"),
        changed(MO, "quant_algo", "NVFP4_AWQ"),
        changed(MIXED, "quantized_layers", {"a": {"quant_algo": "FP8"}}),
        {"quant_method": "awq", "bits": 4},
    ],
)
def test_other_quantizations_are_named_not_called_malformed(block: dict[str, Any]) -> None:
    _, findings = read_scheme({"quantization_config": block}, {})
    assert {item.code for item in findings} == {"E_UNSUPPORTED_QUANT"}


def test_compressed_tensors_is_read() -> None:
    scheme, findings = read_scheme({"quantization_config": CT}, {})
    assert findings == ()
    assert scheme is not None
    assert (scheme.dialect, scheme.algorithms, scheme.activations) == ("compressed-tensors", ("W4A16_NVFP4",), False)
    assert (scheme.targets, scheme.ignore, scheme.kv_cache) == (("Linear",), ("lm_head",), None)


def test_compressed_tensors_with_activations_and_kv_cache() -> None:
    block = changed(CT, *GROUP, "input_activations", {**WEIGHTS, "dynamic": "local"})
    block["kv_cache_scheme"] = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    scheme, findings = read_scheme({"quantization_config": block}, {})
    assert findings == ()
    assert scheme is not None
    assert (scheme.algorithms, scheme.activations, scheme.kv_cache) == (("NVFP4",), True, "FP8")


def test_look_arounds_make_a_pattern_unread_not_fatal() -> None:
    scheme, findings = read_scheme({"quantization_config": changed(CT, "ignore", ["re:(?!mlp).*", "lm_head"])}, {})
    assert findings == ()
    assert scheme is not None
    assert scheme.unread == ("re:(?!mlp).*",)


def test_modelopt_is_read_from_either_file() -> None:
    nested = {
        "producer": {"name": "modelopt", "version": "0.47.0"},
        "quantization": {"quant_algo": "W4A16_NVFP4", "group_size": 16, "exclude_modules": ["lm_head"],
                         "kv_cache_quant_algo": "FP8"},
    }  # fmt: skip
    scheme, findings = read_scheme({}, nested)
    assert findings == ()
    assert scheme is not None
    assert (scheme.dialect, scheme.ignore, scheme.kv_cache) == ("modelopt", ("lm_head",), "FP8")
    assert scheme.place == "hf_quant_config.json"


def test_nvfp4_without_input_activations_means_weights_only() -> None:
    groups = {"group_0": {"weights": {"num_bits": 4, "group_size": 16}, "targets": ["Linear"]}}
    block = {**MO, "quant_algo": "NVFP4"}
    assert _algorithms(block) == ("NVFP4",)
    assert _algorithms({**block, "config_groups": groups}) == ("W4A16_NVFP4",)
    groups["group_0"]["input_activations"] = {"num_bits": 4}
    assert _algorithms({**block, "config_groups": groups}) == ("NVFP4",)


def _algorithms(block: dict[str, Any]) -> tuple[str, ...]:
    scheme, findings = read_scheme({"quantization_config": block}, {})
    assert findings == ()
    assert scheme is not None
    return scheme.algorithms


def test_mixed_precision_is_read() -> None:
    scheme, findings = read_scheme({"quantization_config": MIXED}, {})
    assert findings == ()
    assert scheme is not None
    assert (scheme.dialect, dict(scheme.layers)) == ("modelopt-mixed", {"layers.0.mlp.up_proj": "W4A16_NVFP4"})


def test_two_blocks_with_other_targets_disagree() -> None:
    other = changed(CT, *GROUP, "targets", ["re:.*mlp.*"])
    _, findings = read_scheme({"quantization_config": CT, "text_config": {"quantization_config": other}}, {})
    assert [item.code for item in findings] == ["W_QCONFIG_MISMATCH"]
    assert read_scheme({"quantization_config": CT, "text_config": {"quantization_config": CT}}, {})[1] == ()


def test_two_files_that_disagree_are_reported_and_config_json_is_believed() -> None:
    other = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "W4A16_NVFP4", "exclude_modules": ["x"]}}
    scheme, findings = read_scheme({"quantization_config": MO}, other)
    assert [(item.code, item.severity, item.where.file) for item in findings] == [
        ("W_QCONFIG_MISMATCH", "warning", "hf_quant_config.json")
    ]
    assert scheme is not None
    assert scheme.ignore == ("lm_head",)
    agreeing = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "W4A16_NVFP4", "exclude_modules": ["lm_head"]},
    }
    assert read_scheme({"quantization_config": MO}, agreeing)[1] == ()
    assert read_scheme({"quantization_config": MO}, other, "error")[1][0].code == "E_QCONFIG_MISMATCH"


def test_nothing_stated_is_nothing_found() -> None:
    assert read_scheme({"hidden_size": 4}, {}) == (None, ())
    assert read_scheme({"quantization_config": None}, {}) == (None, ())
    none = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": None}}
    assert read_scheme({}, none) == (None, ())


def test_stripping_leaves_no_block_at_any_depth() -> None:
    config: dict[str, Any] = {
        "a": 1,
        "quantization_config": CT,
        "compression_config": CT,
        "text_config": {"b": 2, "quantization_config": MO, "thinker_config": {"quantization_config": MO, "c": 3}},
        "transformer_layer_config": {"quantization_config": MO},
    }
    assert strip_quantization(config) == {
        "a": 1,
        "text_config": {"b": 2, "thinker_config": {"c": 3}},
        "transformer_layer_config": {},
    }
    assert with_quantization(config, MO)["quantization_config"] == MO
    assert "quantization_config" not in with_quantization(config, MO)["text_config"]
    assert "quantization_config" in config["text_config"]  # the source config is not changed


def test_a_thousand_plain_names_are_no_pattern_and_have_no_limit() -> None:
    names = [f"model.layers.{i}.self_attn.{leaf}_proj" for i in range(250) for leaf in "qkvo"]
    block = {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "group_size": 16, "exclude_modules": names}
    scheme, faults = read_scheme({"quantization_config": block}, {})
    assert not faults
    assert scheme is not None
    assert (scheme.ignore, scheme.unread) == (tuple(names), ())
