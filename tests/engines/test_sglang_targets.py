"""Our model of SGLang 0.5.23 against what SGLang's own loader did with every target (``golden/``)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from convertkit.engines.model import Load
from convertkit.engines.registry import RULES
from convertkit.engines.sglang_quant import read_quantization
from convertkit.engines.sglang_target_build import build, read_sizes
from convertkit.engines.sglang_target_tables import TARGETS
from convertkit.engines.sglang_targets import load_target
from convertkit.engines.source import Source
from tests.engines.cases import slug
from tests.engines.drafters import Draft
from tests.engines.sglang_target_cases import sglang_targets
from tests.engines.target_cases import specs_of

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "sglang-0.5.23-targets.json").read_text())
EVERY: dict[str, Draft] = dict(sglang_targets())
CASES = [name for name in EVERY if slug(name) in GOLDEN["cases"]]
WHOLE = [name for name in CASES if slug(name).endswith("whole") and GOLDEN["cases"][slug(name)]["loads"]]
DTYPES = {"BF16": "bfloat16", "F32": "float32", "U8": "uint8", "F8_E4M3": "float8_e4m3fn"}

UNKNOWN = frozenset({"moe no width", "qwen3 mixed, empty", "qwen3 mixed, empty, with cache key"})
"""Outside of what the tables describe: the verdict is unknown, whatever the loader does."""

DERIVED = "_blockscale_swizzled"
"""Parameters that are computed from others after loading."""


@cache
def loaded(name: str) -> Load:
    made = EVERY[name]
    return load_target(Source(specs_of(made), made.config, made.quant_config or {}), 1)


def golden(name: str) -> dict[str, Any]:
    found: dict[str, Any] = GOLDEN["cases"][slug(name)]
    return found


def by_outcome(load: Load, outcome: str) -> list[str]:
    return sorted(item.parameter.name for item in load.parameters if item.outcome == outcome)


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
    assert (load.status != "refused") == run["loads"], (load.refusals[:1], run.get("error"))
    if not run["loads"]:
        assert load.refusals[0].stage == run["stage"]
        return
    unread = set(by_outcome(load, "defaulted"))
    unfilled, partly = by_outcome(load, "unfilled"), by_outcome(load, "partly filled")
    assert unfilled == sorted(left for left in run["unfilled"] if left not in unread and not left.endswith(DERIVED))
    assert partly == sorted(set(run["partly filled"]) - unread)
    assert sorted(stored for stored, fate in load.fates.items() if fate.into is None) == run["unused"]
    if unfilled or partly:
        assert load.status == "wrong"


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
    named = {item.rule for load in loads for item in load.refusals} | {"sglang.target-missing"}
    named |= {item.rule for load in loads for item in load.wrongs} | {
        item.rule for load in loads for item in load.notes
    }
    assert named <= set(RULES)


def test_other_architectures_are_unknown() -> None:
    made = EVERY["qwen3, whole"]
    other = Source(specs_of(made), {**made.config, "architectures": ["GrokForCausalLM"]}, {})
    assert load_target(other, 1).status == "unknown"
