"""Our model of transformers 5 against what ``from_pretrained`` did with every case (``golden/transformers-*.json``)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from convertkit.engines.files import stopped_at_files
from convertkit.engines.model import Load
from convertkit.engines.registry import RULES
from convertkit.engines.transformers_drafter import load_drafter
from convertkit.engines.transformers_load import VERSION, load_target
from convertkit.engines.vllm_params import Target
from tests.engines.cases import build, slug
from tests.engines.drafters import H, N, V
from tests.engines.loads import check_start, named_rules, read_golden, source_of, target_source
from tests.engines.sglang_cases import sglang_cases
from tests.engines.sglang_target_cases import sglang_targets

DRAFTERS = read_golden(f"transformers-{VERSION}")
TARGETS = read_golden(f"transformers-{VERSION}-targets")
DRAFTER_CASES = {name: case for name, case in sglang_cases() if slug(name) in DRAFTERS["cases"]}
TARGET_CASES = {name: made for name, made in sglang_targets() if slug(name) in TARGETS["cases"]}

BY_FILE = frozenset({"shards"})
"""``from_pretrained`` takes ``model.safetensors`` where it is there, and never looks at an index beside it."""

_EXPERT = re.compile(r"\.experts\.[0-9]+\.(gate_proj|up_proj|down_proj)\.weight")


@cache
def loaded(name: str) -> Load:
    if name in DRAFTER_CASES:
        source = source_of(build(DRAFTER_CASES[name]), "transformers")
        return stopped_at_files(load_drafter(source, Target(N, V, H)), source)
    return load_target(target_source(TARGET_CASES[name]))


def golden(name: str) -> dict[str, Any]:
    found: dict[str, Any] = (DRAFTERS if name in DRAFTER_CASES else TARGETS)["cases"][slug(name)]
    return found


def merged(names: Iterable[str]) -> list[str]:
    """Names as transformers reports them: experts under those that they would be merged into."""
    short = {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "down_proj": "down_proj"}
    return sorted({_EXPERT.sub(lambda hit: f".experts.{short[hit[1]]}", name) for name in names})


def test_the_golden_files_cover_the_cases() -> None:
    assert DRAFTERS["versions"]["transformers"] == TARGETS["versions"]["transformers"] == VERSION
    assert len(DRAFTER_CASES) > 400
    assert len(TARGET_CASES) > 250


@pytest.mark.parametrize("name", [*DRAFTER_CASES, *TARGET_CASES])
def test_agrees_with_from_pretrained(name: str) -> None:
    load, run = loaded(name), golden(name)
    if load.status == "unknown" or name in BY_FILE:
        assert any(word in load.unknown for word in ("quantization", "compressed")) or name in (
            *BY_FILE,
            "moe no width",
        )
        return
    if not check_start(load, run):
        return
    missing = sorted(item.parameter.name for item in load.parameters if item.outcome == "unfilled")
    assert missing == run["missing"]
    assert merged(stored for stored, fate in load.fates.items() if fate.into is None) == merged(run["unexpected"])
    assert load.facts["class"] == run["class"]
    wrong = bool(missing or run["unexpected"]) or name in DRAFTER_CASES
    assert load.status == ("wrong" if wrong else "loads")


@pytest.mark.parametrize(
    "name", [name for name in TARGET_CASES if slug(name).endswith("whole") and golden(name).get("shapes")]
)
def test_shapes_are_those_of_the_built_model(name: str) -> None:
    load = loaded(name)
    if load.status != "loads":
        return
    shapes = {re.sub(r"\.(layers|blocks)\.[0-9]+\.", r".\1.{i}.", name): shape[0]
              for name, shape in golden(name)["shapes"].items()}  # fmt: skip
    assert {item.parameter.name: list(item.parameter.shape) for item in load.parameters} == shapes


@pytest.mark.parametrize("name", [name for name in TARGET_CASES if loaded(name).unknown])
def test_packed_by_compressed_tensors(name: str) -> None:
    """Without its status nothing packed is filled; packed experts lose their global scales either way."""
    run, codes = golden(name), {item.code for item in loaded(name).wrongs}
    if not run["loads"]:
        return
    if "E_LOAD_DROPPED" in codes:
        assert any(stored.endswith(".weight_global_scale") for stored in run["unexpected"])
    if "E_LOAD_UNFILLED" in codes:
        assert run["missing"] or run["unexpected"]


def test_drafters_are_no_fault_of_their_own() -> None:
    for name, case in DRAFTER_CASES.items():
        load = loaded(name)
        assert all(item.foreign for item in load.refusals), (name, case)
        assert all(item.foreign for item in load.wrongs), (name, case)


def test_every_rule_has_a_source() -> None:
    loads = [loaded(name) for name in (*DRAFTER_CASES, *TARGET_CASES)]
    assert named_rules(loads) <= set(RULES)
