"""How SGLang 0.5.23 decides which linears are quantized: by its own module names, before any weight is read.

In drafters of the DFlash family a linear is called ``qkv_proj``, ``o_proj``, ``gate_up_proj`` or ``down_proj`` and
nothing more, whatever its layer, so patterns with layers or parents never match there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convertkit.dialects.patterns import Matcher, PatternFault
from convertkit.engines.model import Unknown, stop
from convertkit.engines.quantized import (
    FUSED_SHARDS,
    Ask,
    Grid,
    class_meant,
    first_below,
    grids_of_targets,
    matching,
)
from convertkit.engines.sglang_quant_checks import (
    FP8_LAYERS,
    READ,
    check_blocks,
    check_format,
    check_group_size,
    check_groups,
    check_layer_rows,
    check_method,
    flat_group_size,
    names_of,
)
from convertkit.engines.vllm_schemes import settled

Packed = Mapping[str, tuple[str, ...]]

_PLAIN = re.compile(r"[A-Za-z0-9_.*\-]*", re.ASCII)
LACKING = "NO ALGORITHM"
"""Of a row of ``quantized_layers`` that names none."""
ALGORITHMS: Mapping[str, Grid] = {"NVFP4": "mo-a4", "W4A16_NVFP4": "mo-a16"}


@dataclass(frozen=True, slots=True)
class Quantization:
    """``ask`` answers for a module by SGLang's name and class; ``kv_scales``: attention holds scales of the cache."""

    family: str
    ask: Ask
    kv_scales: bool = False


NONE = Quantization("none", lambda module, kind: "dense")


def read_quantization(config: Mapping[str, Any], quant_file: Mapping[str, Any], packed: Packed) -> Quantization:
    """How SGLang quantizes a model. ``packed`` are the fused linears that its class names. Raises Stop where SGLang
    raises, Unknown for what is not described."""
    block = _block(config)
    if block is None and not quant_file:
        return NONE
    if block is not None:
        check_method(block, _section(block))
    method = str((block if block is not None else {}).get("quant_method", "modelopt")).lower()
    if method == "compressed-tensors":
        assert block is not None
        return Quantization(
            "compressed-tensors", _compressed_tensors(block, packed), bool(block.get("kv_cache_scheme"))
        )
    if not method.startswith("modelopt"):
        raise Unknown(f"the quantization method {method!r} is not one that convertkit's tables of SGLang describe")
    return _modelopt(block, quant_file, packed, config)


def _block(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    text = config.get("text_config")
    places = (config.get("quantization_config"), text.get("quantization_config") if isinstance(text, Mapping) else None,
              config.get("compression_config"))  # fmt: skip
    return next((place for place in places if isinstance(place, Mapping)), None)


def _modelopt(
    block: Mapping[str, Any] | None, quant_file: Mapping[str, Any], packed: Packed, config: Mapping[str, Any]
) -> Quantization:
    named = _section(block if block is not None else quant_file)
    algorithm = named.get("quant_algo")
    if not algorithm:
        raise stop("create", "Cannot find 'quant_algo' in the model's quantization config.", "sglang.quant-algo",
                   key="quant_algo")  # fmt: skip
    if algorithm != "MIXED_PRECISION":
        return _uniform(block if block is not None else quant_file, str(algorithm), packed)
    listed = named.get("quantized_layers")
    grids = {str(row.get("quant_algo", "")).upper() for row in (listed or {}).values() if isinstance(row, Mapping)}
    if not grids & set(ALGORITHMS):
        check_blocks(config)
    cache = "kv_cache_quant_algo" in named or "kv_cache_scheme" in named
    if block is None or not cache:
        if not quant_file:
            raise stop("create", "Cannot find the config file for modelopt_mixed", "sglang.quant-mixed",
                       key="quantization_config.kv_cache_quant_algo")  # fmt: skip
        named = _section(quant_file)
    return _mixed(named, packed)


def _section(block: Mapping[str, Any]) -> Mapping[str, Any]:
    stated = block.get("quantization")
    inner = stated if isinstance(stated, Mapping) else block
    deeper = inner.get("quantization")
    return deeper if isinstance(deeper, Mapping) else inner


def _uniform(block: Mapping[str, Any], algorithm: str, packed: Packed) -> Quantization:
    named = _section(block)
    nested = named is not block
    if "FP4" not in algorithm and algorithm not in READ:
        message = f"ModelOptFp8Config only supports regular FP8 quantization, but found {algorithm!r}."[:200]
        raise stop("create", message, "sglang.quant-algo", key="quant_algo")
    if algorithm not in ALGORITHMS:
        raise Unknown(f"the algorithm {algorithm} is not one that convertkit's tables of SGLang describe")
    if nested and not _group_sizes(block):
        raise stop("create", "Cannot find 'quant_algo' in the model's quantization config.", "sglang.quant-algo",
                   key="group_size")  # fmt: skip
    for size in _group_sizes(block) if nested else (flat_group_size(block),):
        check_group_size(size)
    keys = ("exclude_modules",) if nested else ("ignore", "modules_to_not_convert", "exclude_modules")
    left_out: Any = next((named[key] for key in keys if key in named), [])
    excluded = _Excluder(left_out, packed)
    grid = ALGORITHMS[algorithm]
    return Quantization("modelopt", lambda module, kind: "dense" if excluded(module) else grid, True)


def _group_sizes(block: Mapping[str, Any]) -> set[int]:
    found = [part.get("group_size") for part in (block, _section(block))]
    groups = block.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        parts = [group, *group.values()] if isinstance(group, Mapping) else []
        found += [part.get("group_size") for part in parts if isinstance(part, Mapping)]
    return {size for size in found if isinstance(size, int)}


def _mixed(named: Mapping[str, Any], packed: Packed) -> Quantization:
    listed = named.get("quantized_layers")
    if not isinstance(listed, Mapping) or not listed:
        message = "MIXED_PRECISION quantization requires a non-empty quantized_layers map."
        raise stop("create", message, "sglang.quant-mixed", key="quantized_layers")
    check_layer_rows(listed)
    layers = {str(name): str(row.get("quant_algo", LACKING)).upper() for name, row in listed.items()}
    excluded = _Excluder(named.get("ignore", named.get("exclude_modules")) or [], packed)
    parents = first_below(layers)
    cache = isinstance(named.get("kv_cache_scheme"), Mapping) or bool(named.get("kv_cache_quant_algo"))

    def ask(module: str, kind: str) -> Grid:
        found = _listed(module, layers, parents, packed)
        if found == LACKING:
            raise stop("create", "KeyError: 'quant_algo'", "sglang.quant-arguments", tensor=module)
        if not excluded(module) and found in FP8_LAYERS:
            raise Unknown(f"the algorithm {found} is not one that convertkit's tables of SGLang describe")
        return "dense" if excluded(module) or found is None else ALGORITHMS.get(found, "dense")

    return Quantization("modelopt-mixed", ask, cache)


def _candidates(module: str) -> tuple[str, ...]:
    """Names that stand for a module in ``quantized_layers`` (``modelopt_quant.py:1011``)."""
    found = [module, *(["lm_head"] if module.endswith(".lm_head") else [])]
    rest = module.removeprefix("model.language_model.")
    if module.startswith("language_model.model."):
        found.append("model.language_model." + module.removeprefix("language_model.model."))
    elif rest != module:
        found += [f"language_model.model.{rest}", f"model.{rest}"]
    elif module.startswith("model."):
        found.append("model.language_model." + module.removeprefix("model."))
    return tuple(dict.fromkeys(found))


def _listed(module: str, layers: Mapping[str, str], parents: Mapping[str, str], packed: Packed) -> str | None:
    """The algorithm of a module: its own entry, those of its shards, or one below it (``modelopt_quant.py:978``)."""
    own = next((layers[name] for name in _candidates(module) if name in layers), None)
    if own is not None:
        return own
    parent, _, leaf = module.rpartition(".")
    names = [f"{base}.{shard}" for base in _candidates(parent) for shard in packed.get(leaf, ())]
    found = {layers[name] for name in names if name in layers}
    if len(found) > 1:
        message = f"Mixed quant_algo within fused layer {module}: {', '.join(sorted(found))}"
        raise stop("create", message, "sglang.quant-shards", tensor=module)
    return found.pop() if found else next((parents[name] for name in _candidates(module) if name in parents), None)


class _Excluder:
    """Names and patterns that ModelOpt leaves out (``quantization/utils.py:70``, ``modelopt_quant.py:379``)."""

    def __init__(self, left_out: Any, packed: Packed) -> None:
        names = names_of(left_out, "ignore")
        if any(_PLAIN.fullmatch(name) is None for name in names):
            raise Unknown("an excluded module of the quantization config is an expression that is not described")
        self._names = frozenset(name.rstrip(".") for name in names)
        stars = [name for name in names if "*" in name]
        try:
            self._globs = Matcher([("glob", name) for name in stars]) if stars else None
        except PatternFault as fault:
            raise Unknown(f"a pattern of the quantization config is not matched: {fault}") from None
        self._packed = {**FUSED_SHARDS, **packed}

    def __call__(self, module: str) -> bool:
        parent, _, leaf = module.rpartition(".")
        shards = self._packed.get(leaf)
        if shards is None:
            return self._path(module) or self._pattern(module)
        found = {self._path(f"{parent}.{shard}" if parent else shard) for shard in shards}
        if len(found) > 1:
            message = f"Detected some but not all shards of {module} are quantized."
            raise stop("create", message, "sglang.quant-shards", tensor=module)
        return found.pop() or self._pattern(module)

    def _path(self, module: str) -> bool:
        """Any run of whole dotted parts is a listed name."""
        parts = module.split(".")
        runs = (".".join(parts[a:b]) for a in range(len(parts)) for b in range(a + 1, len(parts) + 1))
        return any(run in self._names for run in runs)

    def _pattern(self, module: str) -> bool:
        wholes = (module, module.removeprefix("language_model."), *module.split("."))
        return any(one in self._names or (self._globs is not None and bool(self._globs.hits(one))) for one in wholes)


def _compressed_tensors(block: Mapping[str, Any], packed: Packed) -> Ask:
    """Ignored names by shard, then targets by name, by class, by shards (``compressed_tensors/utils.py:23, 128``)."""
    check_groups(block)
    read = settled(block)
    targets, groups = grids_of_targets(read, lambda names: False), group_of_targets(read)
    ignored, wanted = _Names(names_of(block.get("ignore", []), "ignore")), matching(list(targets))

    def ask(module: str, kind: str) -> Grid:
        parent, _, leaf = module.rpartition(".")
        shards = [f"{parent}.{shard}" if parent else shard for shard in packed.get(leaf, ())]
        if _ignored(module, shards, ignored):
            return "dense"
        if kind == "ParallelLMHead" and wanted(module) is not None:
            raise Unknown("a quantized head of compressed-tensors is not one that convertkit's tables describe")
        if not targets or kind == "ParallelLMHead":
            return "dense"
        name = wanted(module) or next((one for one in targets if class_meant(one, kind)), None)
        if name is None and shards:
            found = [wanted(shard) for shard in shards]
            name = found[0] if all(found) else None
        if name is None:
            message = f"Unable to find matching target for {module} in the compressed-tensors config."
            raise stop("create", message, "sglang.quant-target", tensor=module)
        check_format(block, groups[name], module)
        return targets[name]

    return ask


def group_of_targets(block: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The group of each target; of several the last counts."""
    return {name: group for group in block.get("config_groups", {}).values() for name in group["targets"]}


def _ignored(module: str, shards: Sequence[str], ignored: _Names) -> bool:
    if not shards or module in ignored.names:
        return ignored.suffix(module)
    found = {ignored.suffix(shard) for shard in shards}
    if len(found) > 1:
        message = f"Found different quantization schemes for the parts of {module}"
        raise stop("create", message, "sglang.quant-shards", tensor=module)
    return found.pop()


class _Names:
    """Exact names and ``re:`` expressions, matched from the start of a name."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(name for name in names if not name.startswith("re:"))
        self._first = matching(names)

    def suffix(self, module: str) -> bool:
        """A name counts for every module that ends in it, at a dot."""
        parts = module.split(".")
        ends = (".".join(parts[place:]) for place in range(len(parts)))
        return any(end in self.names for end in ends) or self._first(module) is not None
