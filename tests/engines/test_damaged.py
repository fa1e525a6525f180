"""Our model of vLLM 0.33 against what its own loader did with a thousand damaged drafters and some hundred targets."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from convertkit.engines.config_kinds import wrong_kinds
from convertkit.engines.model import Load
from convertkit.engines.rules import parse_engine
from convertkit.engines.targets import target_in
from convertkit.engines.vllm_load import load_drafter
from convertkit.engines.vllm_params import Target
from tests.engines.damaged import DRAFTERS, GOLDEN, TARGETS, Damage, Make, built, every
from tests.engines.drafters import H, N, V
from tests.engines.loads import CACHE, source_of

RUNS: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]


@cache
def makers() -> dict[str, tuple[Make, Damage]]:
    return {name: (make, damage) for bases in (DRAFTERS, TARGETS) for name, make, damage in every(bases)}


def loaded(name: str) -> Load:
    source = source_of(built(*makers()[name]))
    if name.split()[0] in TARGETS:
        return target_in(parse_engine("vllm"), source, 1)
    if next(wrong_kinds(source.config), None):
        return Load(unknown="a value of the wrong kind")
    return load_drafter(source, Target(N, V, H))


def by_outcome(load: Load, *outcomes: str) -> set[str]:
    return {item.parameter.name for item in load.parameters if item.outcome in outcomes}


@pytest.mark.parametrize("name", RUNS)
def test_agrees_with_the_loader(name: str) -> None:
    load, run = loaded(name), RUNS[name]
    if load.unknown:
        return  # counted below
    if isinstance(run, str):
        assert load.status == "refused"
        return
    assert load.status in ("loads", "wrong")
    ignored = {item.parameter.name for item in load.parameters if item.parameter.unread}
    ignored |= by_outcome(load, "defaulted", "borrowed")
    for outcome in ("unfilled", "partly filled"):
        theirs = {item for item in run.get(outcome, ()) if CACHE.search(item) is None}
        assert by_outcome(load, outcome) - ignored == theirs - ignored
    assert by_outcome(load, "borrowed") == set(run.get("lent", ()))


def test_what_is_unknown_is_little_and_refused() -> None:
    unknown = [name for name in RUNS if loaded(name).unknown]
    assert len(unknown) < len(RUNS) / 20
    assert all(isinstance(RUNS[name], str) for name in unknown if not name.endswith(" architectures"))
