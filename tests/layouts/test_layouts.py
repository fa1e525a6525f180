"""The tables against published counts, and each layout against itself and its neighbours."""

from __future__ import annotations

from typing import Any

import pytest

from convertkit.conversion.identify import identify_layout
from convertkit.layouts.drafters import DRAFTERS
from convertkit.layouts.expected import expected_tensors
from convertkit.layouts.layout import DIMENSIONS, Layout, dimensions, evaluate
from convertkit.layouts.presence import PRESENCE
from convertkit.layouts.rules import compile_template
from convertkit.layouts.tables import LAYOUTS, LAYOUTS_BY_NAME

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 192,
}


def config_for(layout: Layout, **over: Any) -> dict[str, Any]:
    """A config in the form the layout's family writes."""
    if not layout.speculators:
        keys = {"target_layer_ids": [1, 2], "conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 8}
        return {**BASE, "markov_rank": 16, "dflash_config": keys, **over}
    ids = "eagle_aux_hidden_state_layer_ids" if "eagle" in layout.name else "aux_hidden_state_layer_ids"
    return {
        "speculators_model_type": layout.labels[0],
        "transformer_layer_config": {**BASE, "model_type": "qwen3"},
        ids: [2, 3],
        "draft_vocab_size": 64,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 8,
        **over,
    }


def required(layout: Layout, config: dict[str, Any]) -> dict[str, tuple[int | None, ...] | None]:
    table = expected_tensors(layout, config)
    assert table is not None
    return {name: row.shape for name, row in table.items() if row.required}


def parameters(layout: Layout, config: dict[str, Any]) -> int:
    total = 0
    for shape in required(layout, config).values():
        assert shape is not None
        count = 1
        for size in shape:
            assert size is not None
            count *= size
        total += count
    return total


def test_published_dflash2_drafter() -> None:
    """z-lab's Qwen3.8-27B-DFlash2: 81 tensors, 1,924,404,480 parameters."""
    config = {
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 5,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 248320,
        "dflash_config": {
            "target_layer_ids": [5, 19, 33, 47, 61],
            "conv_kernel_size": 2,
            "conv_group_size": 16,
            "selector_rank": 256,
            "selector_top_k": 16,
        },
    }
    layout = LAYOUTS_BY_NAME["dflash2"]
    assert len(required(layout, config)) == 81
    assert parameters(layout, config) == 1_924_404_480


def test_published_dflash_drafter() -> None:
    """z-lab's Qwen3.6-35B-A3B-DFlash of April: 91 tensors, 473,995,264 parameters."""
    config = {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 8,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 248320,
        "dflash_config": {"target_layer_ids": [1, 10, 19, 28, 37]},
    }
    layout = LAYOUTS_BY_NAME["dflash"]
    assert len(required(layout, config)) == 91
    assert parameters(layout, config) == 473_995_264


@pytest.mark.parametrize(
    ("name", "count", "over"),
    [
        ("dflash", 11 * 3 + 3, {}),
        ("dflash2", 15 * 3 + 6, {}),
        ("speculators-dflash", 11 * 3 + 6, {}),
        ("speculators-dflash", 11 * 3 + 3, {"draft_vocab_size": 192}),
        ("speculators-dspark", 43, {}),
        ("speculators-dspark", 40, {"draft_vocab_size": None}),
        ("speculators-dspark", 45, {"markov_head_type": "gated"}),
        ("speculators-dspark", 41, {"enable_confidence_head": False}),
        ("dspark", 11 * 3 + 7, {}),
        ("dspark", 11 * 3 + 9, {"draft_vocab_size": 64}),
        ("speculators-dflash", 11 * 3 + 6 + 12, {"attention_bias": True}),
    ],
)
def test_counts_of_tensors(name: str, count: int, over: dict[str, Any]) -> None:
    layout = LAYOUTS_BY_NAME[name]
    assert len(required(layout, config_for(layout, **over))) == count


def test_first_eagle_layer_is_twice_as_wide() -> None:
    layout = LAYOUTS_BY_NAME["speculators-eagle3"]
    shapes = required(layout, config_for(layout))
    assert shapes["layers.0.self_attn.q_proj.weight"] == (128, 128)
    assert shapes["layers.1.self_attn.q_proj.weight"] == (128, 64)
    assert shapes["layers.0.self_attn.o_proj.weight"] == (64, 128)
    assert "layers.1.hidden_norm.weight" not in shapes


def test_confidence_head_reads_the_markov_state_unless_told_otherwise() -> None:
    layout = LAYOUTS_BY_NAME["speculators-dspark"]
    name = "confidence_head.proj.weight"
    assert required(layout, config_for(layout, markov_rank=16))[name] == (1, 80)
    assert required(layout, config_for(layout, confidence_head_with_markov=False))[name] == (1, 64)


@pytest.mark.parametrize("layout", DRAFTERS, ids=lambda layout: layout.name)
def test_a_drafter_is_recognised_by_its_own_names(layout: Layout) -> None:
    config = config_for(layout)
    names = list(required(layout, config))
    modules = dict.fromkeys(name.rpartition(".")[0] or name for name in names)
    found, confidence, reasons = identify_layout(modules, names, config)
    assert found.name == layout.name
    assert confidence in ("certain", "likely")
    assert reasons


@pytest.mark.parametrize("layout", DRAFTERS, ids=lambda layout: layout.name)
def test_rules_are_total_and_all_reachable(layout: Layout) -> None:
    """Each expected name meets the rule it was made from, except where an earlier rule names a single layer."""
    table = expected_tensors(layout, config_for(layout, attention_bias=True))
    assert table is not None
    met = set()
    for name, row in table.items():
        rule = layout.rule_of(name)
        assert rule is not None
        assert rule.role == row.role
        met.add(rule.template)
    made = {rule.template for rule in layout.rules if PRESENCE[rule.presence](config_for(layout, attention_bias=True),
            dimensions(config_for(layout), layout.speculators)) is not False}  # fmt: skip
    assert made - met <= {rule.template for rule in layout.rules if rule.first or rule.presence == "optional"}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_tables_are_well_formed(layout: Layout) -> None:
    known = {*DIMENSIONS, "K", "c"}
    for rule in layout.rules:
        compile_template(rule.template)
        assert rule.presence in PRESENCE
        for part in rule.shape or ():
            assert evaluate(part, dict.fromkeys(known, 16)) is not None, part
    for group in layout.fused:
        assert len({tuple(compile_template(member).keys) for member in group}) == 1
    assert layout.packed_roles <= {rule.role for rule in layout.rules}


def test_expressions() -> None:
    dims = {"H": 64, "group": 16, "taps": 2}
    assert evaluate("2*taps*H/group", dims) == 16
    assert evaluate("3*H+taps", dims) == 194
    assert evaluate("H/taps*taps", dims) == 64
    assert evaluate("taps/H", dims) is None
    assert evaluate("H+r", dims) is None


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("model.embed_tokens.weight", "embedding"),
        ("lm_head.weight", "head"),
        ("model.layers.3.mlp.gate.weight", "router"),
        ("model.layers.3.mlp.shared_expert_gate.weight", "router"),
        ("model.layers.3.mlp.shared_expert.gate_proj.weight", "mlp"),
        ("model.layers.3.mlp.experts.7.down_proj.weight", "expert"),
        ("model.layers.3.linear_attn.in_proj_a.weight", "linear-attention gate"),
        ("model.layers.3.linear_attn.conv1d.weight", "linear-attention gate"),
        ("model.language_model.layers.3.linear_attn.in_proj_qkv.weight", "linear attention"),
        ("model.visual.blocks.3.mlp.gate_proj.weight", "vision"),
        ("model.language_model.visual.blocks.3.attn.qkv.weight", "vision"),
        ("mtp.layers.0.mlp.gate_proj.weight", "mtp"),
        ("model.layers.3.self_attn.q_proj.bias", "bias"),
        ("something.weight", "other"),
    ],
)
def test_roles_in_language_models(name: str, role: str) -> None:
    assert LAYOUTS_BY_NAME["multimodal-lm"].role_of(name) == role
