"""What transformers refuses of a compressed-tensors config: compressed-tensors' own classes read it when weights load.

Run with compressed-tensors 0.20: every case of ``kind_cases`` and ``config_cases``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convertkit.engines.model import Stop, stop
from convertkit.engines.vllm_schemes import check_argument_fields

STATUSES = ("initialized", "calibration", "frozen", "compressed", "decompressed")
FORMATS = frozenset(
    {"dense", "sparse-bitmask", "sparse-24-bitmask", "int-quantized", "float-quantized", "naive-quantized",
     "pack-quantized", "marlin-24", "mixed-precision", "nvfp4-pack-quantized", "mxfp4-pack-quantized",
     "mxfp6-pack-quantized", "mxfp8-quantized"}
)  # fmt: skip
"""Formats of a group; that of the whole config may be any word."""
RULE = "transformers.arguments"


def check_pack(block: Mapping[str, Any]) -> None:
    """Raises Stop where compressed-tensors refuses a config."""
    groups = block.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise _refused("config_groups", "there are no config_groups")
    if not isinstance(block.get("format"), str | None):
        raise _refused("format", "Input should be a valid string")
    status, ignore = block.get("quantization_status"), block.get("ignore")
    if "quantization_status" in block and status not in STATUSES:
        raise _refused("quantization_status", f"the status {status!r} is not known"[:200])
    if ignore is not None and not _words(ignore):
        raise _refused("ignore", "Input should be a valid list of words")
    if block.get("kv_cache_scheme") is not None:
        _arguments("kv_cache_scheme", block["kv_cache_scheme"])
    for name, group in groups.items():
        _group(f"config_groups.{name}", group)


def _group(place: str, group: Any) -> None:
    if not isinstance(group, Mapping) or not _words(group.get("targets")):
        raise _refused(place, "the group has no list of targets")
    kind = group.get("format")
    if kind is not None and not (isinstance(kind, str) and kind in FORMATS):
        raise _refused(f"{place}.format", f"the format {kind!r} is not known"[:200])
    for part in ("weights", "input_activations", "output_activations"):
        stated = group.get(part)
        if stated is not None:
            _arguments(f"{place}.{part}", stated)
    weights = group.get("weights")
    if weights and group["targets"]:
        _weights(f"{place}.weights", weights)


def _arguments(place: str, stated: Any) -> None:
    try:
        check_argument_fields(place, stated, RULE)
    except Stop as stopped:
        raise _refused(place, stopped.refused.message) from None


def _weights(place: str, stated: Mapping[str, Any]) -> None:
    """Arguments that no compressor takes."""
    bits, size = stated.get("num_bits", 8), stated.get("group_size")
    if int(float(bits)) not in (4, 8) or isinstance(bits, bool):
        raise _refused(f"{place}.num_bits", f"Only num_bits in (8) are supported, not {bits!r}")
    if str(stated.get("strategy")).lower() in ("tensor_group", "group") and (size is None or size < 1):
        raise _refused(f"{place}.group_size", "the strategy requires a group size above zero")
    if stated.get("dynamic"):
        raise _refused(f"{place}.dynamic", "KeyError: 'weight_scale'")


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _refused(key: str, message: str) -> Stop:
    return stop("load_weights", message, RULE, key=f"quantization_config.{key}")
