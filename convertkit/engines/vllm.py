"""How vLLM 0.33.0 reads drafters.

Sources: ``transformers_utils/configs/speculators/algos.py``, ``model_executor/models/qwen3_dflash.py:56-164``,
``qwen3_dflash2.py:376``, ``qwen3_dspark.py:196-262``, ``llama_eagle3.py:85-252``,
``v1/worker/gpu/spec_decode/eagle/eagle3_utils.py:113``, ``spec_decode/utils.py:92``, ``dflash/speculator.py:77``.
Speculators configs are taken as raw dicts, without the defaults of a transformers class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from convertkit.drafter import DrafterSpec
from convertkit.engines.reading import ORDER, Engine, Refusal, Serving
from convertkit.layouts.configs import (
    AUX,
    DEEPSPEC,
    EAGLE3,
    NESTED,
    SPECULATORS_DFLASH,
    SPECULATORS_DFLASH2,
    SPECULATORS_DSPARK,
    SPECULATORS_EAGLE3,
    SPECULATORS_PEAGLE,
    ZLAB_DFLASH,
    ZLAB_DFLASH2,
    Reading,
)
from convertkit.layouts.fields import Field, changed, look, moved
from convertkit.layouts.meaning import SLIDING, Rules

RAW_THETA = 1_000_000.0
"""``set_default_rope_theta`` of the DFlash models; Llama's EAGLE-3 takes transformers' default."""

FLAT = Rules("vllm flat", whole_head=False)
RAW = Rules("vllm nested", theta=RAW_THETA, whole_head=False)

_SWA = (
    Field("use_swa", ("dflash_config.use_swa",), "flag"),
    Field("swa_window", ("dflash_config.swa_window_size",)),
)
_AUX_FIRST = Field("aux_taps", (AUX,), "ids", "plus_one")
"""Believed before ``target_layer_ids`` (``eagle3_utils.py:118``)."""

_NO_NEOX = {"neox": ("is_neox_style",)}


def _flat(reading: Reading, **places: tuple[str, ...]) -> Reading:
    """A flat config; the block size is never read, ``num_speculative_tokens`` must be given."""
    table = changed(moved(reading.fields, **_NO_NEOX, block_size=(), **places), block_size=None)
    return replace(reading, fields=(*table, *_SWA, _AUX_FIRST), rules=FLAT)


def _raw(reading: Reading, rules: Rules = RAW, **defaults: Any) -> Reading:
    nested = {"head_dim": "=hidden/heads", **defaults}
    table = moved(changed(reading.fields, **nested), neox=(NESTED + "is_neox_style",))
    return replace(reading, fields=table, rules=rules)


def _no_scales(reading: Reading) -> Reading:
    """The readers that ignore the scale factors of z-lab."""
    return replace(reading, fields=moved(reading.fields, embedding_scale=(), output_multiplier=(), softcap=()))


def _sliding_without_window(spec: DrafterSpec, config: Mapping[str, Any]) -> bool:
    types = look(config, "layer_types")
    windowed = look(config, "sliding_window") is not None and look(config, "use_sliding_window") is True
    return isinstance(types, list) and SLIDING in types and not windowed


def _absent(*places: str) -> Any:
    return lambda spec, config: all(look(config, place) is None for place in places)


def _three_taps(spec: DrafterSpec, config: Mapping[str, Any]) -> bool:
    """A Llama-shaped EAGLE-3 counts its taps by these keys only, else there are three."""
    known = ("num_aux_hidden_states", f"eagle_config.{AUX}")
    stated = any(look(config, place) is not None for key in known for place in (key, NESTED + key))
    return spec.backbone != "qwen3" and spec.taps is not None and len(spec.taps) != 3 and not stated


_WINDOW = Refusal("attention", _sliding_without_window, "sliding layers need 'use_sliding_window' and a window")
_TAPS = Refusal("taps", _absent("dflash_config.target_layer_ids", AUX), "taps the target's default layers instead")
_NO_IDS = Refusal("taps", _absent("aux_hidden_state_layer_ids"), "'aux_hidden_state_layer_ids' is required")
_NO_MASK = Refusal("mask_token", _absent("mask_token_id"), "'mask_token_id' is required")
_ANCHOR = Refusal("sample_from_anchor", lambda spec, config: spec.sample_from_anchor, "DFlash cannot do that")
_MARKOV = Refusal(
    "markov_head", lambda spec, config: spec.markov_head not in (None, "vanilla"), "only vanilla Markov heads load"
)
_THREE = Refusal(
    "taps", _three_taps, "a Llama-shaped EAGLE-3 reads three layers unless 'num_aux_hidden_states' says so"
)
_LABEL = Refusal(
    "backbone",
    lambda spec, config: spec.backbone == "qwen3" and "Llama" in str(look(config, "architectures.0")),
    "the architecture's name chooses Llama layers, which have no norms of heads",
)
_FC_NORM = Refusal("fc_norm", lambda spec, config: spec.fc_norm, "the flag is not passed on for P-EAGLE")
_MAP = Refusal(
    "draft_vocabulary",
    lambda spec, config: spec.draft_vocabulary != spec.vocabulary and spec.vocabulary_map is None,
    "a reduced vocabulary without d2t: draft ids are taken for target ids",
)
_HEAD = Refusal(
    "draft_vocabulary",
    lambda spec, config: spec.draft_vocabulary != spec.vocabulary and "lm_head.weight" in spec.borrowed,
    "a reduced vocabulary without a head of its own: the target's head is cut to its first rows",
)
_REDUCED = (_MAP, _HEAD)
_TOKENS = {"num_speculative_tokens": "draft_tokens"}

_PLAIN_DFLASH = _no_scales(_flat(ZLAB_DFLASH, taps=("dflash_config.target_layer_ids",)))
_INNER = {
    "taps": ("dflash_config.target_layer_ids",),
    "conv_kernel": ("dflash_config.conv_kernel_size",),
    "conv_group": ("dflash_config.conv_group_size",),
    "selector_rank": ("dflash_config.selector_rank",),
    "selector_top_k": ("dflash_config.selector_top_k",),
    "embedding_scale": ("dflash_config.input_embedding_scale",),
    "output_multiplier": ("dflash_config.output_multiplier",),
    "softcap": ("dflash_config.final_logit_softcapping",),
}
_NATIVE = replace(
    DEEPSPEC,
    fields=(
        *changed(
            moved(DEEPSPEC.fields, **_NO_NEOX),
            confidence_head=False,
            confidence_with_markov=False,
            markov_head="vanilla",
        ),
        _AUX_FIRST,
    ),
    rules=FLAT,
)
_EAGLE_RULES = Rules("causal", whole_head=False)
_PEAGLE_FIELDS = moved(SPECULATORS_PEAGLE.fields, fc_norm=(NESTED + "fc_norm",), norm_output=(NESTED + "norm_output",))

VLLM = Engine(
    "vllm",
    "0.33.0",
    {
        "dflash": Serving(_PLAIN_DFLASH, (_WINDOW, _TAPS, ORDER, _ANCHOR, *_REDUCED), _TOKENS),
        "dflash2": Serving(_flat(ZLAB_DFLASH2, **_INNER), (_WINDOW, _TAPS, ORDER, _ANCHOR), _TOKENS),
        "dspark": Serving(_NATIVE, (_WINDOW, ORDER, _MARKOV, *_REDUCED)),
        "eagle3": Serving(replace(EAGLE3, rules=_EAGLE_RULES), (_LABEL, _THREE, ORDER, *_REDUCED), _TOKENS),
        "speculators-dflash": Serving(
            _raw(SPECULATORS_DFLASH, draft_vocabulary="=vocabulary", non_causal=True, block_size=None),
            (_NO_IDS, ORDER, _NO_MASK, _ANCHOR, *_REDUCED),
        ),
        "speculators-dflash2": Serving(
            _raw(SPECULATORS_DFLASH2, draft_vocabulary="=vocabulary", non_causal=True, block_size=None),
            (_NO_IDS, ORDER, _NO_MASK, _ANCHOR),
        ),
        "speculators-dspark": Serving(
            _raw(
                replace(SPECULATORS_DSPARK, fields=moved(SPECULATORS_DSPARK.fields, non_causal=())),
                draft_vocabulary="=vocabulary",
                non_causal=None,
                block_size=None,
                sample_from_anchor=False,
                confidence_head=False,
                confidence_with_markov=False,
            ),
            (_NO_IDS, ORDER, _NO_MASK, _MARKOV, *_REDUCED),
        ),
        "speculators-eagle3": Serving(
            _raw(SPECULATORS_EAGLE3, _EAGLE_RULES, draft_vocabulary="=vocabulary", norm_before_residual=True),
            (_THREE, ORDER, *_REDUCED),
        ),
        "speculators-peagle": Serving(
            _raw(replace(SPECULATORS_PEAGLE, fields=_PEAGLE_FIELDS), _EAGLE_RULES, draft_vocabulary="=vocabulary"),
            (_NO_MASK, _THREE, ORDER, _FC_NORM, *_REDUCED),
        ),
    },
    "has no loader for this format",
)
