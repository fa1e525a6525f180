"""Values that no model has in a drafter's config: our model of transformers 5.19 against ``from_pretrained``
(``golden/transformers-5.19.0-values.json``)."""

from __future__ import annotations

import pytest

from convertkit.engines.model import Load
from convertkit.engines.registry import RULES, drafter_in
from convertkit.engines.rules import parse_engine
from convertkit.engines.transformers_load import VERSION
from convertkit.engines.vllm_params import Target
from tests.engines.drafters import Draft, H, N, V
from tests.engines.loads import named_rules, read_golden, source_of
from tests.engines.transformers_cases import value_cases

GOLDEN = read_golden(f"transformers-{VERSION}-values")
CASES = dict(value_cases())


def load_of(made: Draft) -> Load:
    return drafter_in(parse_engine("transformers"), source_of(made, "transformers"), Target(N, V, H), 1, "BF16")


def disagreement(load: Load, run: object) -> object:
    """What differs from a run as ``outcome`` tells it; None if nothing does."""
    if load.status == "refused" or isinstance(run, str):
        stage = load.refusals[0].stage if load.refusals else load.status
        return None if stage == run else (stage, load.refusals[:1], run)
    ours = {
        "class": load.facts["class"],
        "missing": sorted(item.parameter.name for item in load.parameters if item.outcome == "unfilled"),
        "unexpected": sorted(name for name, fate in load.fates.items() if fate.into is None),
    }
    return None if ours == run else (ours, run)


def test_every_case_was_run() -> None:
    assert set(GOLDEN["cases"]) == set(CASES)
    assert GOLDEN["versions"]["transformers"] == VERSION
    assert len(CASES) > 2500


@pytest.mark.parametrize("part", range(12))
def test_agrees_with_from_pretrained(part: int) -> None:
    """Of what compressed-tensors packed only refusals are described."""
    wrong: list[tuple[object, ...]] = []
    passed = 0
    for name in [name for number, name in enumerate(CASES) if number % 12 == part]:
        load, run = load_of(CASES[name].build()), GOLDEN["outcomes"][GOLDEN["cases"][name]]
        packed = "compressed-tensors" in load.unknown and not isinstance(run, str)
        passed += packed
        found = None if packed else disagreement(load, run)
        if found is not None or (load.unknown and not packed):
            wrong.append((CASES[name].name, load.unknown or found))
    assert not wrong, (len(wrong), wrong[:12])
    assert passed < len(CASES) / 12 / 10


def test_every_rule_has_a_source_and_no_fault_is_the_drafters() -> None:
    loads = [load_of(case.build()) for case in list(CASES.values())[::7]]
    assert named_rules(loads) - {"unknown"} <= set(RULES)
    assert {"transformers.config-type", "transformers.rope-parameters", "transformers.arguments"} <= named_rules(loads)
    assert all(item.foreign for load in loads for item in load.refusals)
    assert all(item.foreign for load in loads for item in load.wrongs)
