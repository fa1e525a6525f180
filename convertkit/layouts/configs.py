"""Config fields of every drafter format, as its own package reads them: one table per format.

Sources: z-lab dflash 0.1.0 (``model.py:127, 363, 560``), speculators 0.9.0 (``config.py``, ``models/*/config.py``),
DeepSpec afdfa7c (``modeling/dspark``), SpecForge 0.2.0 (``modeling/draft``), transformers 5.19 (defaults of
``Qwen3Config``), and for EAGLE-3 the readers in vLLM 0.33 (``llama_eagle3.py``). Engines' readings that differ are in
``engines``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from convertkit.layouts.fields import BY_BACKBONE, Field, changed, look, moved
from convertkit.layouts.meaning import Rules

NESTED = "transformer_layer_config."
PROPOSAL = "speculators_config.proposal_methods.0.speculative_tokens"


@dataclass(frozen=True, slots=True)
class Reading:
    """How one reader understands one format."""

    algorithm: str
    fields: tuple[Field, ...]
    rules: Rules


def transformer(prefix: str, *, head_dim: object = BY_BACKBONE) -> tuple[Field, ...]:
    """Fields of the draft's own transformer, at the top level or below ``prefix``."""
    rows = (
        Field("backbone", ("model_type",), "word"),
        Field("layers", ("num_hidden_layers",), "count"),
        Field("hidden", ("hidden_size",), "count"),
        Field("intermediate", ("intermediate_size",), "count"),
        Field("heads", ("num_attention_heads",), "count"),
        Field("kv_heads", ("num_key_value_heads",), "count", default="=heads"),
        Field("head_dim", ("head_dim",), "count", default=head_dim),
        Field("vocabulary", ("vocab_size",), "count"),
        Field("attention_bias", ("attention_bias",), "flag", default=False),
        Field("eps", ("rms_norm_eps",), "number", default=1e-6),
        Field("activation", ("hidden_act",), "word", default="silu"),
        Field("layer_types", ("layer_types",), "words"),
        Field("sliding_window", ("sliding_window",)),
        Field("use_sliding_window", ("use_sliding_window",), "flag"),
        Field("max_window_layers", ("max_window_layers",)),
        Field("is_causal", ("is_causal",), "flag"),
        Field("rope_parameters", ("rope_parameters",), "object"),
        Field("rope_theta", ("rope_theta",), "number"),
        Field("rope_scaling", ("rope_scaling",), "object"),
        Field("partial_rotary", ("partial_rotary_factor",), "number"),
        Field("neox", ("is_neox_style", "rope_is_neox_style"), "flag"),
    )
    return tuple(
        Field(row.here, tuple(prefix + place for place in row.there), row.kind, row.via, row.default) for row in rows
    )


def either(here: str, key: str, kind: str = "whole", via: str = "same", default: object = None) -> Field:
    """z-lab looks into ``dflash_config`` first, then at the top level. It writes, and others read, only the former."""
    return Field(here, (f"dflash_config.{key}", key), kind, via, default, everywhere=False)


_ZLAB = (
    *transformer(""),
    Field("target_hidden", ("target_hidden_size",), "count", default="=hidden"),
    Field("draft_vocabulary", ("draft_vocab_size",), "count", default="=vocabulary"),
    Field("target_layers", ("num_target_layers",), "count"),
    either("taps", "target_layer_ids", "ids", "ids"),
    either("mask_token", "mask_token_id"),
    Field("block_size", ("dflash_config.block_size", "block_size"), "count", default=16),
    Field("sample_from_anchor", ("dflash_config.sample_from_anchor",), "flag", default=False),
    Field("causal", ("dflash_config.causal",), "flag"),
    either("embedding_scale", "input_embedding_scale", "number", default=1.0),
    either("output_multiplier", "output_multiplier", "number", default=1.0),
    either("softcap", "final_logit_softcapping", "number"),
)
ZLAB_DFLASH = Reading("dflash", _ZLAB, Rules("zlab", taps="spread"))
ZLAB_DFLASH2 = Reading(
    "dflash2",
    (
        *_ZLAB,
        either("conv_kernel", "conv_kernel_size", "count"),
        either("conv_group", "conv_group_size", "count"),
        either("selector_rank", "selector_rank", "count"),
        either("selector_top_k", "selector_top_k", "count"),
    ),
    ZLAB_DFLASH.rules,
)

_MARKOV = (
    Field("markov_rank", ("markov_rank",), default=256),
    Field("markov_head", ("markov_head_type",), "word", default="vanilla"),
    Field("confidence_head", ("enable_confidence_head",), "flag", default=True),
    Field("confidence_with_markov", ("confidence_head_with_markov",), "flag", default=True),
)
DEEPSPEC = Reading(
    "dspark",
    (
        *transformer(""),
        Field("target_hidden", ("target_hidden_size",), "count", default="=hidden"),
        Field("draft_vocabulary", ("draft_vocab_size",), "count", default="=vocabulary"),
        Field("target_layers", ("num_target_layers",), "count"),
        Field("taps", ("target_layer_ids",), "ids", "ids"),
        Field("mask_token", ("mask_token_id",)),
        Field("block_size", ("block_size",), "count"),
        Field("sample_from_anchor", ("sample_from_anchor",), "flag", default=True),
        *changed(_MARKOV, markov_rank=None, confidence_head=False, confidence_with_markov=False),
    ),
    Rules("zlab"),
)
_SECTION = {
    key: (f"dflash_config.{place}", place)
    for key, place in (
        ("taps", "target_layer_ids"),
        ("mask_token", "mask_token_id"),
        ("sample_from_anchor", "sample_from_anchor"),
        ("markov_rank", "markov_rank"),
        ("markov_head", "markov_head_type"),
        ("confidence_head", "enable_confidence_head"),
        ("confidence_with_markov", "confidence_head_with_markov"),
    )
}
SPECFORGE_DSPARK = Reading("dspark", moved(DEEPSPEC.fields, **_SECTION), Rules("zlab", taps="spread"))
"""A DSpark that SpecForge trained: DeepSpec's tensors, but the keys of its heads are in ``dflash_config``
(``dspark.py:252-360``), where vLLM and SGLang do not look for them. Labels begin behind the anchor
(``dflash_family_model.py:764``), so it samples from the anchor."""

_SPECULATORS = (
    *transformer(NESTED),
    Field("target_hidden", ("target_hidden_size",), "count", default="=hidden"),
    Field("draft_vocabulary", ("draft_vocab_size",), "count", default=32000),
    Field("target_layers", (NESTED + "num_target_layers",), "count"),
    Field("draft_tokens", (PROPOSAL,), "count"),
)
_SPECULATORS_BLOCK = (
    *_SPECULATORS,
    Field("taps", ("aux_hidden_state_layer_ids",), "ids", "plus_one"),
    Field("mask_token", ("mask_token_id",)),
    Field("block_size", ("block_size",), "count", default=8),
    Field("non_causal", ("sliding_window_non_causal",), "flag", default=False),
    Field("sample_from_anchor", ("sample_from_anchor",), "flag", default=False),
)
SPECULATORS_DFLASH = Reading("dflash", _SPECULATORS_BLOCK, Rules("speculators"))
SPECULATORS_DFLASH2 = Reading(
    "dflash2",
    (
        *changed(_SPECULATORS_BLOCK, non_causal=True),
        Field("conv_kernel", ("conv_kernel_size",), "count", default=2),
        Field("conv_group", ("conv_group_size",), "count", default=16),
        Field("selector_rank", ("selector_rank",), "count", default=256),
        Field("selector_top_k", ("selector_top_k",), "count", default=16),
    ),
    Rules("speculators"),
)
SPECULATORS_DSPARK = Reading(
    "dspark", (*changed(_SPECULATORS_BLOCK, sample_from_anchor=True), *_MARKOV), Rules("speculators")
)

_NORMS = (
    Field("norm_before_residual", ("norm_before_residual",), "flag", default=False),
    Field("norm_before_fc", ("norm_before_fc",), "flag", default=False),
    Field("fc_norm", ("fc_norm",), "flag", default=False),
    Field("norm_output", ("norm_output",), "flag", default=False),
)
AUX = "eagle_aux_hidden_state_layer_ids"
SPECULATORS_EAGLE3 = Reading(
    "eagle3", (*_SPECULATORS, Field("taps", (AUX,), "ids", "plus_one"), *_NORMS), Rules("causal")
)
SPECULATORS_PEAGLE = Reading(
    "peagle", (*SPECULATORS_EAGLE3.fields, Field("mask_token", ("mask_token_id",))), Rules("causal")
)
SPECULATORS_MTP = Reading("mtp", changed(_SPECULATORS, draft_vocabulary="=vocabulary"), Rules("causal"))
EAGLE3 = Reading(
    "eagle3",
    (
        *transformer("", head_dim="=hidden/heads"),
        Field("target_hidden", ("target_hidden_size",), "count", default="=hidden"),
        Field("draft_vocabulary", ("draft_vocab_size",), "count", default="=vocabulary"),
        Field("target_layers", ("num_target_layers",), "count"),
        Field("taps", (f"eagle_config.{AUX}", AUX), "ids", "plus_one"),
        *_NORMS,
    ),
    Rules("causal"),
)
PEAGLE = Reading("peagle", (*EAGLE3.fields, Field("mask_token", ("mask_token_id",))), Rules("causal"))
"""SpecForge 0.2.0 (``peagle.py:171-233``)."""

READINGS: Mapping[str, Reading] = {
    "dflash": ZLAB_DFLASH,
    "dflash2": ZLAB_DFLASH2,
    "dspark": DEEPSPEC,
    "eagle3": EAGLE3,
    "peagle": PEAGLE,
    "speculators-dflash": SPECULATORS_DFLASH,
    "speculators-dflash2": SPECULATORS_DFLASH2,
    "speculators-dspark": SPECULATORS_DSPARK,
    "speculators-eagle3": SPECULATORS_EAGLE3,
    "speculators-peagle": SPECULATORS_PEAGLE,
    "speculators-mtp": SPECULATORS_MTP,
}
"""Layout name to the reading of the package that the format comes from."""


PROJECTOR = "dflash_config.projector_type"
"""SpecForge's name of the head over a DFlash backbone."""

SPECFORGE: Mapping[tuple[str, str], Reading] = {("dspark", "dspark"): SPECFORGE_DSPARK}
"""Layout and ``projector_type`` to the reading of SpecForge, where it is not that of the layout."""


def reading_of(layout: str, config: Mapping[str, object]) -> Reading | None:
    """How the package that a config comes from reads it, None if the layout has no table of fields."""
    return SPECFORGE.get((layout, str(look(config, PROJECTOR)))) or READINGS.get(layout)
