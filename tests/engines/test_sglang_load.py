"""Our model of SGLang 0.5.23 against what SGLang's own loader did with every drafter (``sglang-0.5.23.json``)."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from convertkit.engines.files import stopped_at_files
from convertkit.engines.model import Load
from convertkit.engines.registry import RULES
from convertkit.engines.sglang_load import load_drafter
from convertkit.engines.vllm_params import Target
from tests.engines.cases import build, slug
from tests.engines.drafters import H, N, V
from tests.engines.loads import DTYPES, by_outcome, check_holes, check_start, named_rules, read_golden, source_of
from tests.engines.sglang_cases import sglang_cases

GOLDEN = read_golden("sglang-0.5.23")
EVERY = dict(sglang_cases())
CASES = [name for name in EVERY if slug(name) in GOLDEN["cases"]]
WHOLE = [
    name for name in CASES if "of two ranks" in GOLDEN["cases"][slug(name)] and GOLDEN["cases"][slug(name)]["loads"]
]

UNKNOWN = frozenset(
    {"legacy, base label", "base model's label", "mixed, no layers", "mixed, empty", "uniform, algorithm unknown",
     "layers only in hf_quant_config", "ct, unknown method", "ct, eagle3, head a target"}
)  # fmt: skip
"""Outside of what the tables describe: the verdict is unknown, whatever the loader does."""


@cache
def loaded(name: str, ranks: int = 1) -> Load:
    source = source_of(build(EVERY[name]), "sglang")
    return stopped_at_files(load_drafter(source, Target(N, V, H), ranks), source)


def golden(name: str) -> dict[str, Any]:
    found: dict[str, Any] = GOLDEN["cases"][slug(name)]
    return found


def test_the_golden_file_covers_the_cases() -> None:
    assert GOLDEN["versions"]["sglang"] == "0.5.23"
    assert len(CASES) > 400
    assert len(WHOLE) >= 4


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_loader(name: str) -> None:
    load, run = loaded(name), golden(name)
    if load.status == "unknown":
        assert name in UNKNOWN
        return
    if not check_start(load, run):
        return
    holes = check_holes(load, run, by_outcome(load, "defaulted", "borrowed"))
    assert by_outcome(load, "borrowed") == set(run["lent"])
    assert load.status == "wrong" or not holes
    assert run["warned"] == 0


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("ranks", [1, 2])
def test_parameters_are_those_of_the_built_model(name: str, ranks: int) -> None:
    runs = [golden(name)] if ranks == 1 else golden(name)["of two ranks"]
    load = loaded(name, ranks)
    lent = by_outcome(load, "borrowed")
    ours = {
        item.parameter.name: [list(item.parameter.shape), DTYPES[item.parameter.dtype]]
        for item in load.parameters
        if item.parameter.name not in lent
    }
    for run in runs:
        assert ours == {name: made for name, made in run["shapes"].items() if name not in lent}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_drafters_load(name: str) -> None:
    load = loaded(name)
    assert (load.status, load.wrongs, load.refusals) == ("loads", (), ())
    assert all(run["loads"] and not run["partly filled"] for run in golden(name)["of two ranks"])


@pytest.mark.parametrize("name", CASES)
def test_settings_and_taps_are_those_of_the_engine(name: str) -> None:
    """The block that the arguments resolve to, the mask token and the captured layers of the built target."""
    load, run = loaded(name), golden(name)
    if not run["loads"] or load.unknown or "reading" not in run:
        return
    settings = {item.name: item.value for item in load.settings}
    told = settings.get("--speculative-num-draft-tokens")
    assert told is None or told == run["reading"]["draft_tokens"]
    assert list(load.facts["captured"]) == run["reading"]["captured"]


def test_every_rule_has_a_source() -> None:
    loads = [loaded(name) for name in CASES]
    named = named_rules(loads) - {"unknown"}
    assert {name for name in named if not name.startswith("vllm.")} <= set(RULES)
    assert {name for name in named if name.startswith("vllm.")} <= {"vllm.width", "vllm.config-keys", "vllm.tp-divides"}
    assert all(RULES[name].source.file for name in named)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("dflash, unknown tensor", "E_LOAD_DROPPED"),
        ("codebooks as weights", "E_LOAD_UNFILLED"),
        ("no mask token", "E_MASK_TOKEN"),
        ("taps not rising", "E_TAPS"),
        ("eagle taps at top", "E_TAPS"),
        ("legacy without d2t", "E_VOCABULARY"),
        ("reduced vocabulary stated", "E_VOCABULARY"),
    ],
)
def test_faults_have_their_code(name: str, code: str) -> None:
    load = loaded(name)
    assert (load.status, code in {item.code for item in load.wrongs}) == ("wrong", True)
