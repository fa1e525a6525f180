"""What is common to all engines: names, versions, rules, values of the wrong kind."""

from __future__ import annotations

import pytest

from convertkit.engines import llamacpp_load
from convertkit.engines.registry import RULES, drafter_in, rules_of
from convertkit.engines.rules import ENGINES, holds, parse_engine, parse_engines
from convertkit.engines.vllm_params import Target
from convertkit.errors import ConvertError
from tests.engines.cases import build, cases
from tests.engines.drafters import H, N, V
from tests.engines.test_vllm_load import source_of

CASES = dict(cases())
TARGET = Target(N, V, H)


def test_llamacpp_reads_gguf_only() -> None:
    load = llamacpp_load.load_drafter(source_of(build(CASES["dflash2, whole"])), TARGET)
    assert (load.status, load.refusals[0].foreign) == ("refused", True)
    assert {item.name: item.value for item in load.settings} == {
        "--spec-type": "draft-dflash",
        "--spec-draft-n-max": 7,
    }


def test_engines_and_versions() -> None:
    assert parse_engine("vLLM@0.33").proven
    assert not parse_engine("vllm@0.33.1").proven
    assert not parse_engine("vllm@0.34").proven
    every = parse_engines(["vllm@0.29", "all"])
    assert [one.engine.name for one in every] == list(ENGINES)
    assert [one.by_name for one in every] == [True, False, False, False, False]
    with pytest.raises(ConvertError):
        parse_engine("mlx")


def test_rules_hold_from_and_until() -> None:
    rule = RULES["vllm.hybrid-window"]
    assert holds(rule, "0.32.5")
    assert not holds(rule, "0.33.0")
    assert rule in rules_of(parse_engine("vllm@0.29"))
    assert rule not in rules_of(parse_engine("vllm"))
    assert all(name.partition(".")[0] in {"vllm", "sglang", "llama", "tensorrt-llm", "transformers"} for name in RULES)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("target_layer_ids", True),
        ("target_layer_ids", ["1", "3"]),
        ("layer_types", [[]]),
        ("hidden_size", "64"),
        ("num_hidden_layers", 1 << 60),
        ("dflash_config", []),
        ("architectures", [None]),
        ("rope_parameters", 1.0),
        ("quantization_config", ["modelopt"]),
    ],
)
def test_values_of_the_wrong_kind_are_named(key: str, value: object) -> None:
    made = build(CASES["dflash, whole"])
    inside = made.config["dflash_config"] if key == "target_layer_ids" else made.config
    inside[key] = value
    for one in parse_engines(["all"]):
        load = drafter_in(one, source_of(made), TARGET, 1, "BF16")
        assert (load.status, f"'{key}'" in load.unknown) == ("unknown", True)
