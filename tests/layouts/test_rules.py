from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convertkit.errors import ConvertError
from convertkit.layouts.rules import compile_template, families, natural_key, select, template_of


@pytest.mark.parametrize(
    ("template", "name", "captures"),
    [
        ("layers.{i}.mlp.{x}", "layers.12.mlp.up_proj", {"i": "12", "x": "up_proj"}),
        ("layers.{i}.mlp.{x}", "layers.x.mlp.up_proj", None),
        ("layers.{i}.mlp.{x}", "layers.01.mlp.up_proj", None),
        ("layers.{i}.mlp.{x}", "layers.1.mlp.up_proj.weight", None),
        ("a.{e}.b.{i}", "a.3.b.4", {"e": "3", "i": "4"}),
        ("a.{i}.b.{i}", "a.3.b.3", {"i": "3"}),
        ("a.{i}.b.{i}", "a.3.b.4", None),
        ("{rest}.q_proj", "q_proj", {"rest": ""}),
        ("{rest}.q_proj", "model.layers.0.q_proj", {"rest": "model.layers.0"}),
        ("{rest}.visual.{rest}", "model.visual.blocks.0", {"rest": "model", "rest2": "blocks.0"}),
        ("{rest}.visual.{rest}", "model.visually.blocks", None),
        ("{x}.{x}", "a.b", {"x": "a", "x2": "b"}),
        ("a.b", "a.b", {}),
        ("a.b", "axb", None),
    ],
)
def test_match(template: str, name: str, captures: dict[str, str] | None) -> None:
    assert compile_template(template).match(name) == captures


@pytest.mark.parametrize("template", ["", "a..b", "a.*", "a.{j}", "a.x{i}", "a.(b|c)", "{rest}.{rest}.a", "a b"])
def test_malformed_templates_are_refused(template: str) -> None:
    with pytest.raises(ConvertError) as caught:
        compile_template(template)
    assert caught.value.code == "E_PATTERN"
    assert caught.value.status == 2


SEGMENT = st.text("ab_0123456789", min_size=1, max_size=4)
NAME = st.lists(SEGMENT, min_size=1, max_size=6).map(".".join)


@given(NAME)
def test_template_and_numbers_give_back_the_name(name: str) -> None:
    template, numbers = template_of(name)
    parts = iter(numbers)
    back = ".".join(str(next(parts)) if part in ("{i}", "{e}", "{x}") else part for part in template.split("."))
    assert back == name


@given(st.lists(NAME, unique=True))
def test_families_lose_no_name_and_are_in_natural_order(names: list[str]) -> None:
    groups = families(names)
    assert sorted(name for family in groups.values() for name in family.names) == sorted(names)
    for family in groups.values():
        assert list(family.indices) == sorted(family.indices)
        assert all(compile_template(family.template).match(name) is not None for name in family.names)


@given(st.sampled_from(["{rest}.{i}.{x}", "a.{rest}.b", "{x}.{i}.{rest}", "{rest}.a.{rest}.b"]), NAME)
def test_format_inverts_match(template: str, name: str) -> None:
    pattern = compile_template(template)
    captures = pattern.match(name)
    if captures is not None:
        assert pattern.format(captures) == name


def test_natural_order() -> None:
    names = ["layers.10.a", "layers.9.a", "fc", "layers.9.B"]
    assert sorted(names, key=natural_key) == ["fc", "layers.9.B", "layers.9.a", "layers.10.a"]


def test_model_prefix_is_optional_on_both_sides() -> None:
    modules = ["layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj", "mtp.layers.0.mlp.up_proj"]
    for template in ("model.layers.{i}.mlp.{x}", "layers.{i}.mlp.{x}"):
        assert select(modules, [], [template]).modules == tuple(modules[:2])


MODULES = ["model.layers.0.mlp.up_proj", "model.layers.0.self_attn.o_proj", "model.layers.1.mlp.up_proj", "lm_head"]


def test_select_include_replaces_and_exclude_subtracts() -> None:
    assert select(MODULES, MODULES[:3]).modules == tuple(MODULES[:3])
    picked = select(MODULES, MODULES[:3], ["lm_head", "layers.{i}.mlp.{x}"], ["layers.1.{rest}"])
    assert picked.modules == ("model.layers.0.mlp.up_proj", "lm_head")
    assert picked.included == {"lm_head": 1, "layers.{i}.mlp.{x}": 2}
    assert picked.excluded == {"layers.1.{rest}": 1}


def test_select_names_every_pattern_that_matches_nothing() -> None:
    with pytest.raises(ConvertError) as caught:
        select(MODULES, MODULES, ["nope", "layers.{i}.mlp.up_proj.weight"], ["also.nope"])
    assert [item.code for item in caught.value.findings] == ["E_PATTERN_EMPTY"] * 3
    assert "model.layers.{i}.mlp.up_proj" in str(caught.value)
    assert caught.value.status == 2


def test_large_models_are_grouped_fast() -> None:
    names = [
        f"model.layers.{i}.mlp.experts.{e}.{leaf}_proj.{plane}"
        for i in range(40)
        for e in range(256)
        for leaf in ("gate", "up", "down")
        for plane in ("weight_packed", "weight_scale", "weight_global_scale", "input_global_scale")
    ]
    began = time.perf_counter()
    groups = families(names)
    assert len(groups) == 12
    assert sum(len(family.names) for family in groups.values()) == 122_880
    assert time.perf_counter() - began < 5  # 0.2 s on two idle cores; quadratic work would take minutes
