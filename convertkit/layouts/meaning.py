"""From config values to a ``DrafterSpec`` and back: attention per layer, rotary embedding, derived counts.

Readers differ in what a missing or half-stated field means, so each names its rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from convertkit.drafter import FIELDS, DrafterSpec, LayerAttention, Rope

SLIDING, FULL = "sliding_attention", "full_attention"

HF_THETA = 10_000.0
"""Default of transformers 5 (``RotaryEmbeddingConfigMixin.default_theta``)."""

ROPE_IGNORED = frozenset({"mrope_section", "mrope_interleaved", "partial_rotary_factor"})
"""Numbers that the default rope of transformers' Qwen3 and Llama never reads."""

MAX_LAYERS = 4096
"""A config that states more is damaged; nothing is built layer by layer for it."""

ROPE_NAMES = frozenset({"rope_theta", "rope_type", "type"})


@dataclass(frozen=True, slots=True)
class Rules:
    """How a reader resolves what a table alone cannot say: names of ``ATTENTION``, ``TAPS``, and rope defaults.

    ``whole_head`` means that the default rope turns every dimension of a head whatever the config says.
    """

    attention: str
    theta: float = HF_THETA
    whole_head: bool = True
    taps: str = "stated"


Layers = tuple[LayerAttention, ...]


def _kinds(values: Mapping[str, Any], count: int, window: int | None) -> list[bool]:
    """Whether each layer is sliding; without ``layer_types`` as transformers derives it (Qwen3Config)."""
    types = values.get("layer_types")
    if types is not None:
        return [index < len(types) and types[index] == SLIDING for index in range(count)]
    first = values.get("max_window_layers")
    first = 28 if first is None else first
    return [window is not None and index >= first for index in range(count)]


def _by_transformers(values: Mapping[str, Any], count: int) -> tuple[list[bool], int | None]:
    """Sliding layers and window as transformers' Qwen3Config keeps them: no window unless ``use_sliding_window``."""
    window = values.get("sliding_window") if values.get("use_sliding_window") is True else None
    return _kinds(values, count, window), window


def _layers(sliding: list[bool], window: int | None, causal: Callable[[bool], bool]) -> Layers:
    return tuple(LayerAttention(causal(slides), window if slides else None) for slides in sliding)


def _zlab(values: Mapping[str, Any], count: int) -> Layers:
    """``is_causal`` for all layers, else sliding layers are causal (dflash 0.1.0 ``model.py:363``)."""
    stated = values.get("is_causal")
    return _layers(*_by_transformers(values, count), lambda slides: slides if stated is None else bool(stated))


def _speculators(values: Mapping[str, Any], count: int) -> Layers:
    """Sliding layers causal unless ``sliding_window_non_causal``, full ones never (speculators 0.9.0)."""
    return _layers(*_by_transformers(values, count), lambda slides: slides and not values.get("non_causal"))


def _vllm(values: Mapping[str, Any], sliding: list[bool], window: int | None) -> Layers:
    """``is_causal``, then ``dflash_config.causal``, then sliding layers (vLLM 0.33 ``qwen3_dflash.py:62``)."""
    stated = values.get("is_causal")
    stated = values.get("causal") if stated is None else stated
    forced = bool(values.get("use_swa")) and not any(sliding)
    window = values.get("swa_window") or window
    return tuple(
        LayerAttention(slides if stated is None else bool(stated), window if slides or forced else None)
        for slides in sliding
    )


def _vllm_flat(values: Mapping[str, Any], count: int) -> Layers:
    return _vllm(values, *_by_transformers(values, count))


def _vllm_nested(values: Mapping[str, Any], count: int) -> Layers:
    """vLLM takes ``transformer_layer_config`` raw: the window counts without the flag, and no layer is derived."""
    types = values.get("layer_types") or []
    sliding = [index < len(types) and types[index] == SLIDING for index in range(count)]
    if values.get("non_causal") is not None:
        values = {**values, "causal": not values["non_causal"]}
    return _vllm(values, sliding, values.get("sliding_window"))


def _causal(values: Mapping[str, Any], count: int) -> Layers:
    """EAGLE and multi-token prediction draft one token after the other."""
    return _layers(*_by_transformers(values, count), lambda slides: True)


ATTENTION: Mapping[str, Callable[[Mapping[str, Any], int], Layers]] = {
    "zlab": _zlab,
    "speculators": _speculators,
    "vllm flat": _vllm_flat,
    "vllm nested": _vllm_nested,
    "causal": _causal,
}
"""How each reader resolves causality and window per layer."""


def spread_taps(target_layers: int, draft_layers: int) -> tuple[int, ...]:
    """Evenly spaced target layers, where z-lab dflash 0.1.0 (``build_target_layer_ids``) and SGLang put them."""
    if draft_layers == 1:
        return (target_layers // 2,)
    span = target_layers - 4
    return tuple(round(1 + index * span / (draft_layers - 1)) for index in range(draft_layers))


def resolve(algorithm: str, values: Mapping[str, Any], rules: Rules) -> DrafterSpec:
    """The spec that values mean under a reader's rules."""
    made = {name: values[name] for name in FIELDS if values.get(name) is not None}
    made["algorithm"] = algorithm
    layers = values.get("layers") or 0
    made["attention"] = ATTENTION[rules.attention](values, layers) if layers <= MAX_LAYERS else ()
    made["rope"] = _rope_of(values, rules)
    if values.get("aux_taps") is not None:
        made["taps"] = values["aux_taps"]
    if made.get("taps") is None and rules.taps == "spread" and values.get("target_layers") and made["attention"]:
        made["taps"] = spread_taps(values["target_layers"], layers)
    if made.get("block_size") is not None and made.get("draft_tokens") is None:
        made["draft_tokens"] = made["block_size"] - (0 if made.get("sample_from_anchor") else 1)
    for name in ("eps", "embedding_scale", "output_multiplier"):
        if name in made:
            made[name] = float(made[name])
    softcap = made.get("softcap")
    made["softcap"] = float(softcap) if softcap else None
    return DrafterSpec(**made)


def _rope_of(values: Mapping[str, Any], rules: Rules) -> Rope:
    """The rotary embedding, from either spelling (``rope_parameters``, or ``rope_theta`` with ``rope_scaling``)."""
    stated = dict(values.get("rope_scaling") or {})
    stated |= dict(values.get("rope_parameters") or {})
    if per_layer_type(stated):
        inner = [stated[kind] for kind in (SLIDING, FULL) if isinstance(stated.get(kind), Mapping)]
        theta = next((part["rope_theta"] for part in inner if _number(part.get("rope_theta"))), rules.theta)
        return Rope(float(theta), "per layer type", tuple(sorted((name, _frozen(v)) for name, v in stated.items())))
    theta = _number(stated.get("rope_theta")) or values.get("rope_theta") or rules.theta
    kind = str(stated.get("rope_type") or stated.get("type") or "default")
    fraction = _number(stated.get("partial_rotary_factor"))
    fraction = values.get("partial_rotary") if fraction is None else fraction
    numbers = {name: value for name, value in stated.items() if name not in ROPE_NAMES | {"partial_rotary_factor"}}
    if rules.whole_head and kind == "default":
        fraction, numbers = None, {name: value for name, value in numbers.items() if name not in ROPE_IGNORED}
    neox = values.get("neox")
    return Rope(
        float(theta),
        kind,
        tuple(sorted((name, _frozen(value)) for name, value in numbers.items())),
        1.0 if fraction is None else float(fraction),
        True if neox is None else bool(neox),
    )


def _number(value: Any) -> float | None:
    return value if type(value) in (int, float) else None


def per_layer_type(rope: Mapping[str, Any]) -> bool:
    """Whether rope parameters are given for each kind of layer (transformers 5, Gemma and Laguna)."""
    return any(isinstance(rope.get(kind), Mapping) for kind in (SLIDING, FULL))


def _frozen(value: Any) -> Any:
    """A number, or a list or object of them, as something that compares and prints alike everywhere."""
    if isinstance(value, Mapping):
        return tuple(sorted((name, _frozen(item)) for name, item in value.items()))
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return float(value) if type(value) in (int, float) else value


def layer_types(spec: DrafterSpec) -> list[str]:
    """``layer_types`` of a config."""
    return [FULL if layer.window is None else SLIDING for layer in spec.attention]


def window_of(spec: DrafterSpec) -> int | None:
    """The one window of the sliding layers; None without any. Formats have one window for all layers."""
    return next((layer.window for layer in spec.attention if layer.window is not None), None)


def causality(spec: DrafterSpec) -> bool | None:
    """True or False if all layers agree, None if sliding layers are causal and full ones are not."""
    found = {layer.causal for layer in spec.attention}
    return found.pop() if len(found) == 1 else None
