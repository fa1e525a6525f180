"""Entries of quantization configs follow renamed modules and mean the same ones afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from convertkit.dialects.renaming import RenamedConfig, rename_config
from convertkit.errors import ConvertError
from convertkit.layouts.renames import apply_rules, parse_rule

MODULES = (
    *(f"model.language_model.visual.blocks.{i}.attn.qkv" for i in range(3)),
    *(f"model.language_model.layers.{i}.mlp.{leaf}" for i in range(2) for leaf in ("gate", "gate_proj")),
    "lm_head",
)
NESTED = "model.language_model.visual.{rest}=model.visual.{rest}"


def changed(rules: Sequence[str], block: dict[str, Any], quant: dict[str, Any] | None = None) -> RenamedConfig:
    renaming = apply_rules([parse_rule(rule) for rule in rules], [f"{module}.weight" for module in MODULES])
    return rename_config({"model_type": "x", "quantization_config": block}, quant or {}, renaming, MODULES)


@pytest.mark.parametrize(
    ("entry", "wanted"),
    [
        ("model.language_model.visual.blocks.0.attn.qkv", ["model.visual.blocks.0.attn.qkv"]),
        ("re:model.language_model.visual.*", ["re:model.visual.*"]),
        (r"re:^model\.language_model\.visual\.blocks\.[01]\.attn", [r"re:^model\.visual\.blocks\.[01]\.attn"]),
        ("re:.*visual.*", ["re:.*visual.*"]),
        ("re:.*language_model.v.*", [r"re:model\.visual\.blocks\.\d+\.attn\.qkv$"]),
        ("re:.*language_model.*blocks.0.*", ["model.visual.blocks.0.attn.qkv"]),
        ("re:.*mlp.gate$", ["re:.*mlp.gate$"]),
        ("lm_head", ["lm_head"]),
        ("Linear", ["Linear"]),
    ],
)
def test_an_entry_of_compressed_tensors(entry: str, wanted: list[str]) -> None:
    found = changed([NESTED], {"quant_method": "compressed-tensors", "ignore": [entry]})
    assert found.config["quantization_config"]["ignore"] == wanted
    assert not found.findings


@pytest.mark.parametrize(
    ("entry", "wanted"),
    [
        ("model.language_model.layers.0*", "model.layers.0*"),
        ("*language_model.layers.1*", "*layers.1*"),
        ("language_model.layers.0.mlp.gate", "layers.0.mlp.gate"),
        ("*lm_head*", "*lm_head*"),
    ],
)
def test_an_entry_of_modelopt(entry: str, wanted: str) -> None:
    rules = ["model.language_model.{rest}=model.{rest}"]
    document = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "exclude_modules": [entry]}}
    found = changed(rules, {"quant_method": "modelopt", "ignore": [entry]}, document)
    assert found.config["quantization_config"]["ignore"][0].endswith(wanted.removeprefix("*"))
    assert found.quant_config["quantization"]["exclude_modules"] == found.config["quantization_config"]["ignore"]
    assert not found.findings


def test_layers_targets_and_groups_follow_and_the_rest_stays() -> None:
    block = {
        "quant_method": "modelopt",
        "quantized_layers": {"model.language_model.layers.0.mlp.gate_proj": {"quant_algo": "NVFP4"}},
        "config_groups": {
            "g": {"targets": ["model.language_model.layers.0.mlp.gate_proj"], "weights": {"num_bits": 4}}
        },
        "other": ["model.language_model.layers.0.mlp.gate_proj"],
    }
    found = changed(["model.language_model.{rest}=model.{rest}"], block).config["quantization_config"]
    assert found["quantized_layers"] == {"model.layers.0.mlp.gate_proj": {"quant_algo": "NVFP4"}}
    assert found["config_groups"]["g"] == {"targets": ["model.layers.0.mlp.gate_proj"], "weights": {"num_bits": 4}}
    assert found["other"] == block["other"]


@pytest.mark.parametrize("entry", [r"re:model\.(?=language_model)\w+\.visual.*", "re:(?i).*VISUAL.*"])
def test_an_expression_that_is_not_read_is_told_and_kept(entry: str) -> None:
    found = changed([NESTED], {"quant_method": "compressed-tensors", "ignore": [entry]})
    assert found.config["quantization_config"]["ignore"] == [entry]
    assert [item.code for item in found.findings] == ["W_ENTRY_UNREAD"]


def test_two_layers_of_one_name_that_differ_are_a_collision() -> None:
    old, new = "model.language_model.layers.0.mlp.gate", "model.layers.0.mlp.gate"
    block = {"quant_method": "modelopt", "quantized_layers": {old: {"quant_algo": "FP8"}, new: {"quant_algo": "FP8"}}}
    rules = ["model.language_model.{rest}=model.{rest}"]
    found = changed(rules, block).config["quantization_config"]["quantized_layers"]
    assert found == {new: {"quant_algo": "FP8"}}
    block["quantized_layers"][new] = {"quant_algo": "NVFP4"}  # type: ignore[index]
    with pytest.raises(ConvertError, match="E_NAME_COLLISION"):
        changed(rules, block)


def test_what_means_nothing_is_told_and_kept() -> None:
    found = changed([NESTED], {"quant_method": "compressed-tensors", "ignore": ["re:visual.*", "model.nowhere"]})
    assert found.config["quantization_config"]["ignore"] == ["re:visual.*", "model.nowhere"]
    assert [item.data["entry"] for item in found.findings] == ["re:visual.*", "model.nowhere"]


def test_an_entry_of_no_stored_module_follows_the_first_rule() -> None:
    """Its name is looked for as it stands first, with or without 'model.' only if no rule means it so."""
    found = changed(
        [NESTED],
        {"quant_method": "modelopt", "ignore": ["model.language_model.visual.merger", "language_model.visual.pos"]},
    )
    assert found.config["quantization_config"]["ignore"] == ["model.visual.merger", "visual.pos"]


def test_an_expression_that_could_hang_a_reader_is_left_alone() -> None:
    found = changed([NESTED], {"quant_method": "compressed-tensors", "ignore": ["re:(a+)+$"]})
    assert found.config["quantization_config"]["ignore"] == ["re:(a+)+$"]


def test_expert_numbers_move_inside_names() -> None:
    modules = [f"model.layers.0.mlp.experts.gate_proj.{e}" for e in range(2)]
    rule = "{rest}.experts.gate_proj.{e}.{x}={rest}.experts.{e}.gate_proj.{x}"
    renaming = apply_rules([parse_rule(rule)], [f"{module}.weight" for module in modules])
    block = {"quant_method": "compressed-tensors", "ignore": [modules[1], r"re:.*experts.gate_proj.\d+$"]}
    found = rename_config({"quantization_config": block}, {}, renaming, modules)
    assert found.config["quantization_config"]["ignore"] == [
        "model.layers.0.mlp.experts.1.gate_proj", r"re:model\.layers\.\d+\.mlp\.experts\.\d+\.gate_proj$",
    ]  # fmt: skip


@pytest.mark.parametrize("rule", ["model.{rest}=model.inner.{rest}", "{rest}=inner.{rest}"])
def test_a_class_among_the_targets_stays_what_it_is(rule: str) -> None:
    block = {"quant_method": "modelopt", "config_groups": {"g": {"targets": ["Linear"]}}, "ignore": ["lm_head"]}
    found = changed([rule], block)
    assert found.config["quantization_config"]["config_groups"]["g"]["targets"] == ["Linear"]
    assert not found.findings
