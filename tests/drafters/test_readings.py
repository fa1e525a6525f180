"""Readings of vLLM 0.33.0, as its own loader resolved them on the CPU from these very configs."""

from __future__ import annotations

from typing import Any

import pytest

from convertkit.drafter import DrafterSpec
from convertkit.engines.reading import understand
from convertkit.engines.vllm import VLLM
from convertkit.layouts.configs import READINGS
from convertkit.layouts.reading import read_spec
from convertkit.layouts.tables import LAYOUTS_BY_NAME
from tests.drafters.make import FULL3, SLIDING3, deepspec, speculators, zlab, zlab2
from tests.drafters.test_silent_failures import LAYER, without

MIXED = {**SLIDING3, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}


def read(layout: str, config: dict[str, Any]) -> DrafterSpec:
    stated = read_spec(READINGS[layout], config)[0]
    spec = understand(VLLM, LAYOUTS_BY_NAME[layout], config, (), stated).spec
    assert spec is not None
    return spec


def rope(**numbers: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000000, "rope_type": "default", **numbers}}


CAUSAL: list[tuple[str, str, dict[str, Any], list[bool]]] = [
    ("full layers are not causal", "dflash", zlab(), [False] * 3),
    ("sliding layers are", "dflash", zlab(**SLIDING3), [True] * 3),
    ("each by its kind", "dflash", zlab(**MIXED), [True, True, False]),
    ("is_causal for all", "dflash", zlab(**SLIDING3, is_causal=False), [False] * 3),
    ("is_causal for full layers", "dflash", zlab(is_causal=True), [True] * 3),
    ("dflash_config.causal for all", "dflash", zlab(dflash_config={"causal": True}), [True] * 3),
    ("use_swa does not change it", "dflash", zlab(dflash_config={"use_swa": True, "swa_window_size": 24}), [False] * 3),
    ("DSpark by its kinds", "dspark", deepspec(**MIXED), [True, True, False]),
    ("one flag for all", "speculators-dflash", speculators("dflash", sliding_window_non_causal=False), [True] * 3),
    ("also for mixed ones", "speculators-dflash",
     speculators("dflash", layer=MIXED, sliding_window_non_causal=False), [True] * 3),
    ("non-causal without the key", "speculators-dflash",
     without(speculators("dflash"), "sliding_window_non_causal"), [False] * 3),
    ("is_causal before the key", "speculators-dflash",
     speculators("dflash", sliding_window_non_causal=False, layer={"is_causal": False}), [False] * 3),
    ("DSpark never reads the key", "speculators-dspark", speculators("dspark"), [True] * 3),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "config", "causal"), [row[1:] for row in CAUSAL], ids=[row[0] for row in CAUSAL])
def test_causality(layout: str, config: dict[str, Any], causal: list[bool]) -> None:
    assert [layer.causal for layer in read(layout, config).attention] == causal


WINDOWS: list[tuple[str, dict[str, Any], list[int | None]]] = [
    ("dflash", zlab(**MIXED), [32, 32, None]),
    ("dflash", zlab(**FULL3), [None] * 3),
    ("dflash", zlab(dflash_config={"use_swa": True, "swa_window_size": 24}), [24] * 3),
    ("speculators-dflash", without(speculators("dflash", layer=SLIDING3), f"{LAYER}.use_sliding_window"), [32] * 3),
]


@pytest.mark.parametrize(("layout", "config", "windows"), WINDOWS)
def test_windows(layout: str, config: dict[str, Any], windows: list[int | None]) -> None:
    assert [layer.window for layer in read(layout, config).attention] == windows


ROPES: list[tuple[str, dict[str, Any], float, float]] = [
    ("dflash", without(zlab(), "rope_parameters"), 10000.0, 1.0),
    ("dflash", without(zlab(), "rope_parameters") | {"rope_theta": 5000000.0}, 5000000.0, 1.0),
    ("dflash", zlab(**rope(partial_rotary_factor=0.5)), 10000000.0, 0.5),
    ("speculators-dflash", without(speculators("dflash"), f"{LAYER}.rope_parameters"), 1000000.0, 1.0),
]


@pytest.mark.parametrize(("layout", "config", "theta", "fraction"), ROPES)
def test_rope(layout: str, config: dict[str, Any], theta: float, fraction: float) -> None:
    found = read(layout, config).rope
    assert found is not None
    assert (found.theta, found.fraction) == (theta, fraction)


FIELDS: list[tuple[str, dict[str, Any], str, Any]] = [
    ("dflash", zlab(eagle_aux_hidden_state_layer_ids=[3, 7, 11]), "taps", (2, 6, 10)),
    ("dflash", without(zlab(), "head_dim"), "head_dim", 128),
    ("dflash2", zlab2(dflash_config={"final_logit_softcapping": 30.0}), "softcap", 30.0),
    ("dflash", zlab(dflash_config={"output_multiplier": 0.5}), "output_multiplier", 1.0),
    ("speculators-dflash", without(speculators("dflash"), "draft_vocab_size"), "draft_vocabulary", 192),
    ("speculators-dspark", without(speculators("dspark"), "sample_from_anchor"), "sample_from_anchor", False),
    ("dspark", deepspec(), "sample_from_anchor", True),
    ("dspark", without(deepspec(), "enable_confidence_head"), "confidence_head", False),
    ("speculators-dspark", without(speculators("dspark"), "enable_confidence_head"), "confidence_head", False),
    ("speculators-eagle3", without(speculators("eagle3"), "norm_before_residual"), "norm_before_residual", True),
]


@pytest.mark.parametrize(("layout", "config", "field", "value"), FIELDS)
def test_fields(layout: str, config: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(read(layout, config), field) == value
