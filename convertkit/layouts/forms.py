"""Write a drafter's config in another format: the transformer's fields are carried, the others come from the spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from convertkit.drafter import FIELDS, DrafterSpec
from convertkit.layouts.configs import NESTED, PROJECTOR, READINGS, reading_of, transformer
from convertkit.layouts.fields import write_values
from convertkit.layouts.meaning import FULL, SLIDING, causality, layer_types, per_layer_type, window_of

SPECULATORS_VERSION = "0.9.0"
"""The release whose format is written."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a format's config is beside its fields: class name, and for speculators the name of the algorithm."""

    architecture: str
    speculators: str | None = None


FORMS: Mapping[str, Form] = {
    "dflash": Form("DFlashDraftModel"),
    "dflash2": Form("DFlash2DraftModel"),
    "dspark": Form("Qwen3DSparkModel"),
    "eagle3": Form("LlamaForCausalLMEagle3"),
    "speculators-dflash": Form("DFlashDraftModel", "dflash"),
    "speculators-dflash2": Form("DFlash2DraftModel", "dflash2"),
    "speculators-dspark": Form("DSparkDraftModel", "dspark"),
    "speculators-eagle3": Form("Eagle3DraftModel", "eagle3"),
}
"""Formats that convertkit writes. The class names are those that the packages save (DeepSpec and vLLM 0.33 call
DSpark ``Qwen3DSparkModel``; vLLM and SGLang call a Llama-shaped EAGLE-3 ``LlamaForCausalLMEagle3``)."""

ANCHORS = 512
"""Blocks per training sample that DeepSpec's class insists on knowing; speculators' default. Engines ignore it."""

QWEN_EAGLE = "Eagle3Qwen3ForCausalLM"
"""What vLLM 0.33 calls an EAGLE-3 whose layers are Qwen3's."""

OWN_KEYS = frozenset(
    (
        "architectures",
        "auto_map",
        "quantization_config",
        "compression_config",
        "dflash_config",
        "eagle_config",
        "speculators_config",
        "speculators_model_type",
        "speculators_version",
        "transformer_layer_config",
        "tie_word_embeddings",
        "dtype",
        "torch_dtype",
        "has_no_defaults_at_init",
    )
)
"""Keys of a whole config that are not the transformer's; each format writes its own."""

_CARRIED = frozenset(row.here for row in transformer(""))
"""Fields of the transformer: they stay where its config goes."""

REWRITTEN = (
    "backbone",
    "kv_heads",
    "head_dim",
    "attention_bias",
    "eps",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "rope_parameters",
    "rope_theta",
)
"""Fields of the transformer that are always written, because readers differ when they are absent."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A source config in parts: the transformer's keys, keys of the whole that nothing knows, and those that are
    lost because the section they lie in does not exist in the other format."""

    body: Mapping[str, Any]
    rest: Mapping[str, Any]
    lost: Mapping[str, Any]


def parts_of(layout: str, config: Mapping[str, Any]) -> Carried:
    """Take a config apart. ``lost`` holds unknown keys of ``dflash_config`` and ``eagle_config``, by dotted name."""
    reading = reading_of(layout, config)
    assert reading is not None  # every format that is converted has a table
    own = {place for row in reading.fields if row.here not in _CARRIED for place in row.there}
    if FORMS[layout].speculators is None:
        body = {key: value for key, value in config.items() if key not in OWN_KEYS and key not in own}
        body |= {key: config[key] for key in ("dtype", "torch_dtype") if key in config}
        rest = {key: body.pop(key) for key in WHOLE if key in body}
        return Carried(body, rest, _inner_rest(config, own))
    nested = config.get("transformer_layer_config")
    body = dict(nested) if isinstance(nested, Mapping) else {}
    body = {k: v for k, v in body.items() if k not in ("quantization_config", "dflash_config")}
    body = {k: v for k, v in body.items() if NESTED + k not in own}
    rest = {key: value for key, value in config.items() if key not in OWN_KEYS and key not in own}
    for key in ("dtype", "torch_dtype"):
        if key in config:
            body.setdefault(key, config[key])
    return Carried(body, {key: value for key, value in rest.items() if key not in HF_NOISE}, {})


WHOLE = ("transformers_version",)
"""Keys that stay at the top in every format."""

HF_NOISE = frozenset(
    (
        "is_encoder_decoder", "output_attentions", "output_hidden_states", "return_dict", "problem_type", "id2label",
        "label2id", "chunk_size_feed_forward", "_name_or_path", "model_type", "embed_requires_grad",
    )
)  # fmt: skip
"""Keys of a speculators config that transformers adds, or that only concern training."""


def _inner_rest(config: Mapping[str, Any], own: set[str]) -> dict[str, Any]:
    lost: dict[str, Any] = {}
    for section in ("dflash_config", "eagle_config"):
        inner = config.get(section)
        for key, value in inner.items() if isinstance(inner, Mapping) else ():
            place = f"{section}.{key}"
            harmless = value is True if key in ALWAYS else value is None or value is False or value == {}
            if place not in own and place not in TRAINERS and not harmless:
                lost[place] = value
    return lost


TRAINERS = frozenset({PROJECTOR, "dflash_config.attention_mode", "dflash_config.confidence_head_alpha"})
"""Keys of SpecForge that say what names and shapes of tensors say too, or that only concern training."""

ALWAYS = frozenset({"use_aux_hidden_state"})
"""Keys that are true of every drafter that convertkit knows; other unknown keys may be absent, null, false or empty."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """What a speculators config says of its target: hub name and architectures."""

    name: str
    architectures: tuple[str, ...]


def write_config(layout: str, carried: Carried, spec: DrafterSpec, verifier: Verifier | None = None) -> dict[str, Any]:
    """The config of ``spec`` in the format ``layout``, without any quantization block. ``verifier`` is needed for
    speculators formats."""
    form = FORMS[layout]
    table = READINGS[layout].fields
    body = _body(dict(carried.body), spec)
    if form.speculators is not None and causality(spec) and FULL in layer_types(spec):
        body.pop("is_causal", None)  # speculators never takes a full layer for causal; only an allowed loss comes here
    own = tuple(row for row in table if row.here not in _CARRIED)
    if form.speculators is None:
        architecture = QWEN_EAGLE if layout == "eagle3" and spec.backbone == "qwen3" else form.architecture
        config: dict[str, Any] = {"architectures": [architecture], **carried.rest, **body}
        config["tie_word_embeddings"] = False
        if layout == "dspark":
            config.setdefault("num_anchors", ANCHORS)
    else:
        assert verifier is not None
        if spec.algorithm == "eagle3" and spec.taps is not None and len(spec.taps) != 3:
            body["num_aux_hidden_states"] = len(spec.taps)  # without it vLLM 0.33 assumes three (llama_eagle3.py:210)
        config = {
            "architectures": [form.architecture],
            **carried.rest,
            "speculators_config": _speculators_config(form.speculators, spec, verifier),
            "speculators_model_type": form.speculators,
            "speculators_version": SPECULATORS_VERSION,
            "tie_word_embeddings": False,
            "transformer_layer_config": {**body, "tie_word_embeddings": False},
        }
        if isinstance(dtype := body.get("dtype") or body.get("torch_dtype"), str):
            config["dtype"] = dtype
    write_values(config, own, _own_values(layout, spec))
    return config


def _speculators_config(algorithm: str, spec: DrafterSpec, verifier: Verifier) -> dict[str, Any]:
    proposal = {
        "accept_tolerance": 0.0,
        "proposal_type": "greedy",
        "speculative_tokens": spec.draft_tokens,
        "verifier_accept_k": 1,
    }
    return {
        "algorithm": algorithm,
        "default_proposal_method": "greedy",
        "proposal_methods": [proposal],
        "verifier": {"architectures": list(verifier.architectures), "name_or_path": verifier.name},
    }


def _body(body: dict[str, Any], spec: DrafterSpec) -> dict[str, Any]:
    """The transformer's keys with those written out on which readers would differ."""
    window = window_of(spec)
    rope = dict(body.get("rope_scaling") or {}) | dict(body.get("rope_parameters") or {})
    if spec.rope is not None and not per_layer_type(rope):
        rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type") or spec.rope.kind
        rope["rope_theta"] = spec.rope.theta if rope.get("rope_theta") is None else rope["rope_theta"]
    values = {
        **{name: getattr(spec, name) for name in REWRITTEN if name in FIELDS},
        "layer_types": layer_types(spec),
        "sliding_window": window,
        "use_sliding_window": window is not None,
        "rope_parameters": rope,
        "rope_theta": rope.get("rope_theta"),
    }
    write_values(body, [row for row in transformer("") if row.here in REWRITTEN], values)
    if window is None:
        body["sliding_window"] = None
    _write_causality(body, spec)
    return body


def _write_causality(body: dict[str, Any], spec: DrafterSpec) -> None:
    """``is_causal`` stays if it is right, and is written where layers would be taken for the opposite without it."""
    if spec.algorithm in ("eagle3", "peagle", "mtp"):
        return
    whole = causality(spec)
    by_kind = all(
        layer.causal == (kind == SLIDING) for layer, kind in zip(spec.attention, layer_types(spec), strict=True)
    )
    if body.get("is_causal") is None or whole is None or body["is_causal"] != whole:
        body.pop("is_causal", None)
        if whole is not None and not by_kind:
            body["is_causal"] = whole


def _own_values(layout: str, spec: DrafterSpec) -> dict[str, Any]:
    """Values of the fields outside the transformer; what is everywhere the default is left out."""
    values: dict[str, Any] = {name: getattr(spec, name) for name in FIELDS if name not in _CARRIED}
    values["non_causal"] = not any(layer.causal for layer in spec.attention)
    if spec.target_hidden == spec.hidden:
        values["target_hidden"] = None
    for name in ("embedding_scale", "output_multiplier"):
        values[name] = None if values[name] == 1.0 else values[name]
    if layout in ("dflash", "dflash2") and not spec.sample_from_anchor:
        values["sample_from_anchor"] = None
    values["draft_tokens"] = None  # written with the proposal
    return values
