"""compressed-tensors' quantization config for NVFP4 (``nvfp4-pack-quantized``).

As llmcompressor 0.14.0.1 writes it and as the pydantic models of compressed-tensors 0.19 and 0.20
(``quantization/quant_config.py``, ``quant_args.py``) and vLLM 0.33.0 (``compressed_tensors.py:420,795``) read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from convertkit.dialects.scheme import Faults, Scheme
from convertkit.dialects.spelling import GROUP

FORMAT = "nvfp4-pack-quantized"
KNOWN_FORMATS = frozenset(
    (
        FORMAT,
        "dense",
        "sparse-bitmask",
        "sparse-24-bitmask",
        "int-quantized",
        "float-quantized",
        "naive-quantized",
        "pack-quantized",
        "marlin-24",
        "mixed-precision",
        "mxfp4-pack-quantized",
        "mxfp6-pack-quantized",
        "mxfp8-quantized",
    )
)
"""Formats of compressed-tensors 0.20 (``config/base.py``)."""

VERSION = "0.19.0"
"""The oldest release whose reader this config was checked with."""

WEIGHTS: Mapping[str, Any] = {
    "num_bits": 4,
    "type": "float",
    "strategy": "tensor_group",
    "group_size": GROUP,
    "symmetric": True,
}
"""What makes a group NVFP4; every reader checks these five."""

_STRATEGIES = ("tensor", "channel", "group", "block", "token", "tensor_group", "attn_head")
_BITS = (1, 2, 3, 4, 6, 8, 16)


def read_compressed_tensors(block: Mapping[str, Any], file: str, faults: Faults) -> Scheme | None:
    """Read a block strictly. Faults are E_QCONFIG with the key, and E_UNSUPPORTED_QUANT for other schemes."""
    form = block.get("format", "dense")
    if not isinstance(form, str) or form not in KNOWN_FORMATS:
        faults.add("format", f"'format' is {form!r}, which compressed-tensors does not have", fix=f"write {FORMAT}")
    groups = block.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        faults.add("config_groups", "'config_groups' must be a non-empty object")
        return None
    targets: list[str] = []
    algorithms: set[str] = set()
    for name, group in groups.items():
        algorithm = _read_group(name, group, faults)
        algorithms.add(algorithm)
        if isinstance(group, Mapping):
            found = faults.strings(group, "targets")
            if not found:
                faults.add("targets", f"the group '{name}' has no targets")
            targets += found
    ignore = faults.strings(block, "ignore")
    unread = tuple(
        entry
        for key, entries in (("targets", targets), ("ignore", ignore))
        for entry in faults.unread(key, "regex", [entry for entry in entries if entry.startswith("re:")])
    )
    foreign = tuple(sorted(algorithms - {"NVFP4", "W4A16_NVFP4", ""}))
    for what in foreign:
        faults.unsupported("config_groups", f"the config has a group of {what}, which convertkit cannot read")
    kv_cache = _kv_cache(block.get("kv_cache_scheme"), faults)
    known = tuple(sorted(algorithms - {""}))
    return Scheme("compressed-tensors", known, ignore, tuple(targets), {}, kv_cache, foreign, unread, file)


def _read_group(name: str, group: Any, faults: Faults) -> str:
    """The algorithm of one group, another scheme in words, or an empty string after a fault."""
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        faults.add("weights", f"the group '{name}' says nothing of weights")
        return ""
    before = len(faults.items)
    bits, strategy, kind = weights.get("num_bits", 8), weights.get("strategy"), weights.get("type", "int")
    if isinstance(bits, bool) or bits not in _BITS:
        faults.add("num_bits", f"'num_bits' of '{name}' is {bits!r}")
    if strategy is not None and strategy not in _STRATEGIES:
        faults.add("strategy", f"'strategy' of '{name}' is {strategy!r}")
    if kind not in ("int", "float"):
        faults.add("type", f"'type' of '{name}' is {kind!r}")
    size = weights.get("group_size")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < -1 or size == 0):
        faults.add("group_size", f"'group_size' of '{name}' is {size!r}")
    if len(faults.items) > before:
        return ""
    if (bits, kind, strategy) != (4, "float", "tensor_group"):
        return f"{kind}{bits} ({strategy or 'no strategy'})"
    if size != GROUP:
        faults.add("group_size", f"'group_size' of '{name}' is {size!r}; NVFP4 has blocks of {GROUP}")
    if weights.get("symmetric", True) is not True:
        faults.add("symmetric", f"'symmetric' of '{name}' is {weights['symmetric']!r}; NVFP4 has no zero points")
    if weights.get("dynamic", False) is not False:
        faults.add("dynamic", f"'dynamic' of '{name}' is {weights['dynamic']!r}; stored weights are static")
    return _activations(name, group.get("input_activations"), faults)


def _activations(name: str, value: Any, faults: Faults) -> str:
    if value is None:
        return "W4A16_NVFP4"
    if not isinstance(value, Mapping):
        faults.add("input_activations", f"'input_activations' of '{name}' must be an object or null")
        return ""
    if (value.get("num_bits"), value.get("type")) == (4, "float"):
        return "NVFP4"
    return f"NVFP4 weights with {value.get('type')}{value.get('num_bits')} activations"


def _kv_cache(value: Any, faults: Faults) -> str | None:
    if value is None:
        return None
    if isinstance(value, Mapping) and (value.get("num_bits"), value.get("type", "float")) == (8, "float"):
        return "FP8"
    faults.add("kv_cache_scheme", f"the KV-cache scheme {value!r} is not known")
    return None


def compressed_tensors_config(
    targets: Sequence[str], ignore: Sequence[str], activations: bool, kv_cache: str | None
) -> dict[str, Any]:
    """The block for ``config.json`` of a packed checkpoint; the format has no second file."""
    weights = {
        **WEIGHTS,
        "dynamic": False,
        "scale_dtype": "torch.float8_e4m3fn",
        "zp_dtype": None,
        "observer": "memoryless_minmax",
        "actorder": None,
        "block_structure": None,
        "observer_kwargs": {},
    }
    group = {
        "targets": list(targets),
        "format": FORMAT,
        "weights": weights,
        "input_activations": {**weights, "dynamic": "local", "observer": "static_minmax"} if activations else None,
        "output_activations": None,
    }
    kv_scheme = None
    if kv_cache == "FP8":
        kv_scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
    return {
        "config_groups": {"group_0": group},
        "format": FORMAT,
        "global_compression_ratio": None,
        "ignore": sorted(ignore),
        "kv_cache_scheme": kv_scheme,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": VERSION,
    }
