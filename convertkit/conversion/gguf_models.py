"""What a causal model's config may say that llama.cpp computes otherwise: refused, since nothing would tell.

Format facts: the graphs of llama.cpp 0.5.0-dev (``src/models/llama.cpp``, ``qwen2.cpp``, ``qwen3.cpp``,
``qwen3moe.cpp``, ``gemma3.cpp``) against transformers 5.19.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from convertkit.containers.folder import CONFIG
from convertkit.errors import Finding, finding
from convertkit.layouts.gguf_fields import MODEL_FIELDS, ROPE_SCALINGS, YARN_NUMBERS, rope_parameters
from convertkit.layouts.layout import config_value

ACTIVATIONS: Mapping[str, str] = {"gemma3": "gelu_pytorch_tanh"}
GEMMA_PATTERN = 6
"""Every sixth layer of Gemma 3 has full attention; llama.cpp has that built in."""
GEMMA_27B_LAYERS = 62
"""With so many layers llama.cpp scales attention as the 27B model does."""


ROPE_NUMBERS = ("rope_theta", "factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor",
                *YARN_NUMBERS.values())  # fmt: skip
MAX_U32 = (1 << 32) - 1
MAX_F32 = 3.4e38


def value_faults(config: Mapping[str, Any]) -> Iterable[Finding]:
    """E_CONFIG for every field that will be metadata and is not a number that fits there. Nothing is filled in yet."""
    for row in MODEL_FIELDS:
        value = config.get(row.config)
        if value is not None and not (_whole(value) if row.kind == "u32" else _number(value)):
            yield _kind(row.config, value)
    for name in ("rope_theta", "rope_local_base_freq"):
        if config.get(name) is not None and not _number(config[name]):
            yield _kind(name, config[name])
    for name in ("rope_parameters", "rope_scaling"):
        yield from _rope_faults(name, config.get(name), nested=True)


def context_faults(config: Mapping[str, Any]) -> Iterable[Finding]:
    """The same for the one field of a drafter's config that is metadata as it stands."""
    value = config_value(config, "max_position_embeddings")
    if value is not None and not _whole(value):
        yield _kind("max_position_embeddings", value)


def _rope_faults(name: str, rope: Any, nested: bool) -> Iterable[Finding]:
    if not rope:
        return
    if not isinstance(rope, Mapping):
        yield _kind(name, rope)
        return
    for key in ROPE_NUMBERS:
        if rope.get(key) is not None and not _number(rope[key]):
            yield _kind(f"{name}.{key}", rope[key])
    for key in ("full_attention", "sliding_attention") if nested else ():
        yield from _rope_faults(f"{name}.{key}", rope.get(key), nested=False)


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_U32


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= MAX_F32


def _kind(name: str, value: Any) -> Finding:
    return finding("E_CONFIG", "error", f"{value!r:.80} is not a number that fits here", file=CONFIG, key=name)


def _loss(message: str, key: str) -> Finding:
    return finding("E_LOSS", "error", message, file=CONFIG, key=key)


def model_faults(arch: str, config: Mapping[str, Any]) -> Iterable[Finding]:
    """Fields whose meaning would be lost. ``config`` has its defaults filled in."""
    wanted = ACTIVATIONS.get(arch, "silu")
    stated = config.get("hidden_activation") or config.get("hidden_act") or wanted
    if stated != wanted:
        yield _loss(f"llama.cpp's {arch} computes '{wanted}', not '{stated}'", "hidden_act")
    rope = rope_parameters(config)
    kinds = ("default", *ROPE_SCALINGS, *(("llama3",) if arch == "llama" else ()))
    if str(rope["rope_type"]) not in kinds:
        yield _loss(f"the rope scaling '{rope['rope_type']}' has no place in the metadata of {arch}", "rope_parameters")
    fraction = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if fraction not in (None, 1, 1.0):
        yield _loss(f"only {fraction} of each head is rotated; llama.cpp's {arch} rotates all", "partial_rotary_factor")
    yield from _gemma(config) if arch == "gemma3" else _sliding(arch, config)
    if arch == "qwen3moe" and not config.get("norm_topk_prob", False):
        yield _loss("llama.cpp's qwen3moe always normalises the weights of the chosen experts", "norm_topk_prob")


def _sliding(arch: str, config: Mapping[str, Any]) -> Iterable[Finding]:
    kinds = config.get("layer_types")
    slides = "sliding_attention" in kinds if isinstance(kinds, list) else bool(config.get("use_sliding_window"))
    if slides and config.get("sliding_window") is not None:
        yield _loss(f"llama.cpp's {arch} has full attention in every layer", "layer_types")


def _gemma(config: Mapping[str, Any]) -> Iterable[Finding]:
    layers = config["num_hidden_layers"]
    kinds = config.get("layer_types")
    full = [(place + 1) % GEMMA_PATTERN == 0 for place in range(min(layers, 1 << 16))]
    if isinstance(kinds, list) and [kind == "full_attention" for kind in kinds] != full:
        yield _loss(f"llama.cpp's gemma3 has full attention in every {GEMMA_PATTERN}th layer", "layer_types")
    scalar, heads = config.get("query_pre_attn_scalar"), config["num_attention_heads"]
    built_in = config["hidden_size"] // heads if layers == GEMMA_27B_LAYERS else config["head_dim"]
    if scalar is not None and scalar != built_in:
        yield _loss(f"llama.cpp's gemma3 scales attention by {built_in}, not {scalar}", "query_pre_attn_scalar")
    for key in ("attn_logit_softcapping", "use_bidirectional_attention"):
        if config.get(key):
            yield _loss(f"llama.cpp's gemma3 has no '{key}'", key)
