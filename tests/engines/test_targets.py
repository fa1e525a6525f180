"""Our tables of targets against what vLLM 0.33.0's own loader did with tiny Qwen3, Llama and Qwen3-MoE models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from convertkit.engines.model import Load
from convertkit.engines.rules import parse_engine
from convertkit.engines.source import Source
from convertkit.engines.targets import target_in
from tests.engines.cases import slug
from tests.engines.target_cases import build_target, specs_of, target_cases

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "vllm-0.33.0-targets.json").read_text())
CASES = dict(target_cases())
RUN = [name for name, case in CASES.items() if case.run]


def loaded(name: str) -> Load:
    made = build_target(CASES[name])
    return target_in(parse_engine("vllm"), Source(specs_of(made), made.config, {}), "causal-lm", 1)


def unfilled(run: dict[str, Any]) -> list[str]:
    """Parameters that the loader left open, without those that have defaults."""
    open_ones = [*run["unfilled"], *run["partly filled"]]
    return [name for name in open_ones if ".attn." not in name and not name.endswith("input_scale")]


def test_every_case_was_run() -> None:
    assert {slug(name) for name in RUN} == set(GOLDEN["cases"])


@pytest.mark.parametrize("name", RUN)
def test_agrees_with_the_loader(name: str) -> None:
    load, run = loaded(name), GOLDEN["cases"][slug(name)]
    if not run["loads"]:
        assert load.status == "refused"
        return
    dropped = any(stored.endswith(".bias") for stored in run["unused"])
    cut = name in ("llama up too tall", "qwen3 o_proj too wide")  # nothing of a cut tensor shows in the loader
    assert load.status == ("wrong" if unfilled(run) or dropped or cut else "loads")


@pytest.mark.parametrize("name", [name for name in RUN if name.endswith(", whole")])
def test_everything_stored_is_used(name: str) -> None:
    assert (unfilled(GOLDEN["cases"][slug(name)]), GOLDEN["cases"][slug(name)]["unused"]) == ([], [])
    load = loaded(name)
    assert {item.outcome for item in load.parameters} == {"filled"}


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("hybrid whole", "loads"),
        ("hybrid fused experts", "loads"),
        ("hybrid with mtp", "loads"),
        ("hybrid mtp advertised", "loads"),
        ("hybrid nested vision", "refused"),
        ("hybrid stripped", "refused"),
        ("hybrid without prefix", "refused"),
        ("hybrid lost expert", "wrong"),
        ("hybrid no conv", "wrong"),
    ],
)
def test_hybrid_targets_by_the_tables(name: str, status: str) -> None:
    load = loaded(name)
    assert load.status == status
    assert load.facts == {"run": False}


def test_other_engines_and_architectures_are_unknown() -> None:
    made = build_target(CASES["qwen3, whole"])
    source = Source(specs_of(made), {**made.config, "architectures": ["GrokForCausalLM"]}, {})
    assert target_in(parse_engine("vllm"), source, "causal-lm", 1).status == "unknown"
    assert target_in(parse_engine("sglang"), source, "causal-lm", 1).status == "unknown"
    assert target_in(parse_engine("vllm@0.32"), source, "causal-lm", 1).status == "unknown"
