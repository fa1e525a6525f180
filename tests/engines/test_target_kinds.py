"""Values of the wrong kind in a target's config: our models of engines against their own loaders."""

from __future__ import annotations

import json
from typing import Any

import pytest

from convertkit.engines.model import Load
from convertkit.engines.rules import parse_engine
from convertkit.engines.source import Source
from convertkit.engines.targets import target_in
from tests.engines.drafters import Draft
from tests.engines.kind_cases import KindCase
from tests.engines.loads import agrees, read_golden
from tests.engines.target_cases import model, specs_of
from tests.engines.target_kind_cases import KINDS, build_target, target_kind_cases

VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23", "transformers": "5.19.0"}
CASES = list(target_kind_cases())
GOLDEN = {engine: read_golden(f"{engine}-{version}-target-kinds")["cases"] for engine, version in VERSIONS.items()}
UNKNOWN = {
    "vllm": ("architectures = []", 'architectures = ["x"]', "deepstack_visual_indexes",
             "shared_expert_intermediate_size = 0"),
    "sglang": (),
    "transformers": (),
}  # fmt: skip
"""Ends of the cases that the tables leave open: parts and architectures that they do not describe."""


def load_of(engine: str, made: Draft) -> Load:
    return target_in(parse_engine(engine), Source(specs_of(made), made.config, {}), 1)


def run_of(engine: str, case: KindCase) -> Any:
    return GOLDEN[engine][case.kind][case.path][json.dumps(case.value)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", VERSIONS)
def test_agrees_with_the_loader(engine: str, kind: str) -> None:
    whole = load_of(engine, model(kind))
    wrong: list[tuple[object, ...]] = []
    for case in CASES:
        if case.kind != kind:
            continue
        load, run = load_of(engine, build_target(case)), run_of(engine, case)
        if load.unknown:
            if not any(word in case.name for word in UNKNOWN[engine]):
                wrong.append((case.name, load.unknown, run))
        elif not agrees(load, whole, run):
            wrong.append((case.name, load.status, load.refusals[:1], run))
    assert not wrong, (len(wrong), wrong[:12])


def test_every_case_was_run() -> None:
    assert len(CASES) == len({case.name for case in CASES}) > 900
    for golden in GOLDEN.values():
        assert sum(len(values) for kind in golden.values() for values in kind.values()) == len(CASES)
