"""How SGLang 0.5.23 reads a drafter's config: which class it builds, with which values, or why it stops.

Run: every case of ``tests/engines/cases.py`` and ``sglang_cases.py`` in the oracle test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convertkit.engines.model import Refused, Stop, Unknown, stop
from convertkit.engines.vllm_draft import FLAT_DEFAULTS, VllmDraft, with_defaults
from convertkit.engines.vllm_params import Target

ENTRIES: Mapping[str, str] = {
    "DFlashDraftModel": "dflash",
    "DFlash2DraftModel": "dflash2",
    "Qwen3DSparkModel": "dspark",
    "DSparkDraftModel": "dspark",
    "LingDSparkModel": "dspark",
    "MuseGlimmerAssistantModel": "dflash",
    "DFlash2BeamDraftModel": "dflash2",
    "MiniMaxDFlash2DraftModel": "dflash2",
    "LlamaForCausalLMEagle3": "eagle3-llama",
}
"""Architectures that lead to a class described here (``models/dflash.py:1317``, ``dspark.py:995``)."""

OTHER_ENTRIES = frozenset(
    {"DFlashLagunaForCausalLM", "DSparkMiniMaxDraftModel", "DeepseekV4ForCausalLMDSpark", "Eagle3DeepseekV2ForCausalLM",
     "Lfm2DSparkDraftModel", "LiLiCorrDraftModel", "LlamaForCausalLMEagle", "MistralForCausalLMEagle",
     "MistralLarge3ForCausalLMEagle", "Qwen2ForCausalLMEagle", "LongcatFlashForCausalLM", "MiMoV2FlashForCausalLM",
     "LongcatFlashForCausalLMNextN"}
)  # fmt: skip
"""Architectures of drafters, and others with like names, that SGLang registers and these tables do not describe."""

DRAFTER_WORDS = ("dflash", "dspark", "eagle3", "specul")
"""An architecture with such a name that is not registered has no class, in transformers neither."""

PAIRS = (("conv_kernel_size", "conv_group_size"), ("selector_rank", "selector_top_k"))
OTHER = ("projector_type", "attention_sink_bias", "attention_value_scale")
"""Keys of ``dflash_config`` that lead to parts that are not described here."""


def read_draft(config: Mapping[str, Any], target: Target) -> VllmDraft:
    """A flat config with the defaults of its transformers class. Raises Stop, or Unknown."""
    if not config.get("model_type"):
        foreign = config.get("speculators_config") is not None or config.get("speculators_model_type") is not None
        rule = "sglang.speculators" if foreign else "sglang.model-type"
        message = "Unrecognized model. Should have a `model_type` key in its config.json."
        raise Stop(Refused("config", message, rule, key="model_type", foreign=foreign))
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise stop("config", "'NoneType' object is not subscriptable", "sglang.entries", key="architectures")
    name = str(names[0])
    defaults = FLAT_DEFAULTS.get(str(config.get("model_type")))
    unregistered = name not in ENTRIES and name not in OTHER_ENTRIES and not config.get("auto_map")
    if unregistered and any(word in name.lower() for word in DRAFTER_WORDS):
        message = f"Cannot find model module. '{name}' is not a registered model in the Transformers library"
        raise stop("create", message, "sglang.entries", key="architectures")
    if name not in ENTRIES or defaults is None:
        raise Unknown(f"the architecture {name} is not one that convertkit's tables of SGLang describe")
    values = with_defaults(config, defaults)
    draft = VllmDraft(ENTRIES[name], "", name, values, False, None, True, None)
    _layer_types(draft)
    if draft.kind.startswith("eagle3"):
        return _with_taps(draft, eagle_taps(draft, target.layers))
    _check_dflash(draft)
    return _with_taps(draft, _taps(draft, target))


def nested(draft: VllmDraft, key: str) -> Any:
    """A key of ``dflash_config``, or of the top where it is not there."""
    return draft.dflash[key] if key in draft.dflash else draft.get(key)


def taps_of(draft: VllmDraft) -> tuple[int, ...] | None:
    """Layers whose output is read, as stated."""
    stated = nested(draft, "target_layer_ids")
    return tuple(stated) if isinstance(stated, list) else None


def spread(target_layers: int, layers: int) -> tuple[int, ...]:
    """Taps where none are stated (``dflash_utils.py:348``)."""
    if layers == 1:
        return (target_layers // 2,)
    span = target_layers - 4
    return tuple(round(1 + index * span / (layers - 1)) for index in range(layers))


def eagle_taps(draft: VllmDraft, target_layers: int) -> tuple[int, ...]:
    """Inputs of target layers that an EAGLE-3 draft reads. Stated ids count outputs (``models/qwen3.py:788``)."""
    stated = draft.eagle.get("eagle_aux_hidden_state_layer_ids")
    if isinstance(stated, list):
        return tuple(item + 1 for item in stated)
    return (2, target_layers // 2, target_layers - 3)


def markov_rank(draft: VllmDraft) -> int:
    inner = draft.get("dspark_config")
    merged = {**draft.dflash, **(inner if isinstance(inner, Mapping) else {})}
    value = merged["markov_rank"] if "markov_rank" in merged else draft.get("markov_rank", 0)
    return value if isinstance(value, int) else 0


def _with_taps(draft: VllmDraft, captured: tuple[int, ...]) -> VllmDraft:
    return VllmDraft(draft.kind, "", draft.architecture, draft.values, False, None, True, captured)


def _layer_types(draft: VllmDraft) -> None:
    types, count = draft.get("layer_types"), draft.get("num_hidden_layers")
    if isinstance(types, list) and isinstance(count, int) and len(types) != count:
        message = f"`num_hidden_layers` ({count}) must be equal to the number of `layer_types` ({len(types)})"
        raise stop("config", message, "sglang.layer-types", key="layer_types")


def _check_dflash(draft: VllmDraft) -> None:
    inner = draft.dflash
    for key in OTHER:
        if inner.get(key):
            raise Unknown(f"'{key}' leads to parts of SGLang that convertkit's tables do not describe")
    if draft.get("use_gemma_norm") or draft.get("has_embed_tokens"):
        raise Unknown("a draft with Gemma norms or its own embedding is not one that convertkit's tables describe")
    scale = inner.get("output_multiplier", 1.0)
    if not isinstance(scale, int | float) or scale <= 0:
        message = "DFLASH output_multiplier must be positive."
        raise stop("config", message, "sglang.pairs", key="dflash_config.output_multiplier")
    for one, other in PAIRS:
        if bool(inner.get(one, 0)) != bool(inner.get(other, 0)):
            message = f"DFLASH needs {one} and {other} together"
            raise stop("config", message, "sglang.pairs", key=f"dflash_config.{one}")


MARKOV_HEADS = ("vanilla", "gated", "rnn")


def _check_markov(draft: VllmDraft) -> None:
    """``speculative/dspark_components/dspark_config.py:260``."""
    if markov_rank(draft) <= 0:
        message = "DSPARK requires markov_rank > 0 in the draft config, got markov_rank=0."
        raise stop("config", message, "sglang.markov", key="markov_rank")
    kind = nested(draft, "markov_head_type")
    if kind is None:
        message = "DSpark requires markov_head_type when markov_rank > 0, got None."
        raise stop("config", message, "sglang.markov", key="markov_head_type")
    if str(kind).lower() not in MARKOV_HEADS:
        message = f"Unsupported DSpark markov_head_type={kind!r}. Supported: {MARKOV_HEADS}."
        raise stop("config", message, "sglang.markov", key="markov_head_type")


def _taps(draft: VllmDraft, target: Target) -> tuple[int, ...]:
    """Inputs of target layers that are captured: one above the stated outputs."""
    stated = taps_of(draft)
    taps = stated if stated is not None else spread(target.layers, draft.size("num_hidden_layers"))
    outside = [tap for tap in taps if not 0 <= tap < target.layers]
    if stated is not None and outside and target.known:
        message = "DFLASH target_layer_ids contains an out-of-range layer id: "
        message += f"{outside[0]} of a target with {target.layers} layers"
        raise stop("config", message, "sglang.taps", key="target_layer_ids")
    if draft.kind == "dspark":
        _check_markov(draft)
    return tuple(tap + 1 for tap in taps)
