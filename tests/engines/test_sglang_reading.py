"""How we say SGLang 0.5.23 reads a drafter's config against what its built models understood."""

from __future__ import annotations

from typing import Any

import pytest

from convertkit.drafter import DrafterSpec
from convertkit.engines.reading import understand
from convertkit.engines.sglang import SGLANG
from convertkit.formats import FORMATS
from convertkit.layouts.reading import read_spec, with_tensors
from convertkit.layouts.tables import LAYOUTS_BY_NAME
from tests.engines.cases import build
from tests.engines.drafters import HD, KINDS, N
from tests.engines.test_sglang_load import CASES, EVERY, golden

READ = [
    name
    for name in CASES
    if golden(name)["loads"] and "reading" in golden(name) and KINDS[EVERY[name].kind][0] in SGLANG.formats
]
HEADS = {"VanillaMarkov": "vanilla", "GatedMarkovHead": "gated", "RNNHead": "rnn"}
EAGLE_DEFAULT = (1, N // 2 - 1, N - 4)
"""The outputs that an EAGLE-3 draft reads where its config names none that SGLang finds."""

CONFIG = {
    "conv_kernel": "conv_kernel_size", "conv_group": "conv_group_size", "selector_rank": "selector_rank",
    "selector_top_k": "selector_top_k", "output_multiplier": "output_multiplier", "softcap": "final_logit_softcapping",
    "mask_token": "mask_token_id",
}  # fmt: skip


def spec_of(name: str) -> DrafterSpec:
    made = build(EVERY[name])
    serving = SGLANG.formats[KINDS[EVERY[name].kind][0]]
    return with_tensors(read_spec(serving.reading, made.config)[0], made.specs)


def test_enough_is_read() -> None:
    assert {EVERY[name].kind for name in READ} == {"dflash", "dflash2", "dspark", "eagle3"}
    assert len(READ) > 180


@pytest.mark.parametrize("name", READ)
def test_attention_taps_and_rope(name: str) -> None:
    spec, run = spec_of(name), golden(name)["reading"]
    windows = [None if size < 0 else size + 1 for size in run["windows"]]
    causal = [kind == "decoder" for kind in run["attention"]]
    assert [(layer.causal, layer.window) for layer in spec.attention] == list(zip(causal, windows, strict=True))
    assert (EAGLE_DEFAULT if spec.taps is None else spec.taps) == tuple(layer - 1 for layer in run["captured"])
    rope = spec.rope
    assert rope is not None
    assert (rope.theta, rope.neox) == (run["rope"]["base"], run["rope"]["neox"])
    assert (int(rope.fraction * HD), rope.kind == "default") == (
        run["rope"]["rotary_dim"],
        run["rope"]["class"] == "RotaryEmbedding",
    )


@pytest.mark.parametrize("name", [name for name in READ if "config" in golden(name)["reading"]])
def test_block_and_heads(name: str) -> None:
    spec, run = spec_of(name), golden(name)["reading"]
    told: dict[str, Any] = run["config"]
    for ours, theirs in CONFIG.items():
        assert (getattr(spec, ours) or None) == (told[theirs] or None), ours
    if "gamma" in run:
        assert spec.block_size == run["draft_tokens"] - 1
        assert (spec.markov_head, spec.sample_from_anchor) == (HEADS[run["markov_head"]], run["sample_from_anchor"])
    else:
        assert (spec.block_size or 16) == run["draft_tokens"]


@pytest.mark.parametrize("name", [name for name in READ if "norms" in golden(name)["reading"]])
def test_norms_of_eagle(name: str) -> None:
    spec, norms = spec_of(name), golden(name)["reading"]["norms"]
    assert (spec.norm_before_fc, spec.fc_norm, spec.norm_output) == (norms["before_fc"], norms["fc"], norms["output"])


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ("speculators-dflash2", "reads no speculators config: convert it to dflash"),
        ("speculators-eagle3", "reads no speculators config: convert it to eagle3"),
        ("speculators-peagle", "has no loader for this format"),
        ("peagle", "has no loader for this format"),
        ("eagle3", ""),
    ],
)
def test_what_is_said_of_a_format_that_is_not_read(layout: str, why: str) -> None:
    made = build(EVERY["eagle3, whole"])
    row = LAYOUTS_BY_NAME[layout]
    assert understand(SGLANG, row, made.config, made.specs, spec_of("eagle3, whole")).why == why


def test_what_helps_is_a_format_that_convertkit_writes() -> None:
    for layout, why in SGLANG.hints.items():
        assert layout not in SGLANG.formats
        assert why.rpartition(" ")[2] in FORMATS
