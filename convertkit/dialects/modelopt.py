"""ModelOpt's quantization config: uniform (W4A16_NVFP4, NVFP4) and MIXED_PRECISION.

As nvidia-modelopt 0.47.0 writes it (``torch/export/quant_utils.py:680-800``, ``convert_hf_config.py:128-263``) and
vLLM 0.33.0 reads it (``layers/quantization/modelopt.py:143-281, 785-860, 1640-1830``). Two spellings exist: nested
under ``quantization`` (``hf_quant_config.json``) and flat (``quantization_config`` in ``config.json``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from convertkit.dialects.scheme import Faults, Scheme
from convertkit.dialects.spelling import GROUP

READ = ("W4A16_NVFP4", "NVFP4")
MIXED = "MIXED_PRECISION"
KNOWN = frozenset(
    (
        *READ,
        MIXED,
        "FP8",
        "FP8_PER_CHANNEL_PER_TOKEN",
        "FP8_PB_WO",
        "NVFP4_AWQ",
        "NVFP4_SVD",
        "W4A8_NVFP4_FP8",
        "W4A8_MXFP4_FP8",
        "MXFP8",
        "MXFP4",
        "W4A16_AWQ",
        "W4A8_AWQ",
        "W8A16",
        "W8A8_SQ_PER_CHANNEL",
        "INT8_SQ",
    )
)
"""Algorithm names of ModelOpt 0.47; those not in ``READ`` are reported, not converted."""

PRODUCER: Mapping[str, str] = {"name": "modelopt", "version": "0.47.0"}
"""Readers take ``hf_quant_config.json`` for ModelOpt's only if the producer is called so (vLLM 0.33
``weight_utils.py:269``); the version is that of the layout followed."""


def read_modelopt(block: Mapping[str, Any], file: str, faults: Faults) -> Scheme | None:
    """Read a block in either spelling. Faults are E_QCONFIG and E_UNSUPPORTED_QUANT; None if it says nothing."""
    inner = block.get("quantization", block)
    if not isinstance(inner, Mapping):
        faults.add("quantization", "'quantization' must be an object")
        return None
    algorithm = inner.get("quant_algo")
    if algorithm is None:
        return None
    if not isinstance(algorithm, str) or algorithm.upper() not in KNOWN:
        faults.add("quant_algo", f"'quant_algo' is {algorithm!r}, which ModelOpt 0.47 does not write")
        return None
    _group_size(inner, "group_size", faults)
    ignore = (*faults.strings(inner, "exclude_modules"), *faults.strings(inner, "ignore"))
    unread = faults.unread("ignore", "glob", [entry for entry in ignore if any(sign in entry for sign in "*?[")])
    mixed = algorithm.upper() == MIXED
    layers = _layers(inner, faults) if mixed else {}
    if mixed and not layers:
        return None
    algorithms = tuple(sorted(set(layers.values()))) if layers else (_effective(algorithm.upper(), inner, faults),)
    foreign = tuple(name for name in algorithms if name not in READ)
    for name in foreign:
        faults.unsupported("quant_algo", f"the config states {name}, which convertkit cannot read")
    dialect = "modelopt-mixed" if mixed else "modelopt"
    return Scheme(dialect, algorithms, ignore, (), layers, _kv_cache(inner, faults), foreign, unread, file)


def _effective(algorithm: str, inner: Mapping[str, Any], faults: Faults) -> str:
    """NVFP4 whose groups all lack input activations means weights only (vLLM 0.33 ``modelopt.py:797``)."""
    groups = inner.get("config_groups")
    if groups is None:
        return algorithm
    if not isinstance(groups, Mapping) or any(not isinstance(group, Mapping) for group in groups.values()):
        faults.add("config_groups", "'config_groups' must be an object of objects")
        return algorithm
    for group in groups.values():
        weights = group.get("weights")
        if isinstance(weights, Mapping) and algorithm in READ:
            _group_size(weights, "group_size", faults)
            if weights.get("num_bits", 4) != 4:
                faults.add("num_bits", f"'num_bits' is {weights['num_bits']!r}; {algorithm} has 4")
    weights_only = bool(groups) and all(group.get("input_activations") is None for group in groups.values())
    return "W4A16_NVFP4" if algorithm == "NVFP4" and weights_only else algorithm


def _layers(inner: Mapping[str, Any], faults: Faults) -> dict[str, str]:
    """``quantized_layers`` as module to algorithm."""
    value = inner.get("quantized_layers")
    if not isinstance(value, Mapping) or not value:
        faults.add("quantized_layers", "MIXED_PRECISION needs a non-empty 'quantized_layers'")
        return {}
    layers: dict[str, str] = {}
    for name, entry in value.items():
        algorithm = entry.get("quant_algo") if isinstance(entry, Mapping) else None
        if not isinstance(algorithm, str) or algorithm.upper() not in KNOWN - {MIXED}:
            faults.add("quantized_layers", f"the layer '{name}' has no known 'quant_algo'")
            continue
        if algorithm.upper() in READ:
            _group_size(entry, "group_size", faults)
        layers[name] = algorithm.upper()
    return layers


def _group_size(block: Mapping[str, Any], key: str, faults: Faults) -> None:
    size = block.get(key, GROUP)
    if size is not None and (isinstance(size, bool) or size != GROUP):
        faults.add(key, f"'{key}' is {size!r}; NVFP4 has blocks of {GROUP}")


def _kv_cache(inner: Mapping[str, Any], faults: Faults) -> str | None:
    """``kv_cache_quant_algo`` (nested spelling) or ``kv_cache_scheme`` (flat)."""
    value = inner.get("kv_cache_quant_algo") or inner.get("kv_cache_scheme")
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, Mapping) and value.get("type") == "float" and value.get("num_bits") in (4, 8):
        return "FP8" if value["num_bits"] == 8 else "NVFP4"
    faults.add("kv_cache_scheme", f"the KV-cache scheme {value!r} is not known")
    return None


def modelopt_config(
    layers: Mapping[str, str], ignore: Sequence[str], mixed: bool, kv_cache: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The block for ``config.json`` and the document ``hf_quant_config.json`` of a packed checkpoint.

    ``layers`` maps packed modules, as the config must name them, to ``W4A16_NVFP4`` or ``NVFP4``; ``ignore`` is
    what a uniform config leaves out.
    """
    algorithms = sorted(set(layers.values()))
    groups: dict[str, Any] = {}
    for number, algorithm in enumerate(algorithms):
        names = sorted(name for name, which in layers.items() if which == algorithm) if mixed else ["Linear"]
        groups[f"group_{number}"] = _group(algorithm, names)
    block: dict[str, Any] = {"config_groups": groups, "quant_method": "modelopt", "producer": dict(PRODUCER)}
    inner: dict[str, Any] = {"kv_cache_quant_algo": kv_cache}
    if mixed:
        listed = {name: {"quant_algo": layers[name], "group_size": GROUP} for name in sorted(layers)}
        block |= {"ignore": [], "quant_algo": MIXED, "quantized_layers": listed}
        inner |= {"quant_algo": MIXED, "quantized_layers": listed}
    else:
        block |= {"ignore": sorted(ignore), "quant_algo": algorithms[0]}
        inner |= {"quant_algo": algorithms[0], "group_size": GROUP, "exclude_modules": sorted(ignore)}
    if kv_cache is not None:
        block["kv_cache_scheme"] = {"dynamic": False, "num_bits": 8, "type": "float"} if kv_cache == "FP8" else kv_cache
    return block, {"producer": dict(PRODUCER), "quantization": inner}


def _group(algorithm: str, targets: Sequence[str]) -> dict[str, Any]:
    numbers = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": GROUP}
    group: dict[str, Any] = {"weights": dict(numbers), "targets": list(targets)}
    return group | {"input_activations": dict(numbers)} if algorithm == "NVFP4" else group
