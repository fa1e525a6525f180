"""What is common to all engines: names, versions, rules, values of the wrong kind."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from convertkit.engines import llamacpp_load
from convertkit.engines.config_kinds import wrong_kinds
from convertkit.engines.registry import RULES, SETTLES_KINDS, drafter_in, rules_of
from convertkit.engines.rules import ENGINES, holds, parse_engine, parse_engines
from convertkit.engines.source import Source
from convertkit.engines.targets import target_in
from convertkit.engines.vllm_compressed import part_or_glob
from convertkit.engines.vllm_params import Target
from convertkit.errors import ConvertError
from tests.engines.cases import build, cases
from tests.engines.drafters import H, N, V
from tests.engines.loads import source_of
from tests.engines.target_cases import build_target, specs_of, target_cases

CASES = dict(cases())
TARGETS = dict(target_cases())
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
        if one.engine.name in SETTLES_KINDS and value != 1 << 60:
            named = {*(item.key for item in load.refusals[:1]), *(item.key for item in load.wrongs)}
            unread = one.engine.name == "transformers" and key in ("target_layer_ids", "dflash_config", "architectures")
            assert (load.status, key in named or unread) == ("wrong" if unread else "refused", True)
        else:
            assert (load.status, f"'{key}'" in load.unknown) == ("unknown", True)


SETTLES_TARGETS = ("sglang", "transformers")


@pytest.mark.parametrize("key", ["depth", "num_hidden_layers", "num_experts"])
@pytest.mark.parametrize("size", [5000, 10**9, -1])
def test_what_is_counted_one_by_one_has_a_limit(key: str, size: int) -> None:
    made = build_target(TARGETS["hybrid whole"])
    made.config = {**made.config, "vision_config": {**made.config["vision_config"]},
                   "text_config": {**made.config["text_config"]}}  # fmt: skip
    section = made.config["vision_config" if key == "depth" else "text_config"]
    assert key in section
    section[key] = size
    for one in parse_engines(["all"]):
        load = target_in(one, Source(specs_of(made), made.config, {}), 1)
        if one.engine.name in SETTLES_TARGETS and key == "num_hidden_layers":
            assert (load.status, load.refusals[0].key) == ("refused", "layer_types")
        elif one.engine.name in ("vllm", *SETTLES_TARGETS) and size < 0:
            counts = key == "depth" and one.engine.name == "transformers"
            assert load.status == ("wrong" if counts else "refused")
            assert key in {item.key for item in load.refusals} | {item.key for item in load.wrongs}
        else:
            assert (load.status, f"'{key}'" in load.unknown) == ("unknown", True)


def test_layers_whose_kinds_follow_from_their_number_have_a_limit() -> None:
    made = build_target(TARGETS["hybrid whole"])
    text = {key: value for key, value in made.config["text_config"].items() if key != "layer_types"}
    made.config = {**made.config, "text_config": {**text, "num_hidden_layers": 10**9}}
    for one in parse_engines(["all"]):
        load = target_in(one, Source(specs_of(made), made.config, {}), 1)
        assert (load.status, "'num_hidden_layers'" in load.unknown) == ("unknown", True)


def test_experts_of_all_layers_have_a_limit() -> None:
    assert list(wrong_kinds({"num_hidden_layers": 4000, "num_experts": 4000})) == ["num_experts"]
    assert list(wrong_kinds({"num_hidden_layers": 100, "num_experts": 1000})) == []


@pytest.mark.parametrize("size", [["x"], {"a": 1}, "16", 16.5, True])
def test_a_strange_group_size_is_not_crashed_on(size: object) -> None:
    made = build(CASES["uniform mlp"])
    made.config["quantization_config"] = {**made.config["quantization_config"], "group_size": size}
    for one in parse_engines(["all"]):
        assert drafter_in(one, source_of(made), TARGET, 1, "BF16").status


@pytest.mark.parametrize("entry", ["*a" * 13 + "*b", "*" * 5000, "[" * 5000, "*[!a]*?" * 1500])
def test_hostile_globs_are_not_crashed_on(entry: str) -> None:
    made = build(CASES["uniform mlp"])
    made.config["quantization_config"] = {**made.config["quantization_config"], "ignore": [entry]}
    for one in parse_engines(["all"]):
        assert drafter_in(one, source_of(made), TARGET, 1, "BF16").status


def test_globs_and_parts_of_names_as_fnmatch_takes_them() -> None:
    names = ["layers.0.mlp.up_proj", "layers.11.mlp.up_proj", "fc", "lm_head"]
    for entry in ("layers.1", "*up_proj", "layers.[0-9].mlp*", "f?", "?c", "mlp", "LM_head", "[", "fc*", ""):
        expected = [entry in name or fnmatchcase(name, entry) for name in names]
        assert [part_or_glob(["other", entry])(name) for name in names] == expected
