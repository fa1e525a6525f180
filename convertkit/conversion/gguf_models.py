"""What a causal model's config may say that llama.cpp computes otherwise: refused, since nothing would tell.

Format facts: the graphs of llama.cpp 0.5.0-dev (``src/models/llama.cpp``, ``qwen2.cpp``, ``qwen3.cpp``,
``qwen3moe.cpp``, ``gemma3.cpp``) against transformers 5.19.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from convertkit.errors import Finding, finding
from convertkit.layouts.gguf_fields import ROPE_SCALINGS, rope_parameters

ACTIVATIONS: Mapping[str, str] = {"gemma3": "gelu_pytorch_tanh"}
GEMMA_PATTERN = 6
"""Every sixth layer of Gemma 3 has full attention; llama.cpp has that built in."""
GEMMA_27B_LAYERS = 62
"""With so many layers llama.cpp scales attention as the 27B model does."""


def _loss(message: str, key: str) -> Finding:
    return finding("E_LOSS", "error", message, file="config.json", key=key)


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
