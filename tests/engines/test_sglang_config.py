"""Our model of SGLang 0.5.23 against its own loader: rope parameters, field types, arguments of packs, values that no
model has (``golden/sglang-0.5.23-config.json`` and ``-more.json``)."""

from __future__ import annotations

from typing import Any

import pytest

from convertkit.engines.model import Load
from convertkit.engines.registry import RULES, drafter_in
from convertkit.engines.rules import parse_engine
from convertkit.engines.vllm_params import Target
from tests.engines.cases import Case, build, dflash, slug
from tests.engines.drafters import H, N, V
from tests.engines.loads import by_outcome, named_rules, read_golden, source_of
from tests.engines.sglang_more_cases import flat_config_cases, folder, more_cases

CONFIG, MORE = read_golden("sglang-0.5.23-config"), read_golden("sglang-0.5.23-more")
CASES = {
    **{f"config, {name}": (case, CONFIG, slug(name)) for name, case in flat_config_cases()},
    **{name: (case, MORE, folder(name)) for name, case in more_cases()},
}
UNKNOWN = frozenset(
    {f"{kind}, {name}" for kind in ("dflash", "eagle3")
     for name in ("fope with heads", "deepseek", "an odd name", "a base model")}
    | {f"{kind}, dflash_config.attention_value_scale = {value}" for kind in ("dflash", "dspark") for value in (5, -1)}
)  # fmt: skip
"""Outside of what the tables describe, or built on a GPU only."""


def load_of(case: Case) -> Load:
    source = source_of(build(case), "sglang")
    return drafter_in(parse_engine("sglang"), source, Target(N, V, H), 1, "BF16")


def disagreement(load: Load, run: Any) -> Any:
    """What differs from a run as ``outcome`` tells it; None if nothing does."""
    if load.status == "refused" or isinstance(run, str):
        stage: Any = load.refusals[0].stage if load.refusals else load.status
        return None if stage == run else (stage, load.refusals[:1], run)
    unread = by_outcome(load, "defaulted", "borrowed")
    ours = {
        "unfilled": by_outcome(load, "unfilled"),
        "partly filled": by_outcome(load, "partly filled"),
        "unused": {name for name, fate in load.fates.items() if fate.into is None},
        "lent": by_outcome(load, "borrowed"),
    }
    theirs = {key: set(run.get(key, ())) - (unread if "filled" in key else set()) for key in ours}
    return None if ours == theirs else (ours, theirs)


def test_every_case_was_run() -> None:
    assert set(CONFIG["cases"]) == {slug(name) for name, _ in flat_config_cases()}
    assert set(MORE["cases"]) == {folder(name) for name, _ in more_cases()}
    assert len(CASES) == len(CONFIG["cases"]) + len(MORE["cases"]) > 1200
    assert CONFIG["versions"] == MORE["versions"]


@pytest.mark.parametrize("part", range(12))
def test_agrees_with_the_loader(part: int) -> None:
    wrong: list[tuple[object, ...]] = []
    for name in [name for number, name in enumerate(CASES) if number % 12 == part]:
        case, golden, key = CASES[name]
        load = load_of(case)
        found = disagreement(load, golden["outcomes"][golden["cases"][key]])
        if load.unknown and name in UNKNOWN:
            continue
        if found is not None or load.unknown:
            wrong.append((name, load.unknown or found))
    assert not wrong, (len(wrong), wrong[:12])


def test_every_rule_has_a_source() -> None:
    named = named_rules([load_of(case) for case, _, _ in list(CASES.values())[::5]]) - {"unknown"}
    assert {name for name in named if not name.startswith("vllm.")} <= set(RULES)
    assert {"sglang.config-type", "sglang.rope-parameters", "sglang.quant-arguments", "sglang.least"} <= named
    assert {name for name in named if name.startswith("vllm.")} <= {"vllm.width", "vllm.config-keys", "vllm.tp-divides"}


def test_a_mask_token_below_zero_is_refused() -> None:
    load = load_of(Case("dflash", dflash(mask_token_id=-1)))
    assert (load.status, load.refusals[0].key, load.refusals[0].stage) == ("refused", "mask_token_id", "config")


def test_a_word_that_counts_as_a_number_is_said() -> None:
    load = load_of(Case("dflash", dflash(block_size="8")))
    assert [(item.code, item.key) for item in load.wrongs] == [("E_CONFIG", "block_size")]
    assert {item.name: item.value for item in load.settings}["--speculative-num-draft-tokens"] == 8
