"""The one value type that each known key of a GGUF has, and what is wrong with values of others.

Format facts: ``get_key`` and ``get_arr`` of llama.cpp 0.5.0-dev (``src/llama-model-loader.cpp``) refuse another type.
Numbers are also compared with what any model could mean: a NaN or an infinity is read without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import isfinite

from convertkit.containers.gguf_values import Numbers, Scalar, Value
from convertkit.errors import Finding, finding
from convertkit.layouts.gguf_fields import DFLASH_FIELDS, EAGLE_FIELDS, MODEL_FIELDS, SPEC_FIELDS, YARN_NUMBERS

SHARED_KINDS: Mapping[str, str] = {
    "context_length": "u32",
    "attention.causal": "bool",
    "attention.sliding_window": "u32",
    "rope.dimension_count": "u32",
    "rope.freq_base": "f32",
    "rope.freq_base_swa": "f32",
    "rope.scaling.type": "str",
    "rope.scaling.factor": "f32",
    "rope.scaling.original_context_length": "u32",
    **{f"rope.scaling.{key}": "f32" for key in YARN_NUMBERS},
}
OWN_KINDS: Mapping[str, Mapping[str, str]] = {
    "dflash": {
        **{key: kind for key, kind, _ in (*SPEC_FIELDS, *DFLASH_FIELDS)},
        "embedding_scale": "f32",
        "logit_scale": "f32",
        "sample_from_anchor": "bool",
        "has_confidence_head": "bool",
    },
    "eagle3": {
        **{key: kind for key, kind, _ in (*SPEC_FIELDS, *EAGLE_FIELDS)},
        "norm_before_residual": "bool",
        "norm_before_fc": "bool",
    },
}
"""Kinds of a drafter's keys; those of language models are in ``MODEL_FIELDS``."""


@lru_cache(maxsize=16)
def _key_kinds(arch: str) -> Mapping[str, str]:
    """Whole keys of an architecture and their kinds."""
    models = {row.key: row.kind for row in MODEL_FIELDS}
    own = {**SHARED_KINDS, **OWN_KINDS.get(arch, models)}
    return {f"{arch}.{key}": kind for key, kind in own.items()}


def kind_findings(arch: str, metadata: Mapping[str, Value]) -> Iterator[Finding]:
    """E_GGUF_METADATA for every known key whose value is of another type or not finite, E_GGUF_TOKENIZER for ids."""
    for key, kind in _key_kinds(arch).items():
        value = metadata.get(key)
        if value is None:
            continue
        if not isinstance(value, Scalar) or value.kind != kind:
            yield finding("E_GGUF_METADATA", "error", f"the value is not one of type {kind}", key=key)
        elif isinstance(value.value, float) and not isfinite(value.value):
            yield finding("E_GGUF_METADATA", "error", f"the value is {value.value}", key=key)
    pattern = metadata.get(f"{arch}.attention.sliding_window_pattern")
    if arch == "dflash" and pattern is not None and not (isinstance(pattern, Numbers) and pattern.kind == "bool"):
        yield finding("E_GGUF_METADATA", "error", "the value is not a list of truth values",
                      key="dflash.attention.sliding_window_pattern")  # fmt: skip
    layers = metadata.get(f"{arch}.target_layers")
    if arch in OWN_KINDS and layers is not None and not (isinstance(layers, Numbers) and layers.kind in ("i32", "u32")):
        yield finding("E_GGUF_METADATA", "error", "the value is not a list of 32-bit numbers",
                      key=f"{arch}.target_layers")  # fmt: skip
    for key, value in metadata.items():
        named = key.startswith("tokenizer.ggml.") and key.endswith("_token_id")
        if named and not (isinstance(value, Scalar) and value.kind == "u32"):
            yield finding("E_GGUF_TOKENIZER", "error", "the token's number is not of type u32", key=key)
