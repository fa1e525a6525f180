"""How SGLang 0.5.23 reads a drafter's config: which class it builds, with which values, or why it stops.

Run: every case of ``tests/engines/cases.py`` and ``sglang_cases.py`` in the oracle test.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from convertkit.engines.config_checks import MODEL_TYPE, RENAMED_LAYERS, check_fields, check_layers, check_llama
from convertkit.engines.hf_fields import FIELDS
from convertkit.engines.model import Refused, Stop, Unknown, stop
from convertkit.engines.sglang_rope import check_rope
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
OTHER: Mapping[str, tuple[type, ...]] = {"attention_sink_bias": (bool,), "attention_value_scale": (int, float)}
"""Keys of ``dflash_config`` that lead to parts that are not described here, and what they may be."""


CLASS_NAME = re.compile(r"[A-Z][A-Za-z0-9_]+", re.ASCII)
"""What the name of every class looks like that SGLang or transformers registers."""
OTHER_TEXTS = ("llm_config", "language_config")
"""Keys that a model with several parts has in place of ``text_config``."""
PREFIXED = ("dspark_block_size", "dspark_markov_rank", "dspark_noise_token_id", "dspark_target_layer_ids")
"""Keys of DSpark drafts inside a target, which a DSpark draft may have too."""


def kind_of(config: Mapping[str, Any]) -> str:
    """The kind of class that a config leads to; empty if its architecture is not described."""
    names = config.get("architectures")
    return ENTRIES.get(names[0], "") if isinstance(names, list) and names and isinstance(names[0], str) else ""


def read_draft(config: Mapping[str, Any], target: Target) -> VllmDraft:
    """A flat config with the defaults of its transformers class. Raises Stop, or Unknown."""
    model_type = config.get("model_type")
    if not model_type:
        foreign = config.get("speculators_config") is not None or config.get("speculators_model_type") is not None
        rule = "sglang.speculators" if foreign else "sglang.model-type"
        message = "Unrecognized model. Should have a `model_type` key in its config.json."
        raise Stop(Refused("config", message, rule, key="model_type", foreign=foreign))
    if not MODEL_TYPE.fullmatch(str(model_type)):
        message = f"The checkpoint has model type `{model_type}` but Transformers does not recognize it"[:200]
        raise stop("config", message, "sglang.model-type", key="model_type")
    defaults = FLAT_DEFAULTS.get(str(model_type))
    values = _typed(config, str(model_type), defaults) if defaults is not None else dict(config)
    name = _architecture(config)
    if name not in ENTRIES or defaults is None:
        raise Unknown(f"the architecture {name} is not one that convertkit's tables of SGLang describe")
    draft = VllmDraft(ENTRIES[name], "", name, values, False, None, True, None)
    eagle = draft.kind.startswith("eagle3")
    captured = eagle_taps(draft, target.layers) if eagle else _taps(_checked(draft), target)
    check_built(draft)
    return VllmDraft(draft.kind, "", draft.architecture, draft.values, False, None, True, captured)


def _typed(config: Mapping[str, Any], model_type: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A config as transformers' typed class holds it, and what SGLang asks of its parts."""
    check_fields(config, FIELDS.get(model_type, {}), "sglang")
    values = with_defaults(config, defaults)
    check_layers(values, "sglang")
    if model_type == "llama":
        check_llama(values, "sglang")
    if isinstance(values.get("layer_types"), list):
        values["layer_types"] = [RENAMED_LAYERS.get(kind, kind) for kind in values["layer_types"]]
    _parts(config)
    return values


def _parts(config: Mapping[str, Any]) -> None:
    """A part for text inside a config, which is then taken for the model's."""
    if "thinker_config" in config:
        raise Unknown("a draft with a thinker_config is not one that convertkit's tables of SGLang describe")
    for key in ("text_config", *OTHER_TEXTS):
        part = config.get(key)
        whole = isinstance(part, Mapping) and {"num_attention_heads", "hidden_size"} <= part.keys()
        if key in config and not whole and (part is not None or key in ("text_config", "llm_config")):
            message = f"AssertionError: {key} has no num_attention_heads or no hidden_size"
            raise stop("config", message, "sglang.text-config", key=key)
        if part is not None:
            raise Unknown(f"a draft with a {key} is not one that convertkit's tables of SGLang describe")


def _architecture(config: Mapping[str, Any]) -> str:
    """The architecture that names the class; one that is not registered has none."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise stop("config", "'NoneType' object is not subscriptable", "sglang.entries", key="architectures")
    name = str(names[0])
    known = name in ENTRIES or name in OTHER_ENTRIES or config.get("auto_map")
    strange = any(word in name.lower() for word in DRAFTER_WORDS) or not CLASS_NAME.fullmatch(name)
    if not known and strange:
        message = f"Cannot find model module. '{name}' is not a registered model in the Transformers library"
        raise stop("create", message, "sglang.entries", key="architectures")
    return name


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


LEAST: Mapping[str, int] = {
    "num_hidden_layers": 1, "num_target_layers": 1, "block_size": 1, "mask_token_id": 0, "conv_kernel_size": 0,
    "conv_group_size": 0, "selector_rank": 0, "selector_top_k": 0,
}  # fmt: skip
"""The least value of what the DFlash family reads (``speculative/dflash_utils.py:588``)."""
ONLY_INSIDE = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


def _checked(draft: VllmDraft) -> VllmDraft:
    """What SGLang refuses of the keys of the DFlash family, before it looks at the target."""
    inner = draft.dflash
    for key, least in LEAST.items():
        found = inner.get(key) if key in ONLY_INSIDE else nested(draft, key)
        if isinstance(found, int) and found < least:
            message = f"DFLASH {key} must be {least} or above, got {found}."
            raise stop("config", message, "sglang.least", key=key)
    token = nested(draft, "mask_token")
    if token is not None and (not isinstance(token, str) or not token):
        message = f"DFLASH dflash_config.mask_token must be a non-empty string, got {token!r}."[:200]
        raise stop("config", message, "sglang.mask-token", key="mask_token")
    if nested(draft, "projector_type") == "domino":
        raise Unknown("'projector_type' leads to parts of SGLang that convertkit's tables do not describe")
    for key, kinds in OTHER.items():
        if key in inner and type(inner[key]) not in (*kinds, *((type(None),) if bool not in kinds else ())):
            message = f"DFLASH dflash_config.{key} must be {kinds[0].__name__}, got {inner[key]!r}"[:200]
            raise stop("config", message, "sglang.config-type", key=key)
        if inner.get(key):
            raise Unknown(f"'{key}' leads to parts of SGLang that convertkit's tables do not describe")
    if draft.get("use_gemma_norm") or draft.get("has_embed_tokens"):
        raise Unknown("a draft with Gemma norms or its own embedding is not one that convertkit's tables describe")
    bundled = next((key for key in PREFIXED if draft.get(key) is not None), None)
    if bundled is not None and draft.kind == "dspark":
        raise Unknown(f"a draft with {bundled} is not one that convertkit's tables of SGLang describe")
    scale = inner.get("output_multiplier", 1.0)
    if not isinstance(scale, int | float) or scale <= 0:
        message = "DFLASH output_multiplier must be positive."
        raise stop("config", message, "sglang.pairs", key="dflash_config.output_multiplier")
    for one, other in PAIRS:
        if bool(inner.get(one, 0)) != bool(inner.get(other, 0)):
            message = f"DFLASH needs {one} and {other} together"
            raise stop("config", message, "sglang.pairs", key=f"dflash_config.{one}")
    return draft


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
    stated, layers = taps_of(draft), draft.size("num_hidden_layers")
    if stated == ():
        raise stop("config", "DFLASH target_layer_ids must be non-empty.", "sglang.taps", key="target_layer_ids")
    _spreads("config", stated, target.layers, layers, target.known)
    if draft.kind == "dspark":
        _check_markov(draft)
    trained = nested(draft, "num_target_layers")
    own = trained if isinstance(trained, int) else layers if stated is None else max(stated) + 1
    _spreads("create", stated, own, layers)
    taps = stated if stated is not None else spread(target.layers, layers)
    return tuple(tap + 1 for tap in taps)


def _spreads(stage: str, stated: tuple[int, ...] | None, depth: int, layers: int, known: bool = True) -> None:
    """Taps against the number of layers that the target has, then against the one that the draft states
    (``models/dflash.py:750``)."""
    if stated is None and layers > 1 and depth < 4 and known:
        message = f"DFlash layer selection requires num_target_layers >= 4. Got num_target_layers={depth}."
        raise stop(stage, message, "sglang.taps", key="num_target_layers")
    outside = [tap for tap in stated or () if not 0 <= tap < depth]
    if outside and (known or outside[0] < 0):
        message = (
            f"DFLASH target_layer_ids contains an out-of-range layer id: {outside[0]} of a target with {depth} layers"
        )
        raise stop(stage, message, "sglang.taps", key="target_layer_ids")


def check_built(draft: VllmDraft) -> None:
    """Values of the layers that their classes refuse (``models/dflash.py:476``, ``llama.py:118``)."""
    eagle, act = draft.kind.startswith("eagle3"), draft.get("hidden_act")
    limits = (draft.get("swiglu_alpha"), draft.get("swiglu_limit"))
    if act != "silu" and (eagle or act != "swigluoai" or None in limits):
        message = f"Unsupported activation: {act}. " + ("Only silu is supported." if eagle else "")
        raise stop("create", message, "sglang.activation", key="hidden_act")
    if not eagle and draft.get("intermediate_size") == 0:
        message = "Invalid intermediate_size=0 for DFlash MLP."
        raise stop("create", message, "sglang.config-keys", key="intermediate_size")
    heads = draft.get("num_attention_heads")
    if heads == 0 or 0 in (draft.get("head_dim"), draft.head_dim):
        message = "ZeroDivisionError: there are no attention heads, or they are of no size"
        raise stop("create", message, "sglang.config-keys", key="num_attention_heads" if heads == 0 else "head_dim")
    if not eagle or draft.get("num_hidden_layers"):
        check_rope(draft.values, dflash=not eagle)
