"""Which quantization config counts in vLLM 0.33: of those at several places, by method and algorithm.

``config.json`` may hold it at the top, in the draft's own config, under an older key; ``hf_quant_config.json`` stands
for one at the top.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convertkit.engines.model import Unknown, stop

MODELOPT_LINEAR = ("NVFP4", "W4A16_NVFP4")
FP8 = "FP8"
"""One scale for each linear: described for drafters, not for targets."""
OTHER_ALGORITHMS = ("FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MXFP8")
"""Algorithms that vLLM builds and these tables do not describe (``modelopt.py:143``)."""


def stated_block(
    config: Mapping[str, Any], values: Mapping[str, Any], quant_file: Mapping[str, Any] | None
) -> tuple[Mapping[str, Any], str] | None:
    """The quantization config that counts and ModelOpt's algorithm in it, which is empty for compressed-tensors. None
    if nothing is quantized. Raises Stop where vLLM raises, Unknown for other methods. ``quant_file`` is None where
    there is none; an empty one stands for a config that says nothing."""
    block = config.get("quantization_config")
    if block is None:  # the file stands for one at the top of config.json, so that none inside counts
        block = values.get("quantization_config") if quant_file is None else quant_file
    if block is None:
        block = values.get("compression_config")
    if not isinstance(block, Mapping):
        return None
    if not isinstance(block.get("producer", {}), Mapping):
        raise stop("config", "'producer' has no attribute 'get': it is no object", "vllm.quant-producer",
                   key="producer")  # fmt: skip
    method = quant_method(block)
    if not method:
        return None
    if method == "compressed-tensors":
        return block, ""
    if method in OTHER_METHODS:
        raise Unknown(f"the quantization method {method!r} is not one that convertkit's tables describe")
    if method not in MODELOPT_METHODS:
        raise stop("config", f"Unknown quantization method: {method}", "vllm.quant-method", key="quant_method")
    algorithm = algorithm_of(block)
    if algorithm == "MIXED_PRECISION" and "quantized_layers" not in block:
        block = layers_of_file(quant_file)
    return block, algorithm


MODELOPT_METHODS = ("modelopt", "modelopt_fp4", "modelopt_mixed")
OTHER_METHODS = frozenset(
    {"awq", "auto_awq", "fp8", "fbgemm_fp8", "fp_quant", "modelopt_mxfp8", "auto_gptq", "gptq", "gptq_marlin",
     "awq_marlin", "humming", "experts_int8", "quark", "moe_wna16", "torchao", "inc", "mxfp4", "gpt_oss_mxfp4",
     "deepseek_v4_fp8", "online", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "int8_per_channel_weight_only",
     "nvfp4_per_token", "mxfp8"}
)  # fmt: skip
"""Methods that vLLM knows and these tables do not describe (``quantization/__init__.py:16``)."""

METHODS_OF_FILE: Mapping[str, str] = {
    **dict.fromkeys(("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO"), "modelopt"),
    "NVFP4": "modelopt_fp4", "MIXED_PRECISION": "modelopt_mixed",
}  # fmt: skip
"""The methods of the algorithms that a config of the form of ``hf_quant_config.json`` may name
(``model_arch_config_convertor.py:255``). W4A16_NVFP4 is not among them."""


def _of_modelopt(block: Mapping[str, Any]) -> bool:
    producer = block.get("producer")
    return isinstance(producer, Mapping) and producer.get("name") == "modelopt"


def quant_method(block: Mapping[str, Any]) -> str:
    """``quant_method``; in the form of ``hf_quant_config.json`` it follows from the algorithm, whatever is stated. If
    none is stated it is empty, and nothing is quantized (``config/model.py:1452``). Raises Stop for one that is no
    word."""
    inner = block.get("quantization", {})
    if _of_modelopt(block) or (isinstance(inner, Mapping) and "modelopt_quant_config" in inner):
        if not isinstance(inner, Mapping):
            message = f"{type(inner).__name__!r} object has no attribute 'get': 'quantization' is no object"
            raise stop("config", message, "vllm.quant-method", key="quantization")
        algorithm = inner.get("quant_algo")
        if algorithm is not None:
            found = METHODS_OF_FILE.get(str(algorithm).upper())
            if found is None:
                raise stop("config", f"Unknown ModelOpt quant algo: {algorithm}"[:200], "vllm.quant-file-algo",
                           key="quant_algo")  # fmt: skip
            return found
    method = block.get("quant_method", "")
    if not isinstance(method, str):
        raise stop("config", f"quant_method is {method!r}, which has no attribute 'lower'"[:200], "vllm.quant-method",
                   key="quant_method")  # fmt: skip
    return method.lower().replace("compressed_tensors", "compressed-tensors")


def layers_of_file(quant_file: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if quant_file is None:
        raise stop("create", "MIXED_PRECISION needs 'quantized_layers', and there is no hf_quant_config.json",
                   "vllm.quant-mixed-layers", key="quantized_layers")  # fmt: skip
    if not _of_modelopt(quant_file):
        raise stop("create", "hf_quant_config.json does not name modelopt as its producer", "vllm.quant-producer",
                   key="producer")  # fmt: skip
    return quant_file


def algorithm_of(block: Mapping[str, Any]) -> str:
    inner = block.get("quantization", block)
    algorithm = inner.get("quant_algo") if isinstance(inner, Mapping) else None
    if not algorithm:
        raise stop("create", "Missing 'quant_algo' in quantization config", "vllm.quant-algo", key="quant_algo")
    cache = inner.get("kv_cache_quant_algo") if "quantization" in block else None
    if cache is not None and not isinstance(cache, str):
        raise stop("create", f"kv_cache_quant_algo must be a string, got {type(cache)}", "vllm.quant-algo",
                   key="kv_cache_quant_algo")  # fmt: skip
    algorithm = str(algorithm).upper()
    if algorithm in OTHER_ALGORITHMS:
        raise Unknown(f"the algorithm {algorithm} is not one that convertkit's tables describe")
    if algorithm not in (*MODELOPT_LINEAR, FP8, "MIXED_PRECISION"):
        raise stop("create", f"ModelOpt's {algorithm} is not among the algorithms that vLLM supports",
                   "vllm.quant-algo", key="quant_algo")  # fmt: skip
    return algorithm
