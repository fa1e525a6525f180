"""Our model of vLLM 0.33 against its own loader: rope parameters, field types, quantization arguments, odd names
(``golden/vllm-0.33.0-config.json``)."""

from __future__ import annotations

import pytest

from convertkit.engines.vllm_load import load_drafter
from convertkit.engines.vllm_params import Target
from tests.engines.cases import Case, build, dflash, slug
from tests.engines.config_cases import config_cases
from tests.engines.drafters import H, N, V
from tests.engines.loads import by_outcome, check_holes, check_start, read_golden, source_of

GOLDEN = read_golden("vllm-0.33.0-config")
CASES = dict(config_cases())


def test_a_mask_token_below_zero_is_loaded_and_wrong() -> None:
    made = build(Case("dflash", dflash(mask_token_id=-1)))
    load = load_drafter(source_of(made), Target(N, V, H))
    assert (load.status, {item.code for item in load.wrongs}) == ("wrong", {"E_MASK_TOKEN"})


def test_every_case_was_run() -> None:
    assert {slug(name) for name in CASES} == set(GOLDEN["cases"])
    assert len(CASES) == len(GOLDEN["cases"]) > 200


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_loader(name: str) -> None:
    load, run = load_drafter(source_of(build(CASES[name])), Target(N, V, H)), GOLDEN["cases"][slug(name)]
    assert not load.unknown
    if check_start(load, run):
        check_holes(load, run, by_outcome(load, "defaulted", "borrowed"))
        assert by_outcome(load, "borrowed") == set(run["lent"])
