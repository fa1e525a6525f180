"""Values of the wrong kind in a drafter's config: our models of vLLM and SGLang against their own loaders."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from convertkit.engines.model import Load
from convertkit.engines.registry import drafter_in
from convertkit.engines.rules import parse_engine
from convertkit.engines.vllm_params import Target
from tests.engines.drafters import H, N, V
from tests.engines.kind_cases import FLAT, KINDS, PACKS, KindCase, build_whole, kind_cases
from tests.engines.loads import by_outcome, read_golden, source_of

VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23"}
CASES = list(kind_cases())
GOLDEN = {engine: read_golden(f"{engine}-{version}-kinds")["cases"] for engine, version in VERSIONS.items()}


def load_of(engine: str, made: Any) -> Load:
    return drafter_in(parse_engine(engine), source_of(made, engine), Target(N, V, H), 1, "BF16")


@cache
def holes_of_whole(engine: str, kind: str) -> set[str]:
    return by_outcome(load_of(engine, build_whole(kind)), "unfilled", "partly filled")


def run_of(engine: str, case: KindCase) -> Any:
    """What the loader did: the stage at which it stopped, ``loads``, or the parameters that it left open besides those
    of a whole drafter."""
    return GOLDEN[engine][case.kind][case.path][json.dumps(case.value)]


@pytest.mark.parametrize("kind", [*KINDS, *PACKS])
@pytest.mark.parametrize("engine", VERSIONS)
def test_agrees_with_the_loader(engine: str, kind: str) -> None:
    wrong: list[tuple[object, ...]] = []
    for case in CASES:
        if case.kind != kind or kind not in GOLDEN[engine]:
            continue
        load, run = load_of(engine, case.build()), run_of(engine, case)
        refused = isinstance(run, str) and run != "loads"
        if load.unknown or (load.status == "refused") != refused:
            wrong.append((case.name, load.status, load.unknown or load.refusals[:1], run))
        elif not refused and load.parameters:
            more = by_outcome(load, "unfilled", "partly filled") - holes_of_whole(engine, kind)
            if more != set(run if isinstance(run, list) else ()):
                wrong.append((case.name, load.status, sorted(more), run))
    assert not wrong, (len(wrong), wrong[:12])


def test_every_case_was_run() -> None:
    assert len(CASES) == len({case.name for case in CASES}) > 2900
    for engine, golden in GOLDEN.items():
        assert set(golden) == {*(FLAT if engine == "sglang" else KINDS), *PACKS}
        ran = sum(len(values) for kind in golden.values() for values in kind.values())
        assert ran == sum(case.kind in golden for case in CASES)


@pytest.mark.parametrize("engine", VERSIONS)
def test_what_loads_all_the_same_is_wrong_and_said(engine: str) -> None:
    case = KindCase("dflash", ("num_key_value_heads",), -1)
    load = load_of(engine, case.build())
    assert (load.status, [item.code for item in load.wrongs]) == ("wrong", ["E_CONFIG"])
    assert load.wrongs[0].key == "num_key_value_heads"


@pytest.mark.parametrize("engine", VERSIONS)
@pytest.mark.parametrize("size", [1 << 41, 10**30])
def test_a_size_of_no_model_is_unknown(engine: str, size: int) -> None:
    load = load_of(engine, KindCase("dflash", ("hidden_size",), size).build())
    assert (load.status, "'hidden_size'" in load.unknown) == ("unknown", True)
