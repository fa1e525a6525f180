"""Read a drafter's config as one reader understands it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from convertkit.drafter import DrafterSpec
from convertkit.errors import Finding, finding
from convertkit.layouts.configs import PROJECTOR, Reading, reading_of
from convertkit.layouts.fields import CONFIG_FILE, look, read_values
from convertkit.layouts.layout import Layout, config_value
from convertkit.layouts.meaning import MAX_LAYERS, resolve
from convertkit.layouts.rules import without_model

BORROWABLE = ("embed_tokens.weight", "lm_head.weight")
"""Tensors that a drafter takes from its target when it does not hold them."""

CONFIDENCE = "confidence_head.proj.weight"


def read_spec(reading: Reading, config: Mapping[str, Any]) -> tuple[DrafterSpec, tuple[Finding, ...]]:
    """The spec, and E_CONFIG for every field that is malformed or stated twice differently."""
    values, faults = read_values(reading.fields, config)
    spec = resolve(reading.algorithm, values, reading.rules)
    return spec, (*faults, *_rope_faults(values), *_causal_conflicts(values, spec), *_depth_faults(values))


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
            yield finding("E_CONFIG", "error", f"'{place}' is not a number", file=CONFIG_FILE, key=place)
        elif stated is not None and other is not None and stated != other:
            message = f"'{key}' is {other}, and {stated} in 'rope_parameters': readers disagree about which counts"
            yield finding("E_CONFIG", "error", message, file=CONFIG_FILE, key=key, fix="make the two equal")


def _depth_faults(values: Mapping[str, Any]) -> Iterator[Finding]:
    if (values.get("layers") or 0) > MAX_LAYERS:
        message = f"the config states {values['layers']} layers"
        yield finding("E_CONFIG", "error", message, file=CONFIG_FILE, key="num_hidden_layers")
    types = values.get("layer_types")
    if types is not None and values.get("layers") is not None and len(types) != values["layers"]:
        message = f"'layer_types' has {len(types)} entries for {values['layers']} layers"
        yield finding("E_CONFIG", "error", message, file=CONFIG_FILE, key="layer_types")


def _causal_conflicts(values: Mapping[str, Any], spec: DrafterSpec) -> Iterator[Finding]:
    """A second statement about causality that the format's own package does not read, and that says otherwise."""
    for key, name in (("is_causal", "is_causal"), ("causal", "dflash_config.causal")):
        stated = values.get(key)
        if stated is not None and any(layer.causal != stated for layer in spec.attention):
            if spec.algorithm in ("eagle3", "peagle", "mtp"):
                continue
            message = f"'{name}' is {str(stated).lower()}, but the format's own package takes layers for the opposite"
            yield finding("E_CONFIG", "error", message, file=CONFIG_FILE, key=name, fix=f"correct or remove '{name}'")
