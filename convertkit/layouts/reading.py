"""Read a drafter's config as one reader understands it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from convertkit.containers.folder import CONFIG
from convertkit.drafter import DrafterSpec
from convertkit.errors import Finding, finding
from convertkit.layouts.configs import PROJECTOR, Reading, reading_of
from convertkit.layouts.fields import look, read_values
from convertkit.layouts.layout import Layout, config_value
from convertkit.layouts.meaning import FULL, MAX_LAYERS, SLIDING, per_layer_type, resolve
from convertkit.layouts.rules import without_model

BORROWABLE = ("embed_tokens.weight", "lm_head.weight")
"""Tensors that a drafter takes from its target when it does not hold them."""

CONFIDENCE = "confidence_head.proj.weight"


def read_spec(reading: Reading, config: Mapping[str, Any]) -> tuple[DrafterSpec, tuple[Finding, ...]]:
    """The spec, and E_CONFIG for every field that is malformed or stated twice differently."""
    values, faults = read_values(reading.fields, config)
    spec = resolve(reading.algorithm, values, reading.rules)
    more = (*_rope_faults(values), *_causal_conflicts(values, spec), *_depth_faults(values), *_count_faults(spec))
    return spec, (*faults, *more)


def stated_spec(
    layout: Layout, config: Mapping[str, Any], names: Iterable[str]
) -> tuple[DrafterSpec, tuple[Finding, ...]] | None:
    """What a drafter's config means to the package that its format comes from, completed by what its tensors show:
    also a confidence head that a DeepSpec config does not mention.

    None if the layout has no table of config fields.
    """
    reading = reading_of(layout.name, config)
    if reading is None:
        return None
    plain = {without_model(name) for name in names}
    spec, faults = read_spec(reading, config)
    if layout.name == "dspark" and config_value(config, "enable_confidence_head") is None and CONFIDENCE in plain:
        usual = bool(spec.markov_rank) and look(config, PROJECTOR) is None  # SpecForge's default is without
        with_markov = config_value(config, "confidence_head_with_markov")
        spec = replace(spec, confidence_head=True, confidence_with_markov=usual if with_markov is None else with_markov)
    return with_tensors(spec, plain), faults


ASSUMED = ("taps", "block_size")
"""Fields that a format's own package makes up where a config does not state them, and that trainers choose freely."""


def assumed(layout: Layout, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Which of ``ASSUMED`` the config of a drafter of DFlash's family leaves to its package."""
    reading = reading_of(layout.name, config)
    if reading is None or reading.algorithm not in ("dflash", "dflash2", "dspark"):
        return ()
    rows = [row for row in reading.fields if row.here in ASSUMED]
    return tuple(row.here for row in rows if all(look(config, place) is None for place in row.there))


def with_tensors(spec: DrafterSpec, names: Iterable[str]) -> DrafterSpec:
    """The spec with what only tensors tell: what is borrowed, and whether there is a map of the vocabulary."""
    plain = {without_model(name) for name in names}
    borrowed = tuple(name for name in BORROWABLE if name not in plain)
    return replace(spec, borrowed=borrowed, vocabulary_map="d2t" if "d2t" in plain else None)


def _rope_faults(values: Mapping[str, Any]) -> Iterator[Finding]:
    inner = values.get("rope_parameters") or {}
    for key, other in (("rope_theta", values.get("rope_theta")), ("partial_rotary_factor", values["partial_rotary"])):
        stated = inner.get(key)
        place = f"rope_parameters.{key}"
        if stated is not None and type(stated) not in (int, float):
            yield finding("E_CONFIG", "error", f"'{place}' is not a number", file=CONFIG, key=place)
        elif stated is not None and other is not None and stated != other:
            message = f"'{key}' is {other}, and {stated} in 'rope_parameters': readers disagree about which counts"
            yield finding("E_CONFIG", "error", message, file=CONFIG, key=key, fix="make the two equal")
        elif any(number is not None and number <= 0 for number in (stated, other)):
            yield finding("E_CONFIG", "error", f"'{key}' is not above 0", file=CONFIG, key=key)
    if not per_layer_type(inner):
        yield from _rope_kinds(values)


def _rope_kinds(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Two spellings of the kind of rope, or one that is no word."""
    spellings = [values.get(section) or {} for section in ("rope_parameters", "rope_scaling")]
    stated = [inner[key] for inner in spellings for key in ("rope_type", "type") if inner.get(key) is not None]
    if any(not isinstance(kind, str) for kind in stated):
        yield finding("E_CONFIG", "error", "'rope_type' is not a word", file=CONFIG, key="rope_type")
    elif len(set(stated)) > 1:
        message = f"the rope is {' and '.join(dict.fromkeys(stated))}: readers disagree about which counts"
        yield finding("E_CONFIG", "error", message, file=CONFIG, key="rope_type", fix="leave one")


def _count_faults(spec: DrafterSpec) -> Iterator[Finding]:
    """A tap before the embedding, and a block without room for a draft token."""
    before = [tap for tap in spec.taps or () if tap < -1]
    if before:
        message = f"tapped layers {before} lie before the embedding, which is -1"
        yield finding("E_CONFIG", "error", message, file=CONFIG, key="target_layer_ids")
    if spec.draft_tokens is not None and spec.draft_tokens < 1:
        message = f"a block of {spec.block_size} holds the anchor and no token to draft"
        yield finding("E_CONFIG", "error", message, file=CONFIG, key="block_size")


NEEDED = ("layers", "hidden", "intermediate", "heads", "vocabulary")
"""Fields of a spec on which readers' defaults differ, or are those of another model."""


def unstated(spec: DrafterSpec, names: Iterable[str] = NEEDED) -> Iterator[Finding]:
    """E_CONFIG for every field that a config must state and does not."""
    for name in names:
        if getattr(spec, name) is None:
            message = f"the config does not state '{name}', and it cannot be guessed"
            yield finding("E_CONFIG", "error", message, file=CONFIG)


def _depth_faults(values: Mapping[str, Any]) -> Iterator[Finding]:
    if (values.get("layers") or 0) > MAX_LAYERS:
        message = f"the config states {values['layers']} layers"
        yield finding("E_CONFIG", "error", message, file=CONFIG, key="num_hidden_layers")
    types = values.get("layer_types")
    unknown = sorted(set(types or ()) - {SLIDING, FULL})
    if unknown:
        message = f"'layer_types' names {', '.join(unknown)}; layers of drafters are {SLIDING} or {FULL}"
        yield finding("E_CONFIG", "error", message, file=CONFIG, key="layer_types")
    if types is not None and values.get("layers") is not None and len(types) != values["layers"]:
        message = f"'layer_types' has {len(types)} entries for {values['layers']} layers"
        yield finding("E_CONFIG", "error", message, file=CONFIG, key="layer_types")


def _causal_conflicts(values: Mapping[str, Any], spec: DrafterSpec) -> Iterator[Finding]:
    """A second statement about causality that the format's own package does not read, and that says otherwise."""
    for key, name in (("is_causal", "is_causal"), ("causal", "dflash_config.causal")):
        stated = values.get(key)
        if stated is not None and any(layer.causal != stated for layer in spec.attention):
            if spec.algorithm in ("eagle3", "peagle", "mtp"):
                continue
            message = f"'{name}' is {str(stated).lower()}, but the format's own package takes layers for the opposite"
            yield finding("E_CONFIG", "error", message, file=CONFIG, key=name, fix=f"correct or remove '{name}'")
