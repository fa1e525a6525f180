"""What the tables of vLLM and SGLang share about quantized linears: how one is built, and what a config's entries mean.

Both engines build a linear from a config alone, before any weight is read, and both read a compressed-tensors entry
as an exact name, a ``re:`` expression from the start of a name, or a part of a class's name (vLLM 0.33 and SGLang
0.5.23, ``compressed_tensors/utils.py`` of each).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from convertkit.dialects.patterns import Matcher, PatternFault
from convertkit.engines.model import Unknown, stop

Grid = Literal["dense", "mo-a16", "mo-a4", "mo-fp8", "ct-a16", "ct-a4"]
"""How an engine builds a linear: dense, or with the planes of ModelOpt or compressed-tensors, without or with
activation scales; ``mo-fp8`` has FP8 weights with one scale for each stored linear."""

Ask = Callable[[str, str], Grid]
"""From the engine's name of a module and the name of its class to how it is built."""

FUSED_SHARDS: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


def grids_of_targets(block: Mapping[str, Any], passed: Callable[[Sequence[str]], bool]) -> dict[str, Grid]:
    """Targets of a compressed-tensors config with the grid of their group; groups whose names ``passed`` are none."""
    targets: dict[str, Grid] = {}
    groups = block.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        listed = group.get("targets") if isinstance(group, Mapping) else None
        if not isinstance(listed, list):
            raise Unknown("a config group of the quantization config has no list of targets")
        names = [str(name) for name in listed]
        if not passed(names):
            grid = scheme_grid(group)
            targets.update((name, grid) for name in names)
    return targets


def ignored_names(block: Mapping[str, Any], rule: str) -> list[str]:
    """The ignored names of a compressed-tensors config. Raises Stop by ``rule`` for null, Unknown for
    what is no list."""
    left_out = block.get("ignore", [])
    if left_out is None:
        raise stop("create", "'NoneType' object is not iterable", rule, key="ignore")
    if not isinstance(left_out, list):
        raise Unknown("'ignore' of the quantization config is not a list")
    return [str(name) for name in left_out]


def first_below(layers: Mapping[str, str]) -> dict[str, str]:
    """Every module above a listed one, with the algorithm of the first that the config lists below it."""
    found: dict[str, str] = {}
    for name, algorithm in layers.items():
        place = name.rpartition(".")[0]
        while place and place not in found:
            found[place] = algorithm
            place = place.rpartition(".")[0]
    return found


def class_meant(target: str, kind: str) -> bool:
    """Whether a target is a part of the name of a linear's class."""
    return not target.startswith("re:") and target.lower() in kind.lower()


NVFP4: Mapping[str, Any] = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
"""Arguments of NVFP4 weights and activations."""


def scheme_grid(group: Mapping[str, Any]) -> Grid:
    """How the linears of a config group are built. Raises Unknown for what is not NVFP4."""
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        return "dense"
    if any(weights.get(key) != value for key, value in NVFP4.items()) or weights.get("symmetric", True) is not True:
        raise Unknown("a scheme of the quantization config is not NVFP4, which alone convertkit's tables describe")
    inputs = group.get("input_activations")
    if inputs is None:
        return "ct-a16"
    stated = [inputs.get(key) for key in ("num_bits", "type", "strategy")] if isinstance(inputs, Mapping) else []
    if stated != [4, "float", "tensor_group"]:
        raise Unknown("the activations of a scheme are not NVFP4, which alone convertkit's tables describe")
    return "ct-a4"


MAX_EXPRESSION = 4096


def matching(entries: Sequence[str], rule: str = "") -> Callable[[str], str | None]:
    """The first entry that means a name, or None. Raises Stop by ``rule`` for an expression that Python cannot read
    either, Unknown for others that are not read."""
    expressions = [entry for entry in entries if entry.startswith("re:")]
    try:
        matcher = Matcher([("regex", entry.removeprefix("re:")) for entry in expressions])
    except PatternFault as fault:
        for entry in expressions if rule else ():
            _check_expression(entry, rule)
        raise Unknown(f"an expression of the quantization config is not one that convertkit reads: {fault}") from None
    places = {entry: place for place, entry in reversed(tuple(enumerate(entries)))}

    def match(name: str) -> str | None:
        hits = matcher.hits(name) if expressions else ()
        found = [expressions[min(hits)]] if hits else []
        found += [name] if name in places and not name.startswith("re:") else []
        return min(found, key=places.__getitem__, default=None)

    return match


def _check_expression(entry: str, rule: str) -> None:
    if len(entry) > MAX_EXPRESSION:
        return
    try:
        re.compile(entry.removeprefix("re:"))
    except (re.error, RecursionError, OverflowError) as error:
        raise stop("create", f"error: {error} in '{entry}'"[:200], rule, key="ignore") from None
