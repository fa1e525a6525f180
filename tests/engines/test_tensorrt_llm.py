"""What was read of TensorRT-LLM: DSpark loads strictly, DFlash and plain models by the names that modules ask for."""

from __future__ import annotations

import pytest

from convertkit.engines.model import Load
from convertkit.engines.rules import parse_engine
from convertkit.engines.source import Source
from convertkit.engines.targets import target_in
from convertkit.engines.tensorrt_llm_load import RULES, load_drafter
from convertkit.engines.vllm_params import Target
from tests.engines.cases import build, cases
from tests.engines.drafters import Draft, H, N, V, draft
from tests.engines.target_cases import build_target, target_cases

ASKED = parse_engine("tensorrt-llm")


def source(made: Draft) -> Source:
    return Source(tuple(made.specs[name] for name in sorted(made.specs)), made.config, made.quant_config or {})


def loaded(name: str, ranks: int = 1) -> Load:
    return load_drafter(source(build(dict(cases())[name])), Target(N, V, H), ranks)


def target(name: str, ranks: int = 1) -> Load:
    return target_in(ASKED, source(build_target(dict(target_cases())[name])), ranks)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("dspark, whole", "loads"),
        ("no copies", "loads"),
        ("dspark, no q", "refused"),
        ("dspark, unknown tensor", "refused"),
        ("dspark, stray bias", "refused"),
        ("dspark, norm too long", "refused"),
        ("confidence without bias", "refused"),
        ("confidence not stated", "refused"),
        ("block size at top", "loads"),
        ("dflash, whole", "wrong"),
        ("dflash, no q", "wrong"),
        ("dflash, norm too long", "refused"),
        ("dflash2, whole", "wrong"),
        ("speculators-dflash, whole", "refused"),
        ("speculators-eagle3, whole", "refused"),
        ("eagle3, whole", "unknown"),
        ("mixed mlp", "unknown"),
    ],
)
def test_drafters(name: str, status: str) -> None:
    assert loaded(name).status == status


def test_what_is_wrong_with_drafters() -> None:
    assert {item.code for item in loaded("dflash, whole").wrongs} == {"E_READER_DIFFERS"}
    assert {item.code for item in loaded("dflash, no q").wrongs} == {"E_READER_DIFFERS", "E_LOAD_UNFILLED"}
    assert "E_LOAD_DROPPED" in {item.code for item in loaded("dflash2, whole").wrongs}
    assert loaded("block size at top", 2).status == "unknown"


def test_settings_follow_from_the_block() -> None:
    made = draft("dflash")
    made.config["block_size"] = 10
    found = {item.name: (item.value, item.kind) for item in load_drafter(source(made), Target(N, V, H)).settings}
    assert found == {"decoding_type": ("DFlash", "required"), "max_draft_len": (9, "limit")}


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("qwen3, whole", "loads"),
        ("llama, whole", "loads"),
        ("qwen3, tied without head", "loads"),
        ("qwen3, no q", "refused"),
        ("qwen3, no norm", "wrong"),
        ("qwen3, no head", "wrong"),
        ("llama, norm too long", "refused"),
        ("llama, unknown tensor", "loads"),
        ("llama, nested prefix", "refused"),
        ("qwen3-moe, whole", "unknown"),
        ("qwen3 packed", "unknown"),
        ("hybrid whole", "unknown"),
    ],
)
def test_targets(name: str, status: str) -> None:
    assert target(name).status == status


def test_every_rule_says_that_it_was_read() -> None:
    assert {rule.source.how for rule in RULES.values()} == {"read"}
    assert target("qwen3, whole", 2).status == "unknown"
