"""Keys and shapes that llama.cpp's loaders ask for. Compared with libllama: ``tests/oracle/gguf_loader.py``."""

from __future__ import annotations

from collections.abc import Mapping

REQUIRED_KEYS: Mapping[str, str] = {
    "block_count": "u32",
    "context_length": "u32",
    "embedding_length": "u32",
    "feed_forward_length": "u32",
    "attention.head_count": "u32",
    "attention.head_count_kv": "u32",
    "attention.layer_norm_rms_epsilon": "f32",
    "rope.freq_base": "f32",
}
"""Keys that every architecture here needs, with the one type that llama.cpp reads."""
OWN_KEYS: Mapping[str, Mapping[str, str]] = {
    "dflash": {"block_size": "u32", "attention.causal": "bool"},
    "eagle3": {"target_hidden_size": "u32"},
    "qwen3moe": {"expert_count": "u32", "expert_used_count": "u32", "expert_feed_forward_length": "u32"},
}
"""Keys that one architecture needs too."""
DEFAULTED = frozenset({"rope.freq_base", "block_size", "attention.causal"})
"""Needed keys without which llama.cpp loads the file and takes a value of its own."""
UNREAD = frozenset({("qwen3moe", "feed_forward_length")})
"""Keys that an architecture does not read."""
BY_LAYER = frozenset({"attention.head_count", "attention.head_count_kv", "feed_forward_length"})
"""Keys that may hold one value per layer."""
TYPED_KEYS: Mapping[str, str] = {
    "attention.key_length": "u32",
    "attention.value_length": "u32",
    "attention.sliding_window": "u32",
    "rope.dimension_count": "u32",
    "rope.freq_base_swa": "f32",
    "norm_before_fc": "bool",
    "norm_before_residual": "bool",
}
"""Keys that may be absent, with the one type that llama.cpp reads."""
OWN_TYPED_KEYS: Mapping[str, Mapping[str, str]] = {"llama": {"vocab_size": "u32"}}
"""The same for one architecture."""
VOCABULARIES = frozenset({"gpt2", "llama", "bert", "t5", "rwkv", "plamo2", "none"})
"""Values of ``tokenizer.ggml.model`` that llama.cpp knows."""
TRIED_SPLITS = frozenset({"default", "gpt-2", "gpt-4o", "llama-bpe", "qwen2", "qwen35", "tekken"})
"""Values of ``tokenizer.ggml.pre`` that were loaded; llama.cpp refuses those that it does not know."""
BIASED = frozenset({"llama"})
"""Architectures that load biases of any linear of a layer, stated nowhere."""
LINEARS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")

SHAPES: Mapping[str, tuple[str, ...]] = {
    "token_embd.weight": ("V", "H"),
    "output.weight": ("DV", "H"),
    "output_norm.weight": ("H",),
    "blk.{i}.attn_norm.weight": ("H",),
    "blk.{i}.attn_norm_2.weight": ("H",),
    "blk.{i}.ffn_norm.weight": ("H",),
    "blk.{i}.post_attention_norm.weight": ("H",),
    "blk.{i}.post_ffw_norm.weight": ("H",),
    "blk.{i}.attn_q.weight": ("nh*hd", "in"),
    "blk.{i}.attn_k.weight": ("nkv*hd", "in"),
    "blk.{i}.attn_v.weight": ("nkv*hv", "in"),
    "blk.{i}.attn_q.bias": ("nh*hd",),
    "blk.{i}.attn_k.bias": ("nkv*hd",),
    "blk.{i}.attn_v.bias": ("nkv*hv",),
    "blk.{i}.attn_output.weight": ("H", "nh*hv"),
    "blk.{i}.attn_q_norm.weight": ("hd",),
    "blk.{i}.attn_k_norm.weight": ("hd",),
    "blk.{i}.ffn_gate.weight": ("I", "H"),
    "blk.{i}.ffn_up.weight": ("I", "H"),
    "blk.{i}.ffn_down.weight": ("H", "I"),
    "blk.{i}.ffn_gate_inp.weight": ("E", "H"),
    "blk.{i}.ffn_gate_exps.weight": ("E", "Ie", "H"),
    "blk.{i}.ffn_up_exps.weight": ("E", "Ie", "H"),
    "blk.{i}.ffn_down_exps.weight": ("E", "H", "Ie"),
    "blk.{i}.attn_conv_base": ("2", "k", "H"),
    "blk.{i}.ffn_conv_base": ("2", "k", "H"),
    "blk.{i}.attn_conv_proj.weight": ("2*k*H/g", "H"),
    "blk.{i}.ffn_conv_proj.weight": ("2*k*H/g", "H"),
    "selector_predecessor.weight": ("V", "r"),
    "selector_successor.weight": ("V", "r"),
    "selector_hidden.weight": ("r", "H"),
    "fc.weight": ("H", "T*Ht"),
    "d2t": ("DV",),
    "enc.output_norm.weight": ("H",),
    "markov_w1.weight": ("V", "mr"),
    "markov_w2.weight": ("DV", "mr"),
    "conf_proj.weight": ("1", "H+mr"),
    "conf_proj.bias": ("1",),
}
"""GGUF name to its shape in NumPy order, over the symbols of ``_symbols``."""
ARCH_SHAPES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "qwen2": {
        "blk.{i}.attn_q.weight": ("H", "H"),
        "blk.{i}.attn_q.bias": ("H",),
        "blk.{i}.attn_k.weight": ("nkv*hv", "H"),
        "blk.{i}.attn_k.bias": ("nkv*hv",),
        "blk.{i}.attn_output.weight": ("H", "H"),
    }
}
"""Where a loader asks for other shapes than its graph computes with."""
SYMBOLS = {
    "H": "embedding_length",
    "I": "feed_forward_length",
    "nh": "attention.head_count",
    "nkv": "attention.head_count_kv",
    "E": "expert_count",
    "Ie": "expert_feed_forward_length",
    "k": "conv_kernel_size",
    "g": "conv_group_size",
    "r": "selector_rank",
}
