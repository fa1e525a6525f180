"""What a layout is: how a family of models names its tensors, what each is for, and what shape it has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from convertkit.layouts.rules import compile_template, without_model

Kind = Literal["drafter", "causal-lm", "multimodal-lm", "unknown"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Tensors of one template (dense spelling, without a leading ``model.``): their role and shape.

    ``shape`` holds one expression per dimension over the symbols of ``DIMENSIONS``; None means any shape.
    ``presence`` is a row of ``PRESENCE``, ``dtype`` a dtype, ``float`` or ``ids`` (I64, I32). ``first`` is the first
    layer the rule holds for.
    """

    template: str
    role: str
    shape: tuple[str, ...] | None = None
    presence: str = "always"
    dtype: str = "float"
    first: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """One layout. Rules are tried in order and the first that fits decides.

    ``marks`` are module (or tensor) templates that must be there, ``speculators`` says whether the config is in
    speculators form, ``labels`` are the architecture names that go with it. ``packed_roles`` are packed to NVFP4
    unless the user chooses. ``fused`` lists groups that engines fuse into one matrix: members of a group share
    one global scale. ``names_layers_by_runtime`` marks drafters whose ModelOpt config must use the engine's own
    layer numbers, which depend on the target model.
    """

    name: str
    kind: Kind
    rules: tuple[Rule, ...]
    fused: tuple[tuple[str, ...], ...]
    packed_roles: frozenset[str]
    marks: tuple[str, ...] = ()
    speculators: bool = False
    labels: tuple[str, ...] = ()
    names_layers_by_runtime: bool = False

    def rule_of(self, name: str) -> Rule | None:
        """The rule that a tensor name (dense spelling; ``model.`` optional) meets, or None."""
        plain = without_model(name)
        return next((rule for rule in self.rules if compile_template(rule.template).match(plain) is not None), None)

    def role_of(self, name: str) -> str:
        """The role of a tensor, ``other`` if no rule knows its name."""
        rule = self.rule_of(name)
        return "other" if rule is None else rule.role


DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "V": ("vocab_size",),
    "DV": ("draft_vocab_size",),
    "H": ("hidden_size",),
    "Ht": ("target_hidden_size",),
    "I": ("intermediate_size",),
    "nh": ("num_attention_heads",),
    "nkv": ("num_key_value_heads",),
    "hd": ("head_dim",),
    "L": ("num_hidden_layers",),
    "B": ("block_size",),
    "r": ("markov_rank", "xpress_rank"),
    "m": ("xpress_mlp_ratio",),
    "taps": ("conv_kernel_size",),
    "group": ("conv_group_size",),
    "rank": ("selector_rank",),
}
"""Symbols of shapes and the config keys they are read from. Two more are derived: K, the number of tapped target
layers, and c, what the Markov head adds to the width of the confidence head."""

DEFAULTS: Mapping[str, int] = {"r": 256, "m": 2, "B": 8}
"""Defaults of speculators 0.9.0 (``models/*/config.py``) for keys that may be absent there."""

TAPS = ("target_layer_ids", "aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")
"""Keys that list the target layers a drafter reads; their number is the symbol K."""

_SECTIONS = ("dflash_config", "", "transformer_layer_config", "text_config", "eagle_config")


def config_value(config: Mapping[str, Any], key: str) -> Any:
    """A config field from where drafter and model configs keep it: ``dflash_config``, the top level,
    ``transformer_layer_config`` (speculators), ``text_config`` (multimodal). None if absent."""
    for section in _SECTIONS:
        part = config.get(section) if section else config
        if isinstance(part, Mapping) and part.get(key) is not None:
            return part[key]
    return None


def dimensions(config: Mapping[str, Any], speculators: bool) -> dict[str, int]:
    """The symbols that the config fixes, with the defaults that readers apply (z-lab dflash 0.1.0, speculators
    0.9.0). A symbol that the config does not fix is absent."""
    dims: dict[str, int] = {}
    for symbol, keys in DIMENSIONS.items():
        values = [value for key in keys if isinstance(value := config_value(config, key), int) and value is not True]
        if values:
            dims[symbol] = values[0]
        elif speculators and symbol in DEFAULTS:
            dims[symbol] = DEFAULTS[symbol]
    taps = next((ids for key in TAPS if isinstance(ids := config_value(config, key), list)), None)
    if taps is not None:
        dims["K"] = len(taps)
    for symbol, like in (("DV", "V"), ("Ht", "H"), ("nkv", "nh")):
        if symbol not in dims and like in dims:
            dims[symbol] = dims[like]
    if "r" in dims:
        with_markov = config_value(config, "confidence_head_with_markov")
        usual = config_value(config, "projector_type") is None  # SpecForge 0.2.0 leaves it out unless told
        dims["c"] = dims["r"] if (usual if with_markov is None else with_markov) else 0
    if "hd" not in dims and dims.get("nh") and "H" in dims:
        dims["hd"] = dims["H"] // dims["nh"]
    return dims


def evaluate(expression: str, dims: Mapping[str, int]) -> int | None:
    """A shape expression (sums of products and exact quotients), or None if a symbol is unknown."""
    total = 0
    for term in expression.split("+"):
        value = 1
        for operator, factor in re.findall(r"([*/]?)(\w+)", term):
            number = int(factor) if factor.isdigit() else dims.get(factor)
            if number is None or (operator == "/" and (number == 0 or value % number)):
                return None
            value = value // number if operator == "/" else value * number
        total += value
    return total


def shape_of(rule: Rule, dims: Mapping[str, int]) -> tuple[int | None, ...] | None:
    """The shape a rule expects, None for a dimension the config does not fix, None for any shape."""
    return None if rule.shape is None else tuple(evaluate(part, dims) for part in rule.shape)


@lru_cache(maxsize=256)
def marks_of(layout: Layout) -> frozenset[str]:
    """The marks of a layout as a set."""
    return frozenset(layout.marks)
