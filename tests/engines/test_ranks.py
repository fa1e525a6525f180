"""Tensor parallelism: what ``--tp N`` says against what vLLM 0.33.0's own loader did as rank r of N."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from convertkit.engines.model import Load
from tests.engines import rank_cases, test_targets, test_vllm_load
from tests.engines.cases import slug
from tests.engines.loads import CACHE, by_outcome
from tests.engines.test_targets import unread

GOLDEN = Path(__file__).parent / "golden"
RUNS: Mapping[str, dict[str, Any]] = {
    kind: json.loads((GOLDEN / f"vllm-0.33.0-{kind}.json").read_text())["cases"] for kind in ("ranks", "target-ranks")
}
TABLES = {"ranks": rank_cases.DRAFTERS, "target-ranks": rank_cases.TARGETS}


def every() -> Iterator[tuple[str, str, int]]:
    for kind, table in TABLES.items():
        for name, ranks in table.items():
            for size in sorted({size for _, size in ranks}):
                yield kind, name, size


def loaded(kind: str, name: str, size: int) -> Load:
    return test_vllm_load.loaded(name, size) if kind == "ranks" else test_targets.loaded(name, size)


def runs(kind: str, name: str, size: int) -> list[dict[str, Any]]:
    """What the loader did on every rank of ``size`` that was run."""
    return [RUNS[kind][f"{slug(name)} {rank} of {many}"] for rank, many in TABLES[kind][name] if many == size]


def test_every_case_was_run() -> None:
    for kind, table in TABLES.items():
        wanted = {f"{slug(name)} {rank} of {size}" for name, ranks in table.items() for rank, size in ranks}
        assert wanted == set(RUNS[kind])


@pytest.mark.parametrize(("kind", "name", "size"), list(every()))
def test_agrees_with_the_loader_on_every_rank(kind: str, name: str, size: int) -> None:
    load, found = loaded(kind, name, size), runs(kind, name, size)
    if not all(run["loads"] for run in found):
        assert load.status == "refused"
        return
    assert load.status in ("loads", "wrong")
    ignored = unread(load) | by_outcome(load, "borrowed")
    for outcome in ("unfilled", "partly filled"):
        theirs = {item for run in found for item in run[outcome] if CACHE.search(item) is None}
        assert by_outcome(load, outcome) - ignored == theirs - ignored


@pytest.mark.parametrize(("kind", "name", "size"), [row for row in every() if row[1].endswith("whole")])
def test_parameters_have_the_shapes_of_a_rank(kind: str, name: str, size: int) -> None:
    last = runs(kind, name, size)[-1]
    if not last["loads"]:
        pytest.skip("refused")
    ours = {
        item.parameter.name: list(item.parameter.shape)
        for item in loaded(kind, name, size).parameters
        if 0 not in item.parameter.shape and CACHE.search(item.parameter.name) is None
    }
    assert ours == {key: shape for key, shape in last["shapes"].items() if CACHE.search(key) is None}


@pytest.mark.parametrize("name", ["ct mlp", "ct, all of eagle3"])
def test_columns_that_no_scale_covers_are_told(name: str) -> None:
    """compressed-tensors loads it without a word; 24 columns a rank have one scale."""
    assert all(run["loads"] for run in runs("ranks", name, 4))
    assert {item.code for item in loaded("ranks", name, 4).wrongs} == {"E_LOAD_CUT"}
    assert loaded("ranks", name, 2).status == "loads"
