"""Our tables of targets against what vLLM 0.33.0's own loader did with tiny Qwen3, Llama, MoE and hybrid models."""

from __future__ import annotations

from functools import cache

import pytest

from convertkit.engines.model import Load
from convertkit.engines.registry import RULES
from convertkit.engines.rules import parse_engine
from convertkit.engines.source import Source
from convertkit.engines.targets import target_in
from tests.engines.cases import slug
from tests.engines.loads import CACHE, by_outcome, read_golden, target_source
from tests.engines.target_cases import build_target, specs_of, target_cases

GOLDEN = read_golden("vllm-0.33.0-targets")
CASES = dict(target_cases())
WHOLE = [name for name in CASES if name.endswith("whole")]


@cache
def loaded(name: str, ranks: int = 1) -> Load:
    return target_in(parse_engine("vllm"), target_source(build_target(CASES[name])), ranks)


def unread(load: Load) -> set[str]:
    return {item.parameter.name for item in load.parameters if item.parameter.unread}


CUT = frozenset(
    {"llama up too tall", "qwen3 o_proj too wide", "hybrid z too wide", "hybrid qkv too tall", "hybrid conv too tall",
     "hybrid decay too long", "hybrid out too wide", "llama ct, scale too tall", "llama ct, codes whole width"}
)  # fmt: skip
"""Nothing of a tensor that is cut to its place shows in the loader."""


def test_every_case_was_run() -> None:
    assert {slug(name) for name in CASES} == set(GOLDEN["cases"])
    assert GOLDEN["versions"]["vllm"].startswith("0.33.0")


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_loader(name: str) -> None:
    load, run = loaded(name), GOLDEN["cases"][slug(name)]
    if not run["loads"]:
        assert load.status == "refused"
        return
    for outcome in ("unfilled", "partly filled"):
        theirs = {item for item in run[outcome] if CACHE.search(item) is None}
        assert by_outcome(load, outcome) == theirs - unread(load)
    lost = [stored for stored in run["unused"] if not stored.startswith("mtp.") and "rotary" not in stored]
    holes = by_outcome(load, "unfilled", "partly filled")
    assert load.status == ("wrong" if holes or lost or name in CUT else "loads")


@pytest.mark.parametrize("name", WHOLE)
def test_parameters_have_the_shapes_of_the_built_model(name: str) -> None:
    theirs = {key: shape for key, shape in GOLDEN["cases"][slug(name)]["shapes"].items() if CACHE.search(key) is None}
    assert {item.parameter.name: list(item.parameter.shape) for item in loaded(name).parameters} == theirs


@pytest.mark.parametrize("name", WHOLE)
def test_whole_targets_load(name: str) -> None:
    load = loaded(name)
    assert (load.status, load.wrongs, load.refusals) == ("loads", (), ())
    assert {item.outcome for item in load.parameters} <= {"filled", "defaulted"}
    assert GOLDEN["cases"][slug(name)]["unused"] == []


@pytest.mark.parametrize("name", WHOLE)
def test_every_stored_tensor_is_told(name: str) -> None:
    from convertkit.layouts.rules import families

    load = loaded(name)
    names = {item.parameter.name for item in load.parameters}
    for template in families(spec.name for spec in specs_of(build_target(CASES[name]))):
        into = load.fates[template].into
        assert into is not None
        assert any(into.replace("{i}", str(number)) in names for number in range(4))


def test_every_rule_has_a_source() -> None:
    loads = [loaded(name) for name in CASES]
    named = {item.rule for load in loads for item in load.refusals}
    named |= {item.rule for load in loads for item in load.wrongs}
    named |= {item.rule for load in loads for item in load.notes}
    named |= {item.parameter.rule for load in loads for item in load.parameters}
    assert named <= set(RULES)


def test_other_architectures_and_versions_are_unknown() -> None:
    made = build_target(CASES["qwen3, whole"])
    source = Source(specs_of(made), {**made.config, "architectures": ["GrokForCausalLM"]}, {})
    assert target_in(parse_engine("vllm"), source, 1).status == "unknown"
    assert target_in(parse_engine("vllm@0.32"), source, 1).status == "unknown"
