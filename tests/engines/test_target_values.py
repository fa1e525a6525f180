"""Values in a target's config that some model might have: our models of engines against their own loaders."""

from __future__ import annotations

import pytest

from tests.engines.hybrid_cases import TEXT_ONLY
from tests.engines.loads import agrees, by_outcome, read_golden
from tests.engines.target_cases import model
from tests.engines.target_value_cases import value_cases
from tests.engines.test_target_kinds import load_of

VERSIONS = {"sglang": "0.5.23", "transformers": "5.19.0"}
GOLDEN = {engine: read_golden(f"{engine}-{version}-target-values")["cases"] for engine, version in VERSIONS.items()}
CASES = list(value_cases())
UNKNOWN = {
    "sglang": ("architectures = ['Foo']", "deepseek_yarn", "model_type = qwen3_5_text"),
    "transformers": (),
}
"""What the tables leave open: other architectures, a rope that is built on the GPU, layers of another class."""


@pytest.mark.parametrize("engine", VERSIONS)
def test_agrees_with_the_loader(engine: str) -> None:
    wholes = {kind: load_of(engine, model(kind)) for kind in {case.kind for case in CASES}}
    wrong: list[tuple[object, ...]] = []
    for case in CASES:
        load, run = load_of(engine, case.build()), GOLDEN[engine][case.name]
        if load.unknown:
            if not any(word in case.name for word in UNKNOWN[engine]):
                wrong.append((case.name, load.unknown, run))
        elif not agrees(load, wholes[case.kind], run):
            wrong.append((case.name, load.status, load.refusals[:1], run))
        elif isinstance(run, list) and run:
            assert by_outcome(load, "unfilled", "partly filled") == set(run)
        elif isinstance(run, str) and run != "loads":
            assert load.refusals[0].stage == run
    assert not wrong, (len(wrong), wrong[:12])


def test_every_case_was_run() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names)) > 150
    assert all(golden.keys() == set(names) for golden in GOLDEN.values())


def test_a_config_of_another_class_than_the_architecture_is_left_open() -> None:
    made = model(TEXT_ONLY)
    assert load_of("sglang", made).status == "loads"
    made.config["model_type"] = "qwen3_5_text"  # SGLang then builds no experts, and stops at their weights
    assert load_of("sglang", made).status == "unknown"
