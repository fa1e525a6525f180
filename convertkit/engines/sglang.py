"""How SGLang 0.5.23 reads drafters: flat configs only, never those of speculators.

Run: what the built model and its captured layers understand is in ``tests/engines/golden/sglang-0.5.23.json``.
Sources: ``srt/speculative/dflash_utils.py:588-760``, ``srt/models/dflash.py:157-285``, ``srt/models/dspark.py:482``,
``srt/speculative/dspark_components/dspark_config.py``, ``srt/models/llama_eagle3.py:130-210``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from convertkit.drafter import DrafterSpec
from convertkit.engines.reading import ORDER, Engine, Refusal, Serving
from convertkit.layouts.configs import AUX, DEEPSPEC, EAGLE3, ZLAB_DFLASH, ZLAB_DFLASH2, Reading
from convertkit.layouts.fields import Field, changed, look, moved
from convertkit.layouts.meaning import SLIDING, Rules

_PLACES: Mapping[str, tuple[str, ...]] = {
    "target_layers": ("dflash_config.num_target_layers", "num_target_layers"),
    "output_multiplier": ("dflash_config.output_multiplier",),
    "softcap": ("dflash_config.final_logit_softcapping",),
    "embedding_scale": (),
    "neox": ("rope_is_neox_style", "is_neox_style"),
    "draft_vocabulary": (),
    "target_hidden": (),
    "sample_from_anchor": (),
    "conv_kernel": ("dflash_config.conv_kernel_size",),
    "conv_group": ("dflash_config.conv_group_size",),
    "selector_rank": ("dflash_config.selector_rank",),
    "selector_top_k": ("dflash_config.selector_top_k",),
}


def _flat(reading: Reading) -> Reading:
    return replace(
        reading, fields=moved(reading.fields, **_PLACES), rules=Rules("zlab", whole_head=False, taps="spread")
    )


def _sliding_without_window(spec: DrafterSpec, config: Mapping[str, Any]) -> bool:
    types = look(config, "layer_types")
    windowed = look(config, "sliding_window") is not None and look(config, "use_sliding_window") is True
    return isinstance(types, list) and SLIDING in types and not windowed


def _reduced(spec: DrafterSpec, config: Mapping[str, Any]) -> bool:
    return spec.draft_vocabulary != spec.vocabulary


_WINDOW = Refusal("attention", _sliding_without_window, "sliding layers need 'use_sliding_window' and a window")
_VOCABULARY = Refusal("draft_vocabulary", _reduced, "the target's head is used; d2t and lm_head are skipped silently")
_RANK = Refusal("markov_rank", lambda spec, config: not spec.markov_rank, "a Markov head is required")
_KIND = Refusal(
    "markov_head",
    lambda spec, config: bool(spec.markov_rank) and look(config, "markov_head_type") is None,
    "'markov_head_type' is required",
)
_UNREAD = ("confidence_head", "confidence_with_markov")
"""The head is built whenever ``SGLANG_RAGGED_VERIFY_MODE`` is not ``static``, whatever the config says."""
_DSPARK: tuple[Field, ...] = changed(
    moved(
        tuple(field for field in DEEPSPEC.fields if field.here not in _UNREAD),
        **{key: _PLACES[key] for key in ("neox", "draft_vocabulary", "target_hidden")},
        taps=("dflash_config.target_layer_ids", "target_layer_ids"),
        block_size=("dflash_config.block_size", "block_size"),
        mask_token=("dflash_config.mask_token_id", "mask_token_id"),
    ),
    block_size=7,
)
_EAGLE_TAPS = Field("taps", (f"eagle_config.{AUX}",), "ids", "ids")
"""Outputs of layers, not inputs, and only there; without them 1, n / 2 - 1 and n - 4 are read."""
_EAGLE3 = tuple(
    _EAGLE_TAPS if field.here == "taps" else field
    for field in moved(
        EAGLE3.fields,
        norm_before_residual=(),
        norm_before_fc=("eagle_config.norm_before_fc", "norm_before_fc"),
        fc_norm=("fc_norm", "use_aux_norm"),
    )
)

SGLANG = Engine(
    "sglang",
    "0.5.23",
    {
        "dflash": Serving(_flat(ZLAB_DFLASH), (_WINDOW, ORDER, _VOCABULARY)),
        "dflash2": Serving(_flat(ZLAB_DFLASH2), (_WINDOW, ORDER, _VOCABULARY)),
        "dspark": Serving(
            replace(DEEPSPEC, fields=_DSPARK, rules=Rules("zlab", whole_head=False, taps="spread")),
            (_WINDOW, ORDER, _VOCABULARY, _RANK, _KIND),
        ),
        "eagle3": Serving(
            replace(
                EAGLE3,
                fields=_EAGLE3,
                rules=Rules("causal", whole_head=False),
            ),
            (ORDER,),
        ),
    },
    "has no loader for this format",
    {
        layout: f"reads no speculators config: convert it to {format_}"
        for layout, format_ in (
            ("speculators-dflash", "dflash"),
            ("speculators-dflash2", "dflash"),
            ("speculators-dspark", "dspark"),
            ("speculators-eagle3", "eagle3"),
        )
    },
)
