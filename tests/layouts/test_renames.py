"""Rules on names, presets and what is worked out from a reference."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from convertkit.demo.drafters import tensors_of
from convertkit.errors import ConvertError
from convertkit.layouts.likeness import Form, likeness
from convertkit.layouts.presets import PRESETS, preset_rules
from convertkit.layouts.renames import (
    RenameRule,
    apply_rules,
    is_doubled,
    module_rules,
    parse_rule,
    parse_rules,
    reversed_rules,
)


def renamed(rules: Sequence[str], names: Sequence[str]) -> list[str]:
    found = apply_rules([parse_rule(rule) for rule in rules], names)
    return [found.new_name(name) for name in names]


def refused(rules: Sequence[str], names: Sequence[str]) -> list[str]:
    with pytest.raises(ConvertError) as caught:
        renamed(rules, names)
    return [item.code for item in caught.value.findings]


def test_rules_are_applied_at_once_and_may_swap() -> None:
    assert renamed(["a.{rest}=b.{rest}", "b.{rest}=a.{rest}"], ["a.x", "b.x", "c.x"]) == ["b.x", "a.x", "c.x"]


def test_the_first_rule_that_fits_decides() -> None:
    assert renamed(["a.{x}.w=n.{x}.w", "a.{rest}=m.{rest}"], ["a.b.w", "a.b.c.w"]) == ["n.b.w", "m.b.c.w"]


def test_counts_say_what_each_rule_did_and_what_has_its_form_already() -> None:
    found = apply_rules([parse_rule("a.{rest}=b.{rest}"), parse_rule("c.{rest}=d.{rest}")], ["a.x", "d.x", "d.y"])
    assert (found.counts, found.settled) == ((1, 0), (0, 2))


@pytest.mark.parametrize(
    "text", ["a", "=b", "a=", "a=b=c", "a..b=c", "a.{x}=b.{i}", "a.{rest}.{rest}=b.{rest}", "a*=b"]
)
def test_malformed_rules_are_refused(text: str) -> None:
    with pytest.raises(ConvertError, match="E_PATTERN"):
        parse_rule(text)


def test_a_file_of_rules() -> None:
    assert parse_rules("# comment\n\na=b\n c.{rest} = d.{rest} \n") == (
        RenameRule("a", "b"), RenameRule("c.{rest}", "d.{rest}"),
    )  # fmt: skip


def test_collisions_name_both_tensors() -> None:
    assert refused(["a.{x}=b.{x}"], ["a.w", "b.w"]) == ["E_NAME_COLLISION"]
    assert refused(["a.{x}.{rest}=c.{rest}"], ["a.one.w", "a.two.w"]) == ["E_NAME_COLLISION"]


def test_a_rule_that_moves_the_weight_and_not_its_scales_is_refused() -> None:
    family = ["lm_head.weight", "lm_head.scales", "lm_head.biases"]
    assert refused(["lm_head.weight=head.weight"], family) == ["E_FAMILY_SPLIT"]
    assert renamed(["lm_head.{x}=head.{x}"], family) == ["head.weight", "head.scales", "head.biases"]


def test_a_rule_that_changes_what_a_plane_is_called_is_refused() -> None:
    names = ["a.weight", "a.weight_scale", "a.weight_scale_2", "b.weight", "b.bias"]
    assert refused(["{rest}.weight_scale={rest}.weight_scale_inv"], names) == ["E_FAMILY_SPLIT"]
    assert refused(["{rest}.weight={rest}.weight_packed"], names) == ["E_FAMILY_SPLIT", "E_FAMILY_SPLIT"]


def test_a_rule_applied_twice_does_nothing_the_second_time() -> None:
    rule = ["{rest}=encoder.{rest}"]
    once = renamed(rule, ["layer.0.w", "norm.w"])
    assert once == ["encoder.layer.0.w", "encoder.norm.w"]
    assert renamed(rule, once) == once


def test_a_rule_that_inserts_many_parts_may_be_applied_twice_too() -> None:
    rule = ["x.{rest}=x.b.c.d.e.f.{rest}"]
    once = renamed(rule, ["x.q.weight", "x.q.bias"])
    assert once == ["x.b.c.d.e.f.q.weight", "x.b.c.d.e.f.q.bias"]
    assert renamed(rule, once) == once


def test_a_rule_that_would_double_a_name_is_refused() -> None:
    assert refused(["{rest}.w=encoder.{rest}.encoder.w"], ["a.encoder.w"]) == ["E_NAME_DOUBLED"]


@pytest.mark.parametrize(
    ("name", "doubled"),
    [
        ("model.model.x", True),
        ("model.language_model.model.language_model.x", True),
        ("language_model.language_model.x", True),
        ("a.b.c.d.e.a.b.c.d.e.x", True),
        ("a.0.0.a.0.1", False),
        ("layers.0.0.x", False),
        ("model.layers.0.mlp.experts.0.w", False),
    ],
)
def test_doubled_names(name: str, doubled: bool) -> None:
    assert is_doubled(name) is doubled


def test_rules_on_modules_leave_out_what_both_sides_end_with() -> None:
    assert RenameRule("a.b", "c.b") in module_rules(RenameRule("a.b.weight", "c.b.weight"))
    assert RenameRule("a.{e}", "c.{e}") in module_rules(RenameRule("a.{e}.{x}", "c.{e}.{x}"))
    assert module_rules(RenameRule("a.{rest}", "c.{rest}")) == (RenameRule("a.{rest}", "c.{rest}"),)


# the damaged form of a right name, for each preset
DAMAGE = {
    "nested-vision": (r"^model\.visual\.", "model.language_model.visual."),
    "doubled-language-model": (r"^model\.language_model\.", "model.language_model.language_model."),
    "strip-language-model": (r"^model\.(?=layers|embed|norm)", "model.language_model."),
    "add-language-model": (r"^model\.language_model\.", "model."),
    "language-model-first": (r"^model\.(language_model)\.", r"\1.model."),
    "experts-transposed": (r"experts\.(\d+)\.(\w+)\.", r"experts.\2.\1."),
    "midlayer": (r"^layers\.0\.", "midlayer."),
    "strip-model": (r"^", "model."),
    "codebook": (r"codebook$", "codebook.weight"),
    "wrapped-linear": (r"(qkv|proj)\.(weight|bias)$", r"\1.linear.\2"),
}
KINDS = {
    "strip-language-model": "qwen3-moe",
    "strip-model": "dflash2",
    "codebook": "dflash2",
    "experts-transposed": "qwen3.5-moe-unfused",
}
"""Which generated model each preset is for; the others are for the multimodal expert model."""


def right_forms(preset: str) -> dict[str, Form | None]:
    if preset == "midlayer":
        return {
            f"layers.0.{leaf}.weight": ("BF16", (rows, 16))
            for leaf, rows in (("self_attn.q_proj", 32), ("self_attn.k_proj", 16), ("mlp.up_proj", 64), ("fc", 48))
        }
    specs = [tensor.spec for tensor in tensors_of(KINDS.get(preset, "qwen3.5-moe"), "tiny")]
    return {item.name: (item.dtype, item.shape) for item in specs}


@pytest.mark.parametrize("preset", list(PRESETS))
def test_each_preset_repairs_its_damage_and_is_its_own_end(preset: str) -> None:
    right = right_forms(preset)
    pattern, replacement = DAMAGE[preset]
    damaged = [re.sub(pattern, replacement, name) for name in right]
    assert damaged != list(right)
    found = apply_rules(preset_rules(preset), damaged)
    assert [found.new_name(name) for name in damaged] == list(right)
    assert not apply_rules(preset_rules(preset), list(right)).names


@pytest.mark.parametrize("preset", list(PRESETS))
def test_each_damage_is_worked_out_from_a_reference(preset: str) -> None:
    right = right_forms(preset)
    pattern, replacement = DAMAGE[preset]
    damaged = {re.sub(pattern, replacement, name): form for name, form in right.items()}
    found = likeness(damaged, right)
    assert not found.findings
    assert (found.left, found.missing) == ((), ())
    renaming = apply_rules(found.rules, list(damaged))
    assert [renaming.new_name(name) for name in damaged] == list(right)
    assert len(found.rules) <= 16


@pytest.mark.parametrize("preset", ["nested-vision", "add-language-model", "experts-transposed", "midlayer"])
def test_forth_and_back_is_the_identity(preset: str) -> None:
    right = list(right_forms(preset))
    pattern, replacement = DAMAGE[preset]
    damaged = [re.sub(pattern, replacement, name) for name in right]
    there = apply_rules(preset_rules(preset), damaged)
    back = apply_rules(reversed_rules(there.rules), [there.new_name(name) for name in damaged])
    assert [back.new_name(there.new_name(name)) for name in damaged] == damaged


def test_two_names_that_fit_either_way_are_not_guessed() -> None:
    forms: dict[str, Form | None] = {"a.weight": ("F32", (2, 2)), "b.weight": ("F32", (2, 2))}
    found = likeness(forms, {"c.weight": ("F32", (2, 2)), "d.weight": ("F32", (2, 2))})
    assert [item.code for item in found.findings] == ["E_LIKE_AMBIGUOUS", "E_LIKE_AMBIGUOUS"]
    assert not found.rules


def test_shapes_decide_where_names_do_not() -> None:
    found = likeness(
        {"a.weight": ("F32", (2, 2)), "b.weight": ("F32", (3, 2))},
        {"c.weight": ("F32", (3, 2)), "d.weight": ("F32", (2, 2))},
    )
    renaming = apply_rules(found.rules, ["a.weight", "b.weight"])
    assert renaming.names == {"a.weight": "d.weight", "b.weight": "c.weight"}


def test_a_plural_is_found_by_shape() -> None:
    found = likeness({"backbone.embedding.weight": ("F32", (4, 2))}, {"backbone.embeddings.weight": ("F32", (4, 2))})
    assert apply_rules(found.rules, ["backbone.embedding.weight"]).names == {
        "backbone.embedding.weight": "backbone.embeddings.weight"
    }


def test_names_without_a_counterpart_follow_or_stay() -> None:
    forms: dict[str, Form | None] = {f"model.layers.{i}.a.weight": ("F32", (2, 2)) for i in range(3)}
    more: dict[str, Form | None] = {f"model.layers.{i}.a.k_scale": ("F32", ()) for i in range(3)}
    right: dict[str, Form | None] = {f"model.language_model.layers.{i}.a.weight": ("F32", (2, 2)) for i in range(3)}
    found = likeness({**forms, **more}, right)
    renaming = apply_rules(found.rules, [*forms, *more])
    assert set(renaming.names.values()) > set(right)
    assert found.left == ("model.layers.{i}.a.k_scale",)


def test_a_wrong_mapping_that_inverts_is_seen_against_a_reference() -> None:
    right: dict[str, Form | None] = {"a.q.weight": ("F32", (4, 2)), "a.k.weight": ("F32", (2, 2))}
    swapped = {"a.k.weight": right["a.q.weight"], "a.q.weight": right["a.k.weight"]}
    rules = [parse_rule("a.q.{x}=a.k.{x}"), parse_rule("a.k.{x}=a.q.{x}")]
    there = apply_rules(rules, list(swapped))
    back = apply_rules(reversed_rules(rules), [there.new_name(name) for name in swapped])
    assert [back.new_name(there.new_name(name)) for name in swapped] == list(swapped)  # a round trip proves nothing
    assert apply_rules(likeness(swapped, right).rules, list(swapped)).names == there.names


HOME = "model.layers.0.mlp.experts"
STACK = [f"{HOME}.gate_up_proj", f"{HOME}.gate_up_proj_weight_scale", f"{HOME}.gate_up_proj_weight_scale_2"]


@pytest.mark.parametrize("name", STACK)
def test_the_planes_of_a_stack_move_together(name: str) -> None:
    with pytest.raises(ConvertError, match="E_FAMILY_SPLIT"):
        renamed([f"{name}={HOME}.other"], STACK)


def test_a_stack_may_get_another_stem_with_all_its_planes() -> None:
    rules = [
        "{rest}.experts.gate_up_proj={rest}.experts.w13_weight",
        "{rest}.experts.gate_up_proj_weight_scale={rest}.experts.w13_weight_scale",
        "{rest}.experts.gate_up_proj_weight_scale_2={rest}.experts.w13_weight_scale_2",
    ]
    assert renamed(rules, STACK) == [f"{HOME}.w13_weight", f"{HOME}.w13_weight_scale", f"{HOME}.w13_weight_scale_2"]
    with pytest.raises(ConvertError, match="E_FAMILY_SPLIT"):
        renamed(rules[:2], STACK)
    swapped = [rules[0], *(a.split("=")[0] + "=" + b.split("=")[1] for a, b in (rules[1:], rules[:0:-1]))]
    with pytest.raises(ConvertError, match="E_FAMILY_SPLIT"):
        renamed(swapped, STACK)


def test_weights_of_a_stack_that_stand_alone_may_move_alone() -> None:
    names = [f"{HOME}.gate_up_proj", f"{HOME}.down_proj"]
    assert renamed([f"{HOME}.gate_up_proj={HOME}.w13"], names) == [f"{HOME}.w13", f"{HOME}.down_proj"]


def test_a_rule_for_scales_of_fp8_leaves_nvfp4_layers_alone() -> None:
    fp8 = ["a.q.weight", "a.q.weight_scale", "a.q.input_scale"]
    nvfp4 = ["a.up.weight", "a.up.weight_scale", "a.up.weight_scale_2"]
    rule = parse_rule("{rest}.weight_scale={rest}.weight_scale_inv")
    found = apply_rules([rule], [*fp8, *nvfp4])
    assert found.names == {"a.q.weight_scale": "a.q.weight_scale_inv"}
    assert [(item.code, item.data["count"]) for item in found.findings] == [("W_RULE_SCOPED", 1)]
    assert apply_rules([rule], fp8).findings == ()
    again = apply_rules([rule], [found.new_name(name) for name in (*fp8, *nvfp4)])
    assert (again.names, again.settled) == ({}, (1,))
    with pytest.raises(ConvertError, match="E_FAMILY_SPLIT"):  # nothing is left for the rule to do
        apply_rules([rule], nvfp4)
    packed = ["a.up.weight_packed", "a.up.weight_scale", "a.up.weight_global_scale"]
    with pytest.raises(ConvertError, match="E_FAMILY_SPLIT"):
        apply_rules([rule], packed)
