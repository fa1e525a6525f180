"""How vLLM 0.33 decides which modules of a target are quantized.

Differs from drafters: the names of the config go through the model's own renames, shards of fused linears count one by
one, and routed experts are one module that is asked for in its own ways. Every case of
``tests/engines/hybrid_cases.py`` was run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from convertkit.engines.model import stop
from convertkit.engines.quantized import Ask, Grid, first_below, matching
from convertkit.engines.vllm_compressed import ct_lists, met, of_class, part_or_glob
from convertkit.engines.vllm_quant import (
    NONE,
    Quantization,
    agreed,
    excluded_entries,
    grid_of,
    mixed_grid,
    mixed_layers,
    uniform_grid,
)
from convertkit.engines.vllm_stated import stated_block

Shards = Mapping[str, Sequence[str]]
"""Names of fused linears and the stored linears that each is made of, as the model's class states them."""

Rename = Callable[[str], str]

EXPERTS = "RoutedExperts"
"""The class of a layer's routed experts together."""

EXPERT_LINEARS = ("gate_proj", "up_proj", "down_proj")
SHARDS_OF_MIXED: Shards = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Fused names that a mixed config finds by their shards whatever the class says (``modelopt.py:1803``)."""

TEXT, NESTED = "language_model.model.", "model.language_model."


def target_quantization(
    config: Mapping[str, Any],
    text: Mapping[str, Any],
    quant_file: Mapping[str, Any] | None,
    shards: Shards,
    rename: Rename,
) -> Quantization:
    """How the modules of a target are built, by vLLM's names. Raises Stop where vLLM raises, Unknown for what the
    tables do not describe."""
    found = stated_block(config, text, quant_file)
    if found is None:
        return NONE
    block, algorithm = found
    if algorithm == "":
        ask = _compressed_tensors(block, shards, rename)
        return Quantization("compressed-tensors", ask, ask)
    excluded = _excluded(block, shards, rename)
    if algorithm == "MIXED_PRECISION":
        ask = _mixed(mixed_layers(block, rename), excluded, shards)
        return Quantization("modelopt-mixed", ask, ask)
    grid = uniform_grid(block, algorithm)
    ask = _uniform(grid, excluded)
    return Quantization("modelopt", ask, ask)


def _excluded(block: Mapping[str, Any], shards: Shards, rename: Rename) -> Callable[[str], bool]:
    """Exact names first, where the shards of a fused linear must agree, then parts of names, then patterns
    (``modelopt.py:191``)."""
    listed = excluded_entries(block, rename)
    exact, inside = frozenset(listed), part_or_glob(listed)

    def excluded(module: str) -> bool:
        parent, _, leaf = module.rpartition(".")
        if leaf in shards and module not in exact:
            skipped = {f"{parent}.{shard}" in exact for shard in shards[leaf]}
            if len(skipped) > 1:
                message = f"Detected some but not all shards of {module} are quantized"
                raise stop("create", message, "vllm.quant-shards", tensor=module)
            if skipped == {True}:
                return True
        return inside(module)

    return excluded


def _uniform(grid: Grid, excluded: Callable[[str], bool]) -> Ask:
    return lambda module, kind: "dense" if excluded(module) else grid


def _mixed(layers: Mapping[str, str], excluded: Callable[[str], bool], shards: Shards) -> Ask:
    below = first_below(layers)

    def ask(module: str, kind: str) -> Grid:
        found = None if excluded(module) else _listed(module, layers, below, shards)
        return "dense" if found is None else grid_of(found) if kind == EXPERTS else mixed_grid(found)

    return ask


def _listed(module: str, layers: Mapping[str, str], below: Mapping[str, str], shards: Shards) -> str | None:
    """The algorithm of a module: its own entry, those of its shards, one below it, for experts one beside them
    (``modelopt.py:1748``)."""
    names = _candidates(module)
    own = next((layers[name] for name in names if name in layers), None)
    leaf = module.rpartition(".")[2]
    if own is None and leaf in shards:
        own = agreed(module, {f"{name.rpartition('.')[0]}.{shard}" for name in names for shard in shards[leaf]}, layers)
    if own is None:
        own = next((below[name] for name in names if name in below), None)
    if own is None and leaf == "experts":
        own = below.get(module.rpartition(".")[0])
    if own is None and leaf in SHARDS_OF_MIXED:
        wanted = {f"{name.rpartition('.')[0]}.{shard}" for name in names for shard in SHARDS_OF_MIXED[leaf]}
        own = agreed(module, wanted, layers)
    return own


def _candidates(module: str) -> tuple[str, ...]:
    """vLLM's name and the other spelling of a nested language model (``modelopt.py:1828``)."""
    names = [module, *(["lm_head"] if module.endswith(".lm_head") else [])]
    if module.startswith(TEXT):
        names.append(NESTED + module.removeprefix(TEXT))
    elif module.startswith(NESTED):
        names.append(TEXT + module.removeprefix(NESTED))
    return tuple(names)


def _compressed_tensors(block: Mapping[str, Any], shards: Shards, rename: Rename) -> Ask:
    """Ignored names, then targets by name, by shards, by class (``compressed_tensors/utils.py:62``). Paths of the
    config are renamed, expressions and class names are not (``compressed_tensors.py:129``)."""
    stated, left_out = ct_lists(block)
    path: Rename = lambda name: rename(name) if "." in name and not name.startswith("re:") else name  # noqa: E731
    targets = {path(name): grid for name, grid in stated.items()}
    if "Linear" in targets:
        targets.setdefault(EXPERTS, targets["Linear"])
    ignored, matched = (
        matching(entries, "vllm.quant-ignore") for entries in ([path(name) for name in left_out], list(targets))
    )

    def scheme(module: str, kind: str) -> Grid:
        parts = _parts(module, shards)
        if ignored(module) is not None:
            return "dense"
        left = {ignored(part) is not None for part in parts}
        if len(left) > 1:
            message = f"Found different quantization schemes for the shards of {module}"
            raise stop("create", message, "vllm.quant-shards", tensor=module)
        if left == {True}:
            return "dense"
        name = matched(module)
        if name is None and parts:
            hits = [matched(part) for part in parts]
            name = hits[0] if all(hits) else None
        if name is None:
            name = of_class(kind, targets, matched)
        return "dense" if name is None else met(targets[name])

    def ask(module: str, kind: str) -> Grid:
        if kind != EXPERTS:
            return scheme(module, kind)
        grids = {scheme(f"{module}.0.{leaf}", kind) for leaf in EXPERT_LINEARS}
        if len(grids) > 1:
            message = "All MoE projections need to have same quantization scheme but found multiple"
            raise stop("create", message, "vllm.quant-shards", tensor=module)
        return grids.pop()

    return ask


def _parts(module: str, shards: Shards) -> list[str]:
    parent, _, leaf = module.rpartition(".")
    return [f"{parent}.{shard}" for shard in shards.get(leaf, ())]
