"""What a drafter means, whichever format states it: data only.

Layouts read it from a config and write it (``layouts.configs``); engines have their own readings of the same
config (``engines``). Two formats hold the same drafter if and only if they hold the same ``DrafterSpec``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """How one draft layer attends inside its block. ``window`` counts tokens, the current one included; None is full
    attention. A layer that is not causal also sees the later positions of the block."""

    causal: bool
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding with its defaults filled in. ``numbers`` are the other parameters of ``kind``, by name."""

    theta: float
    kind: str = "default"
    numbers: tuple[tuple[str, Any], ...] = ()
    fraction: float = 1.0
    neox: bool = True


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """One drafter. None means that the format has no such thing, or does not say.

    ``taps`` are the target layers whose *output* the drafter reads, counted from 0: t is ``hidden_states[t + 1]`` of
    transformers, and -1 is the output of the embedding. None leaves the choice to the engine. ``block_size`` counts
    the anchor; ``draft_tokens`` are proposed per step. ``vocabulary`` is that of the target, ``draft_vocabulary``
    that of the drafter's head. ``borrowed`` are tensors of the target that the drafter uses and does not hold.
    """

    algorithm: str
    backbone: str | None = None
    layers: int | None = None
    hidden: int | None = None
    target_hidden: int | None = None
    intermediate: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    attention_bias: bool = False
    eps: float | None = None
    activation: str | None = None
    vocabulary: int | None = None
    draft_vocabulary: int | None = None
    vocabulary_map: str | None = None
    taps: tuple[int, ...] | None = None
    target_layers: int | None = None
    block_size: int | None = None
    draft_tokens: int | None = None
    sample_from_anchor: bool = False
    mask_token: int | None = None
    attention: tuple[LayerAttention, ...] = ()
    rope: Rope | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    markov_rank: int | None = None
    markov_head: str | None = None
    confidence_head: bool = False
    confidence_with_markov: bool = False
    conv_kernel: int | None = None
    conv_group: int | None = None
    selector_rank: int | None = None
    selector_top_k: int | None = None
    embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    softcap: float | None = None
    borrowed: tuple[str, ...] = ()


FIELDS: tuple[str, ...] = tuple(item.name for item in fields(DrafterSpec))
"""Names of the fields, in order: what ``--allow-loss`` accepts."""


def differences(one: DrafterSpec, other: DrafterSpec) -> Iterator[str]:
    """Names of the fields in which two specs differ; what has no effect in either is not compared. Of a head that
    only one has, what both state alike is not named."""
    first, second = _effective(one), _effective(other)
    unlike = (name for name in FIELDS if getattr(first, name) != getattr(second, name))
    return (name for name in unlike if getattr(one, name) != getattr(other, name))


def _effective(spec: DrafterSpec) -> DrafterSpec:
    """The spec without the details of heads that are not there."""
    if not spec.markov_rank:
        spec = replace(spec, markov_rank=None, markov_head=None, confidence_with_markov=False)
    return spec if spec.confidence_head else replace(spec, confidence_with_markov=False)


def value_text(name: str, value: Any) -> str:
    """A field's value in few words."""
    if value is None:
        return "not stated"
    if name == "attention":
        return attention_text(value)
    if isinstance(value, Rope):
        return _rope_text(value)
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in value) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def attention_text(layers: tuple[LayerAttention, ...]) -> str:
    """``5 x window 2048, not causal``: runs of equal layers."""
    runs: list[tuple[LayerAttention, int]] = []
    for layer in layers:
        if runs and runs[-1][0] == layer:
            runs[-1] = (layer, runs[-1][1] + 1)
        else:
            runs.append((layer, 1))
    return "; ".join(
        f"{count} x {'full' if layer.window is None else f'window {layer.window}'}, "
        f"{'causal' if layer.causal else 'not causal'}"
        for layer, count in runs
    )


def _rope_text(rope: Rope) -> str:
    parts = [f"{rope.kind}, theta {rope.theta:.9g}"]
    parts += [f"{name} {value}" for name, value in rope.numbers]
    parts += [f"{rope.fraction:.9g} of each head"] if rope.fraction != 1.0 else []
    parts += [] if rope.neox else ["interleaved"]
    return ", ".join(parts)


def as_json(spec: DrafterSpec) -> dict[str, Any]:
    """A spec as JSON values, without the fields that do not apply."""
    document = {name: plain(getattr(spec, name)) for name in FIELDS}
    return {name: value for name, value in document.items() if value is not None}


def plain(value: Any) -> Any:
    """A field's value as JSON."""
    if isinstance(value, LayerAttention):
        return {"causal": value.causal, "window": value.window}
    if isinstance(value, Rope):
        return {
            "type": value.kind,
            "theta": value.theta,
            "numbers": dict(value.numbers),
            "fraction": value.fraction,
            "neox": value.neox,
        }
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value
