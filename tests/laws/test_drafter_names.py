"""Laws of the tables: every name meets one rule, no two meet in one, and there and back is the identity."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from convertkit.conversion.drafters import ROUTES
from convertkit.layouts.expected import expected_tensors
from convertkit.layouts.layout import Layout, Rule
from convertkit.layouts.names import MISSPELLED, from_hub, to_hub
from convertkit.layouts.rules import compile_template
from convertkit.layouts.tables import LAYOUTS_BY_NAME

BODY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 192,
    "conv_kernel_size": 2,
    "conv_group_size": 16,
    "selector_rank": 8,
}
VARIANTS = [
    {"num_hidden_layers": layers, "attention_bias": bias, "markov_head_type": head, "draft_vocab_size": words}
    for layers, bias, head, words in product((1, 3, 12), (False, True), ("vanilla", "gated", "rnn"), (192, 48))
]


def names_of(layout: Layout, variant: dict[str, Any]) -> list[str]:
    """Every name that the layout's table has or may have."""
    taps = {"target_layer_ids": [1, 2], "aux_hidden_state_layer_ids": [2, 3]}
    taps["eagle_aux_hidden_state_layer_ids"] = [2, 3, 5]
    norms = {"norm_before_fc": True, "fc_norm": True, "norm_output": True}
    config: dict[str, Any] = {**taps, **norms, **variant, "markov_rank": 8}
    if layout.speculators:
        config["transformer_layer_config"] = {**BODY, **variant, "model_type": "qwen3"}
    else:
        config |= {**BODY, "model_type": "qwen3"}
    table = expected_tensors(layout, config)
    assert table
    return list(table)


def holds_for(rule: Rule, name: str) -> bool:
    """Whether a rule is about a name: its template fits, and the layer is not one before its first."""
    captures = compile_template(rule.template).match(name)
    return captures is not None and int(captures.get("i", rule.first)) >= rule.first


HUBS = {
    "dflash": "dflash",
    "dflash2": "dflash2",
    "dspark": "dspark",
    "eagle3": "speculators-eagle3",
    "speculators-dflash": "dflash",
    "speculators-dflash2": "dflash2",
    "speculators-dspark": "dspark",
    "speculators-eagle3": "speculators-eagle3",
    "peagle": "speculators-peagle",
    "speculators-peagle": "speculators-peagle",
    "speculators-mtp": "speculators-mtp",
}
"""Layout to the layout in whose names its family meets."""

LAYOUTS = [LAYOUTS_BY_NAME[name] for name in HUBS]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_total(layout: Layout) -> None:
    for variant in VARIANTS:
        for name in names_of(layout, variant):
            meets = {rule.template for rule in layout.rules if holds_for(rule, name)}
            assert len(meets) == 1, name
            assert layout.rule_of(name) is not None
            assert layout.rule_of(f"model.{name}") == layout.rule_of(name)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_injective_and_involutive(layout: Layout) -> None:
    hub = LAYOUTS_BY_NAME[HUBS[layout.name]]
    for variant in VARIANTS:
        names = names_of(layout, variant)
        there = [to_hub(layout.name, name) for name in names]
        assert len(set(there)) == len(names)
        assert [from_hub(layout.name, name) for name in there] == names
        assert [to_hub(layout.name, f"model.{name}") for name in names] == there
        assert all(hub.rule_of(name) is not None for name in there if name not in ("d2t", "t2d"))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_modules_go_where_their_tensors_go(layout: Layout) -> None:
    for name in names_of(layout, VARIANTS[0]):
        module, _, leaf = name.rpartition(".")
        if leaf in ("weight", "bias"):
            assert f"{to_hub(layout.name, module)}.{leaf}" == to_hub(layout.name, name)


def test_misspelled_names_meet_the_right_ones() -> None:
    for wrong, right in MISSPELLED:
        assert to_hub("dflash2", wrong) == to_hub("dflash2", f"model.{wrong}") == right
        assert LAYOUTS_BY_NAME["dflash2"].rule_of(wrong) is None
        assert LAYOUTS_BY_NAME["dflash2"].rule_of(right) is not None


def test_routes_stay_inside_a_family() -> None:
    for sources in ROUTES.values():
        for source, out in sources.items():
            assert HUBS[source] == HUBS[out]
