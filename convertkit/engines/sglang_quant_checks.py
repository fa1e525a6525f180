"""What SGLang 0.5.23 refuses of a quantization config before it asks which linears are packed.

The method is looked at with the config (``configs/model_config.py:2033``), its arguments when the model is built
(``layers/quantization/modelopt_quant.py:850, 1595``, ``compressed_tensors/compressed_tensors.py:282``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convertkit.engines.model import Stop, Unknown, stop
from convertkit.engines.vllm_schemes import check_arguments

METHODS = frozenset(
    {"fp8", "mxfp8", "minimax_m3_nvfp4", "blockwise_int8", "modelopt", "modelopt_fp8", "modelopt_fp4", "nvfp4_online",
     "modelopt_mixed", "w8a8_int8", "w8a8_fp8", "awq", "awq_marlin", "bitsandbytes", "gguf", "gptq", "gptq_marlin",
     "moe_wna16", "compressed-tensors", "w4afp8", "petit_nvfp4", "quark", "quark_mxfp4", "auto-round",
     "auto-round-int8", "modelslim", "quark_int4fp8_moe", "humming", "mxfp_w4a8", "mxfp4"}
)  # fmt: skip
"""Methods that SGLang registers."""
READ = ("MIXED_PRECISION", "FP8", "MXFP8")
"""Algorithms of ModelOpt beside those with FP4 in their name."""
NVFP4 = ("NVFP4", "W4A16_NVFP4")
FP8_LAYERS = ("FP8", "MXFP8", "FP8_PB_WO", "FP8_BLOCK_SCALES")
ORDERS = ("weight", "group", "static", "dynamic")
"""Orders of activations that compressed-tensors 0.18 takes."""
PACKED_FORMAT = "nvfp4-pack-quantized"
FORMATS = frozenset(
    {"dense", "sparse-bitmask", "sparse-24-bitmask", "int-quantized", "float-quantized", "naive-quantized",
     "pack-quantized", "marlin-24", "mixed-precision", "mxfp4-pack-quantized", "mxfp8-quantized"}
)  # fmt: skip
"""Other formats of compressed-tensors, which are not described."""
BLOCK = 128
"""Rows and columns of a block of W4AFP8."""


def check_method(block: Mapping[str, Any], named: Mapping[str, Any]) -> None:
    """Raises Stop for a method that SGLang has not, or an algorithm that is no word. ``named`` is the section of a
    ModelOpt config that names the algorithm."""
    method = block.get("quant_method", "")
    if not isinstance(method, str):
        raise _method(f"{type(method).__name__!r} object has no attribute 'lower'", "quant_method")
    if "quant_method" in block and method != "modelopt":
        if method.lower() not in METHODS:
            raise _method(f"Unknown quantization method: {method}."[:200], "quant_method")
        return
    algorithm, listed = named.get("quant_algo"), named.get("quantized_layers")
    if algorithm is not None and not isinstance(algorithm, str):
        raise _method(f"the quant_algo is {algorithm!r}"[:200], "quant_algo")
    if algorithm == "MIXED_PRECISION" and listed and not isinstance(listed, Mapping):
        raise _method(f"{type(listed).__name__!r} object has no attribute 'values'", "quantized_layers")
    if "quant_method" not in block and not (algorithm in READ or "FP4" in (algorithm or "")):
        raise _method("Unknown quantization method: .", "quant_method")


def _method(message: str, key: str) -> Stop:
    return stop("config", message, "sglang.quant-method", key=f"quantization_config.{key}")


def check_blocks(config: Mapping[str, Any]) -> None:
    """A MIXED_PRECISION config without NVFP4 is taken for W4AFP8, whose linears come in blocks of 128."""
    heads, kv = config.get("num_attention_heads"), config.get("num_key_value_heads")
    sizes = [config.get("hidden_size"), config.get("intermediate_size"), config.get("head_dim")]
    if isinstance(sizes[2], int):
        sizes = [*sizes[:2], *(count * sizes[2] for count in (heads, kv) if isinstance(count, int))]
    odd = next((size for size in sizes if isinstance(size, int) and size % BLOCK), None)
    if odd is not None:
        message = f"Weight output_partition_size = {odd} is not divisible by weight quantization block_n = {BLOCK}."
        raise stop("create", message, "sglang.quant-mixed", key="quantization_config.quantized_layers")
    raise Unknown("a MIXED_PRECISION config without NVFP4 layers is read as W4AFP8, which is not described")


def flat_group_size(block: Mapping[str, Any]) -> Any:
    """The group size of a uniform config in ``config.json``; 16 if it does not say."""
    size, groups = block.get("group_size"), block.get("config_groups", {})
    if size is None and groups:
        first = next(iter(groups.values()), {}) if isinstance(groups, Mapping) else groups
        weights = first.get("weights", {}) if isinstance(first, Mapping) else first
        if not isinstance(weights, Mapping):
            message = f"{type(weights).__name__!r} object has no attribute 'get'"
            raise stop("create", message, "sglang.quant-arguments", key="quantization_config.config_groups")
        size = weights.get("group_size")
    return 16 if size is None else size


def check_group_size(size: Any) -> None:
    """Raises Stop for a size that is no number of columns, Unknown for one that NVFP4 has not."""
    key, rule = "quantization_config.group_size", "sglang.quant-arguments"
    if size is True:
        raise stop("load_weights", "scales of groups of one do not fit", rule, key=key)
    if type(size) is not int or size <= 0:
        raise stop("create", f"the group size is {size!r}, which divides nothing"[:200], rule, key=key)
    if size != 16:
        raise Unknown("a group size other than 16 is not one that convertkit's tables describe")


def names_of(left_out: Any, key: str) -> list[str]:
    """Names of modules that a config leaves out: a word is taken for its letters, an object for its keys."""
    found = list(left_out) if isinstance(left_out, str | Mapping) else left_out
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        message = f"'{key}' is {left_out!r}, which is no list of names"[:200]
        raise stop("create", message, "sglang.quant-arguments", key=f"quantization_config.{key}")
    return found


def check_layer_rows(listed: Mapping[str, Any]) -> None:
    """Rows of ``quantized_layers``: each names an algorithm; the group size of the first with NVFP4 counts for all."""
    size: Any = None
    for name, row in listed.items():
        if not isinstance(row, Mapping) or not isinstance(row.get("quant_algo", ""), str):
            message = f"the entry of {name} names no algorithm"[:200]
            raise stop("create", message, "sglang.quant-arguments", key="quantization_config.quantized_layers")
        if size is None and row.get("quant_algo", "").upper() in NVFP4:
            size = row.get("group_size", 16)
            check_group_size(size)


def check_groups(block: Mapping[str, Any]) -> None:
    """Groups of a compressed-tensors config, as compressed-tensors' own class takes them."""
    groups = block.get("config_groups", {})
    if not isinstance(groups, Mapping):
        raise _argument("config_groups", f"{type(groups).__name__!r} object has no attribute 'items'")
    for name, group in groups.items():
        if not isinstance(group, Mapping):
            raise _argument(f"config_groups.{name}", f"{type(group).__name__!r} object has no attribute 'get'")
        if names_of(group.get("targets"), f"config_groups.{name}.targets"):
            parts = ["weights", *(["input_activations"] if group.get("input_activations") else [])]
            for part in parts:
                place = f"config_groups.{name}.{part}"
                check_arguments(place, group.get(part), "sglang.quant-arguments", ORDERS)
    sparsity, cache = block.get("sparsity_config"), block.get("kv_cache_scheme")
    if sparsity and not (isinstance(sparsity, Mapping) and isinstance(sparsity.get("format"), str)):
        raise _argument("sparsity_config", "1 validation error for SparsityCompressionConfig")
    if sparsity and sparsity.get("targets"):
        raise Unknown("a sparsity_config with targets is not one that convertkit's tables of SGLang describe")
    if cache and not isinstance(cache, Mapping):
        raise _argument("kv_cache_scheme", f"{type(cache).__name__!r} object has no attribute 'get'")


def check_format(block: Mapping[str, Any], group: Mapping[str, Any], module: str) -> None:
    """Raises Stop for a group in a format that has no scheme, Unknown for one that is not described."""
    stated = block.get("format") if group.get("format") is None else group["format"]
    if stated in FORMATS if isinstance(stated, str) else False:
        raise Unknown(f"the format {stated} is not one that convertkit's tables of SGLang describe")
    if stated != PACKED_FORMAT:
        message = f"No compressed-tensors compatible scheme was found for {module}."
        raise stop("create", message, "sglang.quant-arguments", key="quantization_config.format")


def _argument(key: str, message: str) -> Stop:
    return stop("create", message, "sglang.quant-arguments", key=f"quantization_config.{key}")
