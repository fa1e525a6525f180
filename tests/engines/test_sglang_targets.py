"""Our model of SGLang 0.5.23 against what SGLang's own loader did with every target (``golden/``)."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.engines.model import Load
from convertkit.engines.registry import RULES
from convertkit.engines.sglang_quant import read_quantization
from convertkit.engines.sglang_target_build import build, read_sizes
from convertkit.engines.sglang_target_tables import TARGETS
from convertkit.engines.sglang_targets import load_target
from convertkit.engines.source import Source
from tests.engines.cases import slug
from tests.engines.drafters import Draft
from tests.engines.loads import DTYPES, by_outcome, check_holes, check_start, named_rules, read_golden, target_source
from tests.engines.sglang_target_cases import sglang_targets
from tests.engines.target_cases import specs_of

GOLDEN = read_golden("sglang-0.5.23-targets")
EVERY: dict[str, Draft] = dict(sglang_targets())
CASES = [name for name in EVERY if slug(name) in GOLDEN["cases"]]
WHOLE = [name for name in CASES if slug(name).endswith("whole") and GOLDEN["cases"][slug(name)]["loads"]]

UNKNOWN = frozenset({"moe no width", "qwen3 mixed, empty", "qwen3 mixed, empty, with cache key"})
"""Outside of what the tables describe: the verdict is unknown, whatever the loader does."""

DERIVED = "_blockscale_swizzled"
"""Parameters that are computed from others after loading."""


@cache
def loaded(name: str) -> Load:
    return load_target(target_source(EVERY[name]), 1)


def golden(name: str) -> dict[str, Any]:
    found: dict[str, Any] = GOLDEN["cases"][slug(name)]
    return found


def test_the_golden_file_covers_the_cases() -> None:
    assert GOLDEN["versions"]["sglang"] == "0.5.23"
    assert len(CASES) > 250
    assert {EVERY[name].config["architectures"][0] for name in WHOLE} >= {
        "LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM",
    }  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_loader(name: str) -> None:
    load, run = loaded(name), golden(name)
    if load.status == "unknown":
        assert name in UNKNOWN
        return
    if not check_start(load, run):
        return
    holes = check_holes(load, run, by_outcome(load, "defaulted"), DERIVED)
    assert load.status == "wrong" or not holes


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("ranks", [1, 2])
def test_parameters_are_those_of_the_built_model(name: str, ranks: int) -> None:
    made = EVERY[name]
    table = TARGETS[made.config["architectures"][0]]
    quant = read_quantization(made.config, made.quant_config or {}, table.packed)
    built = build(table, read_sizes(made.config), quant, ranks).parameters
    rows = [row for variants in built.values() for row in variants]
    ours = {
        row.at(row.parameter.name, layer).name: [list(row.parameter.shape), DTYPES[row.parameter.dtype]]
        for row in rows
        for layer in row.layers
    }
    for run in [golden(name)] if ranks == 1 else golden(name)["of two ranks"]:
        assert ours == {name: shape for name, shape in run["shapes"].items() if not name.endswith(DERIVED)}


def test_every_rule_has_a_source() -> None:
    loads = [loaded(name) for name in CASES]
    assert named_rules(loads) | {"sglang.target-missing"} <= set(RULES)


def test_other_architectures_are_unknown() -> None:
    made = EVERY["qwen3, whole"]
    other = Source(specs_of(made), {**made.config, "architectures": ["GrokForCausalLM"]}, {})
    assert load_target(other, 1).status == "unknown"


def test_experts_beyond_the_config_do_not_hide_a_name_that_stops_the_loader() -> None:
    """The first of the lost names is of an expert that is not counted, and dropped; the second is looked up."""
    made = EVERY["hybrid whole"]
    at = "model.language_model.layers.{}.mlp.experts.{}.gate_proj.weight_scale_2"
    more = [TensorSpec(at.format(*place), "F32", ()) for place in ((0, 4), (1, 0))]
    load = load_target(Source((*specs_of(made), *more), made.config, {}), 1)
    assert [item.message for item in load.refusals] == ["KeyError: 'model.layers.1.mlp.experts.w13_weight_scale_2'"]
    dropped = load_target(Source((*specs_of(made), more[0]), made.config, {}), 1)
    assert (dropped.refusals, [item.code for item in dropped.wrongs]) == ((), ["E_LOAD_DROPPED"])
