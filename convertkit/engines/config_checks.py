"""What transformers refuses of a config before an engine looks at it: 5.20.2 beside vLLM, 5.19.0 beside SGLang."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from convertkit.engines.hf_fields import misfit
from convertkit.engines.model import stop

MODEL_TYPE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*", re.ASCII)
"""What every registered model type looks like."""


def check_layers(values: Mapping[str, Any], engine: str = "vllm") -> None:
    """What transformers checks of every config (``configuration_utils.py``); the rules are those of ``engine``."""
    types, layers = values.get("layer_types"), values.get("num_hidden_layers")
    if isinstance(types, list) and isinstance(layers, int) and len(types) != layers:
        message = f"`num_hidden_layers` ({layers}) must be equal to the number of `layer_types` ({len(types)})"
        raise stop("config", message, f"{engine}.layer-types", key="layer_types")
    strange = [kind for kind in types if kind not in LAYER_TYPES] if isinstance(types, list) else []
    if strange:
        message = f"The `layer_types` entries must be known ones, and {strange[0]!r} is not"[:200]
        raise stop("config", message, f"{engine}.layer-types", key="layer_types")
    if not isinstance(values.get("id2label", {}), Mapping | None):
        raise stop("config", "'id2label' has no attribute 'items'", f"{engine}.config-type", key="id2label")
    head, rope = values.get("head_dim"), values.get("rope_parameters")
    partial = rope.get("partial_rotary_factor", 1.0) if isinstance(rope, Mapping) else 1.0
    if isinstance(head, int) and head > 4 and head % 2 and partial == 1.0:
        raise stop("config", f"RoPE requires an even head_dim, got {head}", f"{engine}.rope", key="head_dim")


LAYER_TYPES = frozenset(
    {"full_attention", "sliding_attention", "chunked_attention", "window_attention", "indexed_attention",
     "compressed_sparse_attention", "heavily_compressed_attention", "minimax_m3_sparse", "conv", "moe", "hybrid",
     "hybrid_sliding", "reference_sliding_attention", "linear_attention",
     "mamba", "attention", "deepseek_sparse_attention", "qwen_sparse_attention"}
)  # fmt: skip
"""What ``layer_types`` may hold, the last four under their earlier names."""
RENAMED_LAYERS: Mapping[str, str] = {
    "mamba": "linear_attention", "attention": "full_attention", "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
}  # fmt: skip
"""What transformers makes of earlier names."""
DTYPES = frozenset(
    {"bfloat16", "float16", "half", "float32", "float", "float64", "double", "float8_e4m3fn", "float8_e5m2",
     "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "int8", "int16", "int32", "int64",
     "short", "int", "long", "uint8", "uint16", "uint32", "uint64", "bool", "cfloat", "cdouble", "complex32",
     "complex64", "complex128", "qint8", "quint8", "qint32"}
)  # fmt: skip
"""Attributes of torch that a config may name."""


def check_fields(config: Mapping[str, Any], fields: Mapping[str, str], engine: str = "vllm") -> None:
    """Raises Stop for a field of ``fields`` (``hf_fields``) that is null or of another type than its class takes, and
    for a dtype that torch has not."""
    key = misfit(config, fields)
    if key is not None:
        message = f"Validation error for field '{key}': {config[key]!r} is not of its type"[:200]
        rule = "config-null" if config[key] is None else "config-type"
        raise stop("config", message, f"{engine}.{rule}", key=key)
    check_dtype(config, engine)


def check_dtype(config: Mapping[str, Any], engine: str = "vllm") -> None:
    """Raises Stop for a dtype that torch has not."""
    stated = config.get("torch_dtype") if config.get("dtype") is None else config["dtype"]
    if isinstance(stated, list):
        raise stop("config", "list index out of range: the dtype is a list", f"{engine}.config-null", key="dtype")
    if isinstance(stated, str) and stated not in DTYPES:
        raise stop("config", f"module 'torch' has no attribute '{stated}'", f"{engine}.config-null", key="dtype")


def check_llama(values: Mapping[str, Any], engine: str = "vllm") -> None:
    """What transformers' LlamaConfig computes with the number of heads."""
    hidden, heads = values.get("hidden_size"), values.get("num_attention_heads")
    if heads == 0:
        raise stop("config", "integer modulo by zero: there are no attention heads", f"{engine}.config-type",
                   key="num_attention_heads")  # fmt: skip
    if hidden and heads and hidden % heads:
        message = f"The hidden size ({hidden}) is not a multiple of the number of attention heads ({heads})."
        raise stop("config", message, f"{engine}.config-type", key="num_attention_heads")
