"""How vLLM 0.33 decides which linears of a drafter are quantized: from names alone, before any weight is read.

vLLM asks for *its own* module names: ``model.layers.{N + i}.self_attn.qkv_proj`` behind a target of N layers, fused.
Names in a ModelOpt config are shifted to those for the DFlash family, those of compressed-tensors never, and the
shard names that checkpoints use mean nothing unless the config is MIXED_PRECISION.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convertkit.engines.model import Unknown, stop
from convertkit.engines.quantized import FUSED_SHARDS, Ask, Grid, first_below
from convertkit.engines.vllm_compressed import compressed_tensors, part_or_glob
from convertkit.engines.vllm_stated import FP8, MODELOPT_LINEAR, OTHER_ALGORITHMS, stated_block


@dataclass(frozen=True, slots=True)
class Quantization:
    """``family`` is ``none``, ``modelopt``, ``modelopt-mixed`` or ``compressed-tensors``; ``ask`` answers for modules
    of the body, ``ask_head`` for the output head, whose config vLLM reads afresh, without shifted names."""

    family: str
    ask: Ask
    ask_head: Ask
    cache_by_head: bool = False
    """The KV cache has scales of every head (compressed-tensors only)."""


def _dense(module: str, kind: str) -> Grid:
    return "dense"


NONE = Quantization("none", _dense, _dense)


def read_quantization(
    config: Mapping[str, Any],
    values: Mapping[str, Any],
    quant_file: Mapping[str, Any] | None,
    target_layers: int,
    layers: int,
    shifted: bool,
) -> Quantization:
    """How vLLM quantizes a drafter. ``config`` is ``config.json``, ``values`` the draft's own config inside it,
    ``quant_file`` is ``hf_quant_config.json``. Raises Stop where vLLM raises."""
    found = stated_block(config, values, quant_file)
    if found is None:
        return NONE
    block, algorithm = found
    if algorithm == "":
        ask = compressed_tensors(block)
        cache = block.get("kv_cache_scheme")
        by_head = isinstance(cache, Mapping) and cache.get("strategy") == "attn_head"
        return Quantization("compressed-tensors", ask, ask, by_head)
    body = _shifter(target_layers, layers) if shifted else _same
    family = "modelopt-mixed" if algorithm == "MIXED_PRECISION" else "modelopt"
    make = _mixed if family == "modelopt-mixed" else _uniform
    return Quantization(family, make(block, algorithm, body), make(block, algorithm, _same))


def _same(name: str) -> str:
    return name


RENAMES = (
    (re.compile(r"(?<![A-Za-z0-9_])midlayer(?=\.|\*|$)"), "layers.0"),
    (re.compile(r"(?<![A-Za-z0-9_])encoder\.output_norm_enc(?=\.|\*|$)"), "hidden_norm"),
    (re.compile(r"(?<![A-Za-z0-9_])encoder\.fc(?=\.|\*|$)"), "fc"),
)
"""Parts of names that the DFlash family maps, of tensors and of configs."""
_LAYER = re.compile(r"^((?:model\.)?\*?)layers\.(0|[1-9][0-9]*)(?=\.|\*|$)")
_ROOTED = re.compile(r"^(?:\*|model(?:\.|\*|$))")


def _shifter(target_layers: int, layers: int) -> Callable[[str], str]:
    """Names of a config as the DFlash family maps them: layers behind the target's, below ``model.``
    (``models/utils.py:1010``)."""

    def shift(name: str) -> str:
        for pattern, new in RENAMES:
            name = pattern.sub(new, name)
        hit = _LAYER.match(name)
        if hit is not None and int(hit[2]) < layers:
            name = f"{hit[1]}layers.{int(hit[2]) + target_layers}{name[hit.end() :]}"
        return name if _ROOTED.match(name) else f"model.{name}"

    return shift


def starred(entries: Sequence[str], mapped: Callable[[str], str]) -> list[str]:
    """A trailing ``*`` becomes the name itself and all below it (``modelopt.py:266``), for mapped configs only."""
    if mapped is _same:
        return list(entries)
    split = [
        part
        for entry in entries
        for part in (
            (entry[:-1], f"{entry[:-1]}.*") if entry[-1:] == "*" and entry[-2:-1] not in ("", ".") else (entry,)
        )
    ]
    return [mapped(entry) for entry in split]


def excluded_entries(block: Mapping[str, Any], mapped: Callable[[str], str]) -> list[str]:
    """The names and patterns that ModelOpt leaves out, in vLLM's names."""
    inner = block.get("quantization")
    entries = inner.get("exclude_modules", []) if isinstance(inner, Mapping) else None
    if entries is None:
        entries = block.get("ignore", block.get("exclude_modules", []))
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise stop("create", "exclude_modules must be a list of words", "vllm.quant-ignore", key="ignore")
    return starred(entries, mapped)


def _excluder(block: Mapping[str, Any], mapped: Callable[[str], str]) -> Callable[[str], bool]:
    return part_or_glob(excluded_entries(block, mapped))


def check_group_size(info: Mapping[str, Any]) -> None:
    """Sizes that are words count as numbers (``modelopt.py:384``). Raises Stop for other words, Unknown for a size
    that the tables do not describe."""
    stated = info.get("group_size")
    word = isinstance(stated, str) and stated.strip().isdecimal()
    if stated is not None and not word and (type(stated) is not int or stated < 1):
        message = f"group_size must be an integer above 0, got {stated!r}"[:200]
        raise stop("create", message, "vllm.quant-algo", key="group_size")
    if stated is not None and str(stated).strip() != "16":
        raise Unknown(f"a group size of {info.get('group_size')} is not one that convertkit's tables describe")


def grid_of(algorithm: str) -> Grid:
    if algorithm not in MODELOPT_LINEAR:
        raise Unknown(f"the algorithm {algorithm} is not one that convertkit's tables describe")
    return "mo-a16" if algorithm == "W4A16_NVFP4" else "mo-a4"


BLOCK_CODECS = ("IQ2_XS", "IQ2_XXS", "Q8_0")
"""Formats of another package that a mixed config may name (``utils/b12x.py:15``)."""


def mixed_grid(algorithm: str) -> Grid:
    """How a mixed config builds a linear: one whose algorithm no table knows stays dense (``modelopt.py:1883``)."""
    described = (*MODELOPT_LINEAR, FP8, *OTHER_ALGORITHMS, *BLOCK_CODECS)
    return grid_of(algorithm) if algorithm in described else "dense"


def uniform_grid(block: Mapping[str, Any], algorithm: str) -> Grid:
    """How a config of one algorithm builds what it does not leave out."""
    inner = block.get("quantization", block)
    check_group_size(inner)
    if "quantization" in block:
        missing = [key for key in ("group_size", "kv_cache_quant_algo", "exclude_modules") if key not in inner]
        if missing:
            raise stop("create", f"NVFP4 needs {', '.join(missing)} in hf_quant_config.json", "vllm.quant-file-keys",
                       key=missing[0])  # fmt: skip
    groups = block.get("config_groups")
    if algorithm == "NVFP4" and isinstance(groups, Mapping) and groups:
        bare = [isinstance(group, Mapping) and group.get("input_activations") is None for group in groups.values()]
        algorithm = "W4A16_NVFP4" if all(bare) else algorithm
    return grid_of(algorithm)


def _uniform(block: Mapping[str, Any], algorithm: str, mapped: Callable[[str], str]) -> Ask:
    grid = _fp8_grid(block) if algorithm == FP8 else uniform_grid(block, algorithm)
    excluded = _excluder(block, mapped)
    return lambda module, kind: "dense" if excluded(module) else grid


def _fp8_grid(block: Mapping[str, Any]) -> Grid:
    """FP8 has no groups; a size that is stated must be a number all the same (``modelopt.py:380``)."""
    stated = block.get("quantization", block).get("group_size")
    word = isinstance(stated, str) and stated.strip().lstrip("+-").isdecimal()
    if stated is not None and not word and not isinstance(stated, int | float):
        message = f"group_size must be an integer, got {type(stated)}"
        raise stop("create", message, "vllm.quant-algo", key="group_size")
    return "mo-fp8"


def _first_packed(listed: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first listed layer of NVFP4, whose group size counts for all if none is stated (``modelopt.py:1694``)."""
    rows = (row for row in listed.values() if isinstance(row, Mapping))
    return next((row for row in rows if str(row.get("quant_algo")).upper() in MODELOPT_LINEAR), {})


def mixed_layers(block: Mapping[str, Any], mapped: Callable[[str], str]) -> dict[str, str]:
    """The algorithm of every listed layer, in vLLM's names."""
    inner = block.get("quantization", block)
    listed = inner.get("quantized_layers") if isinstance(inner, Mapping) else None
    if not isinstance(listed, Mapping) or not listed:
        raise stop("create", "MIXED_PRECISION quant_algo requires a non-empty 'quantized_layers' mapping",
                   "vllm.quant-mixed-layers", key="quantized_layers")  # fmt: skip
    layers: dict[str, str] = {}
    first = {} if inner.get("group_size") is not None else _first_packed(listed)
    if isinstance(first.get("group_size"), str):
        message = "unsupported operand type(s) for //: 'int' and 'str': the group size of a layer is a word"
        raise stop("create", message, "vllm.quant-mixed-layers", key="quantized_layers")
    check_group_size(first or inner)
    for name, info in listed.items():
        if not isinstance(info, Mapping) or not isinstance(info.get("quant_algo"), str):
            message = f"'{name}' has no quant_algo that is a word"
            raise stop("create", message, "vllm.quant-mixed-layers", key="quantized_layers")
        layers[mapped(str(name))] = info["quant_algo"].upper()
    return layers


def _mixed(block: Mapping[str, Any], algorithm: str, mapped: Callable[[str], str]) -> Ask:
    layers = mixed_layers(block, mapped)
    below, excluded = first_below(layers), _excluder(block, mapped)

    def ask(module: str, kind: str) -> Grid:
        found = None if excluded(module) else _listed(module, layers, below)
        if found == FP8:
            return "mo-fp8"
        return "dense" if found is None else mixed_grid(found)

    return ask


def _listed(module: str, layers: Mapping[str, str], below: Mapping[str, str]) -> str | None:
    """The algorithm of a module: its own entry, one below it, or those of its shards (``modelopt.py:1748``)."""
    if module in layers:
        return layers[module]
    if module in below:
        return below[module]
    parent, _, leaf = module.rpartition(".")
    return agreed(module, {f"{parent}.{shard}" for shard in FUSED_SHARDS.get(leaf, ())}, layers)


def agreed(module: str, names: Iterable[str], layers: Mapping[str, str]) -> str | None:
    """The algorithm of the listed ones among ``names``, the parts of a fused linear. Raises Stop if they differ."""
    found = {layers[name] for name in names if name in layers}
    if len(found) > 1:
        raise stop("create", f"Mixed quant_algo within fused layer {module}: {', '.join(sorted(found))}",
                   "vllm.quant-mixed-shards", tensor=module)  # fmt: skip
    return next(iter(found), None)
