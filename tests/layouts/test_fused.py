from __future__ import annotations

import pytest

from convertkit.errors import ConvertError
from convertkit.layouts.fused import fused_groups, idle_members, lookalikes, parse_fuse, user_groups
from convertkit.layouts.tables import LAYOUTS_BY_NAME

MODEL, DRAFTER = LAYOUTS_BY_NAME["causal-lm"], LAYOUTS_BY_NAME["dflash2"]


def test_groups_of_a_drafter() -> None:
    modules = [f"layers.{i}.{leaf}" for i in (10, 2) for leaf in ("mlp.down_proj", "mlp.up_proj", "mlp.gate_proj")]
    modules += ["layers.2.self_attn.v_proj", "layers.2.self_attn.q_proj", "fc", "markov_head.gate_proj"]
    assert fused_groups(modules, DRAFTER) == {
        "fc": ("fc",),
        "layers.2.mlp.down_proj": ("layers.2.mlp.down_proj",),
        "layers.2.mlp.gate_proj": ("layers.2.mlp.gate_proj", "layers.2.mlp.up_proj"),
        "layers.2.self_attn.q_proj": ("layers.2.self_attn.q_proj", "layers.2.self_attn.v_proj"),
        "layers.10.mlp.down_proj": ("layers.10.mlp.down_proj",),
        "layers.10.mlp.gate_proj": ("layers.10.mlp.gate_proj", "layers.10.mlp.up_proj"),
        "markov_head.gate_proj": ("markov_head.gate_proj",),
    }


def test_experts_are_grouped_each_alone_and_apart_from_the_shared_expert() -> None:
    prefix = "model.layers.0.mlp"
    modules = [
        f"{prefix}.{owner}.{leaf}"
        for owner in ("experts.0", "experts.1", "shared_expert")
        for leaf in ("gate_proj", "up_proj", "down_proj")
    ]
    groups = [set(members) for members in fused_groups(modules, MODEL).values() if len(members) > 1]
    assert groups == [
        {f"{prefix}.experts.0.gate_proj", f"{prefix}.experts.0.up_proj"},
        {f"{prefix}.experts.1.gate_proj", f"{prefix}.experts.1.up_proj"},
        {f"{prefix}.shared_expert.gate_proj", f"{prefix}.shared_expert.up_proj"},
    ]


@pytest.mark.parametrize(
    "members",
    [
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
        ("experts.5.w1", "experts.5.w3"),
        ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"),
        ("attn.to_q", "attn.to_k", "attn.to_v"),
    ],
)
def test_every_declared_group(members: tuple[str, ...]) -> None:
    modules = [f"model.layers.3.{member}" for member in members]
    assert fused_groups([*modules, "model.layers.3.self_attn.o_proj"], MODEL)[modules[0]] == tuple(modules)
    assert fused_groups(reversed(modules), MODEL) == {modules[0]: tuple(modules)}


def test_a_group_is_one_without_its_first_member_too_and_a_module_of_none_stays_alone() -> None:
    modules = ["a.v_proj", "a.k_proj", "a.down_proj"]
    assert fused_groups(modules, MODEL) == {"a.k_proj": ("a.k_proj", "a.v_proj"), "a.down_proj": ("a.down_proj",)}


def test_user_groups_join_declared_ones() -> None:
    extra = [parse_fuse("a.{i}.up_proj, a.{i}.side")]
    modules = ["a.0.up_proj", "a.0.gate_proj", "a.0.side", "a.1.side"]
    assert {frozenset(group) for group in fused_groups(modules, MODEL, extra).values()} == {
        frozenset(("a.0.up_proj", "a.0.gate_proj", "a.0.side")),
        frozenset(("a.1.side",)),
    }


@pytest.mark.parametrize("text", ["a", "a,a", "a.{i}.b,a.c", "a.{i},b.{i}", "a..b,c", "*,b"])
def test_malformed_groups_are_refused(text: str) -> None:
    with pytest.raises(ConvertError) as caught:
        parse_fuse(text)
    assert caught.value.code == "E_PATTERN"


def test_a_group_without_placeholders_names_what_is_there() -> None:
    modules = ["attn.add_q", "model.attn.add_k", "attn.other"]
    assert idle_members(user_groups(["attn.add_q,attn.add_k"]), modules) == ()


def test_one_misspelled_name_of_a_group_is_told() -> None:
    modules = [f"model.layers.{i}.attn.add_{leaf}" for i in range(2) for leaf in "qkv"]
    text = "layers.{i}.attn.add_q,layers.{i}.attn.add_k,layers.{i}.attn.ad_v"
    [item] = idle_members(user_groups([text]), modules)
    assert (item.code, item.severity) == ("E_PATTERN_EMPTY", "error")
    assert "layers.{i}.attn.ad_v matches no linear layer" in item.message
    assert "model.layers.{i}.attn.add_v" in item.fix


def test_siblings_called_like_q_k_and_v_are_seen() -> None:
    row = ("b.0.add_q_proj", "b.0.add_k_proj", "b.0.add_v_proj")
    bert = ("a.query", "a.key", "a.value")
    alone = [*reversed(row), *bert, "b.1.add_q_proj", "b.1.add_k_proj", "c.q_k_proj", "c.v_proj", "d.out_proj"]
    assert lookalikes(alone) == (row, bert)


@pytest.mark.parametrize("name", LAYOUTS_BY_NAME)
def test_members_of_a_group_are_siblings(name: str) -> None:
    """``dialects.writing.partial_groups`` looks for fused partners beside a module only."""
    for group in LAYOUTS_BY_NAME[name].fused:
        assert len({member.rpartition(".")[0] for member in group}) == 1
