"""Small models of every kind that becomes a GGUF, with configs, weights and a tokenizer, written in a moment."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.checkpoint import TensorSpec
from convertkit.containers.safetensors import encode_header
from convertkit.dtypes import DTYPES

Shapes = dict[str, tuple[int, ...]]
VOCABULARY = 512
HIDDEN, INTER, HEADS, KV, DIM = 128, 256, 4, 2, 32
TARGET_LAYERS = 6
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_tokens() -> list[str]:
    """The 256 characters that stand for bytes in byte-level BPE, in the order of the bytes."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    return [chr(byte) if byte in keep else chr(next(other)) for byte in range(256)]


def write_tokenizer(folder: Path, split: str = QWEN2_SPLIT, few: int = 256) -> None:
    """A small byte-level BPE; with ``few`` less than 256 only so many bytes have a token, and two are merged."""
    tokens = byte_tokens()[:few]
    merges = [(a, b) for a in "ethoins" for b in "aeiou"] if few == 256 else [("A", "B")]
    vocabulary = {token: number for number, token in enumerate([*tokens, *(a + b for a, b in merges)])}
    added = [
        {"id": len(vocabulary) + place, "content": content, "special": special, "normalized": False,
         "single_word": False, "lstrip": False, "rstrip": False}
        for place, (content, special) in enumerate((("<|endoftext|>", True), ("<|im_end|>", True), ("<tool>", False)))
    ]  # fmt: skip
    pre = [{"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}] if split else []
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": not split}
    document = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*pre, byte_level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                  "vocab": vocabulary, "merges": [" ".join(pair) for pair in merges]},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    settings = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None, "add_bos_token": False,
                "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
                "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1024}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _base(layers: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": HIDDEN, "intermediate_size": INTER, "num_hidden_layers": layers, "num_attention_heads": HEADS,
        "num_key_value_heads": KV, "head_dim": DIM, "vocab_size": VOCABULARY, "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "dtype": "bfloat16", **more,
    }  # fmt: skip


def _attention(prefix: str, width: int = HIDDEN, norms: bool = True) -> Shapes:
    shapes: Shapes = {
        f"{prefix}.self_attn.q_proj.weight": (HEADS * DIM, width),
        f"{prefix}.self_attn.k_proj.weight": (KV * DIM, width),
        f"{prefix}.self_attn.v_proj.weight": (KV * DIM, width),
        f"{prefix}.self_attn.o_proj.weight": (HIDDEN, HEADS * DIM),
    }
    if norms:
        shapes |= {f"{prefix}.self_attn.{leaf}_norm.weight": (DIM,) for leaf in "qk"}
    return shapes


def _mlp(prefix: str) -> Shapes:
    return {
        f"{prefix}.mlp.gate_proj.weight": (INTER, HIDDEN),
        f"{prefix}.mlp.up_proj.weight": (INTER, HIDDEN),
        f"{prefix}.mlp.down_proj.weight": (HIDDEN, INTER),
    }


def _norms(prefix: str, *names: str) -> Shapes:
    return {f"{prefix}.{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm", *names)}


def _causal(
    kind: str, name: str, layers: int, layer: Callable[[str], Shapes], **more: Any
) -> tuple[dict[str, Any], Shapes]:
    shapes: Shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for number in range(layers):
        shapes |= layer(f"model.layers.{number}")
    config = {"model_type": kind, "architectures": [name], **_base(layers), **more}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (VOCABULARY, HIDDEN)
    return config, shapes


def _llama() -> tuple[dict[str, Any], Shapes]:
    return _causal("llama", "LlamaForCausalLM", 2, lambda p: _attention(p, norms=False) | _mlp(p) | _norms(p))


def _qwen2() -> tuple[dict[str, Any], Shapes]:
    rows = {"q": HEADS * DIM, "k": KV * DIM, "v": KV * DIM}
    return _causal("qwen2", "Qwen2ForCausalLM", 2, lambda p: _attention(p, norms=False) | _mlp(p) | _norms(p)
                   | {f"{p}.self_attn.{leaf}_proj.bias": (size,) for leaf, size in rows.items()})  # fmt: skip


def _qwen3() -> tuple[dict[str, Any], Shapes]:
    return _causal("qwen3", "Qwen3ForCausalLM", TARGET_LAYERS, lambda p: _attention(p) | _mlp(p) | _norms(p))


def _qwen3_moe() -> tuple[dict[str, Any], Shapes]:
    experts = 4

    def layer(prefix: str) -> Shapes:
        shapes = _attention(prefix) | _norms(prefix) | {f"{prefix}.mlp.gate.weight": (experts, HIDDEN)}
        for expert in range(experts):
            stem = f"{prefix}.mlp.experts.{expert}"
            shapes |= {f"{stem}.gate_proj.weight": (64, HIDDEN), f"{stem}.up_proj.weight": (64, HIDDEN),
                       f"{stem}.down_proj.weight": (HIDDEN, 64)}  # fmt: skip
        return shapes

    return _causal("qwen3_moe", "Qwen3MoeForCausalLM", 2, layer, num_experts=experts, num_experts_per_tok=2,
                   moe_intermediate_size=64, norm_topk_prob=True, mlp_only_layers=[])  # fmt: skip


def _gemma3() -> tuple[dict[str, Any], Shapes]:
    more = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    rope = {"full_attention": {"rope_theta": 1e6, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}}  # fmt: skip
    return _causal("gemma3_text", "Gemma3ForCausalLM", 6, lambda p: _attention(p) | _mlp(p) | _norms(p, *more),
                   tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh", sliding_window=512,
                   query_pre_attn_scalar=DIM, layer_types=kinds, rope_parameters=rope)  # fmt: skip


TAPS = [1, 3]


def _draft(layers: int) -> Shapes:
    shapes: Shapes = {
        "fc.weight": (HIDDEN, len(TAPS) * HIDDEN),
        "hidden_norm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
    }
    for number in range(layers):
        shapes |= _attention(f"layers.{number}") | _mlp(f"layers.{number}") | _norms(f"layers.{number}")
    return shapes


def _dflash() -> tuple[dict[str, Any], Shapes]:
    inner = {"target_layer_ids": TAPS, "mask_token_id": 500, "block_size": 8}
    config = {"model_type": "qwen3", "architectures": ["DFlashDraftModel"], **_base(2), "dflash_config": inner,
              "num_target_layers": TARGET_LAYERS, "is_causal": False}  # fmt: skip
    return config, _draft(2)


def _dflash2() -> tuple[dict[str, Any], Shapes]:
    config, shapes = _dflash()
    taps, group, rank = 2, 16, 32
    config["dflash_config"] |= {
        "conv_kernel_size": taps,
        "conv_group_size": group,
        "selector_rank": rank,
        "selector_top_k": 4,
    }
    config["architectures"] = ["DFlash2DraftModel"]
    for layer in range(2):
        for conv in ("attention_conv", "mlp_conv"):
            shapes[f"layers.{layer}.{conv}.base_kernel"] = (2, taps, HIDDEN)
            shapes[f"layers.{layer}.{conv}.kernel_projection.weight"] = (2 * taps * HIDDEN // group, HIDDEN)
    shapes |= {
        "candidate_selector.predecessor_codebook": (VOCABULARY, rank),
        "candidate_selector.successor_codebook": (VOCABULARY, rank),
        "candidate_selector.hidden_projection.weight": (rank, HIDDEN),
    }
    return config, shapes


def _dspark() -> tuple[dict[str, Any], Shapes]:
    rank = 32
    config = {"model_type": "qwen3", "architectures": ["Qwen3DSparkModel"], **_base(2), "target_layer_ids": TAPS,
              "mask_token_id": 500, "block_size": 8, "num_target_layers": TARGET_LAYERS, "markov_rank": rank,
              "markov_head_type": "vanilla", "enable_confidence_head": True, "confidence_head_with_markov": True,
              "num_anchors": 512}  # fmt: skip
    shapes = _draft(2) | {
        "markov_head.markov_w1.weight": (VOCABULARY, rank),
        "markov_head.markov_w2.weight": (VOCABULARY, rank),
        "confidence_head.proj.weight": (1, HIDDEN + rank),
        "confidence_head.proj.bias": (1,),
        "embed_tokens.weight": (VOCABULARY, HIDDEN),
        "lm_head.weight": (VOCABULARY, HIDDEN),
    }
    return config, shapes


DRAFT_VOCABULARY = 384


def _eagle3() -> tuple[dict[str, Any], Shapes]:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"], **_base(1),
              "draft_vocab_size": DRAFT_VOCABULARY, "target_hidden_size": HIDDEN,
              "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}  # fmt: skip
    shapes = _attention("midlayer", 2 * HIDDEN, norms=False) | _mlp("midlayer") | _norms("midlayer", "hidden_norm")
    shapes |= {"fc.weight": (HIDDEN, 3 * HIDDEN), "norm.weight": (HIDDEN,),
               "lm_head.weight": (DRAFT_VOCABULARY, HIDDEN), "d2t": (DRAFT_VOCABULARY,),
               "t2d": (VOCABULARY,)}  # fmt: skip
    return config, shapes


KINDS: Mapping[str, Callable[[], tuple[dict[str, Any], Shapes]]] = {
    "llama": _llama, "qwen2": _qwen2, "qwen3": _qwen3, "qwen3_moe": _qwen3_moe, "gemma3": _gemma3,
    "dflash": _dflash, "dflash2": _dflash2, "dspark": _dspark, "eagle3": _eagle3,
}  # fmt: skip
DRAFTERS = ("dflash", "dflash2", "dspark", "eagle3")
MODELS = ("llama", "qwen2", "qwen3", "qwen3_moe", "gemma3")


def values_of(name: str, shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """Values of a weight: norms near one (near zero where one is added), matrices of a trained model's spread."""
    generator = np.random.default_rng([seed, *name.encode()])
    values = generator.standard_normal(shape).astype(np.float32)
    if name.endswith("base_kernel"):
        values *= np.float32(0.1)
        values[:, -1] += np.float32(1.0)
        return values
    if len(shape) == 1:
        return values * np.float32(0.1) + np.float32(0.0 if "bias" in name else 1.0)
    return values * np.float32(0.05)


def stored(values: NDArray[np.float32], dtype: str) -> bytes:
    """BF16 by truncation, so that every value is a BF16 one; F16 and F32 of the same values."""
    bits = values.view(np.uint32) & np.uint32(0xFFFF0000)
    if dtype == "BF16":
        return (bits >> np.uint32(16)).astype("<u2").tobytes()
    exact = bits.view(np.float32)
    return exact.astype(DTYPES[dtype].storage).tobytes()


def write_model(
    folder: Path, kind: str, dtype: str = "BF16", seed: int = 0,
    change: Mapping[str, NDArray[np.float32]] | None = None, **config_changes: Any,
) -> Path:  # fmt: skip
    """A model folder; ``change`` replaces values by name, ``config_changes`` top-level config fields."""
    config, shapes = KINDS[kind]()
    write_shapes(folder, {**config, "dtype": TORCH_NAMES[dtype], **config_changes}, shapes, dtype, seed, change)
    if kind in MODELS:
        write_tokenizer(folder)
    return folder


TORCH_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def write_shapes(
    folder: Path, config: Mapping[str, Any], shapes: Shapes, dtype: str = "BF16", seed: int = 0,
    change: Mapping[str, NDArray[np.float32]] | None = None,
) -> Path:  # fmt: skip
    """A folder with this config and tensors of these shapes."""
    data: dict[str, tuple[TensorSpec, bytes]] = {}
    ids = np.sort(np.random.default_rng(9).permutation(VOCABULARY)[:DRAFT_VOCABULARY]).astype("<i8")
    for name, shape in shapes.items():
        if name == "d2t":
            data[name] = TensorSpec(name, "I64", shape), (ids - np.arange(DRAFT_VOCABULARY)).astype("<i8").tobytes()
        elif name == "t2d":
            data[name] = TensorSpec(name, "BOOL", shape), np.isin(np.arange(VOCABULARY), ids).astype(np.uint8).tobytes()
        else:
            values = (change or {}).get(name, values_of(name, shape, seed))
            data[name] = TensorSpec(name, dtype, shape), stored(np.ascontiguousarray(values, np.float32), dtype)
    folder.mkdir(parents=True, exist_ok=True)
    header = encode_header([spec for spec, _ in data.values()], {"format": "pt"})
    payload = b"".join(data[spec.name][1] for spec in header.order)
    (folder / "model.safetensors").write_bytes(header.prefix + payload)
    (folder / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    return folder


def write_mask_embedding(
    folder: Path, token: int = 500, width: int = HIDDEN, bare: bool = False
) -> NDArray[np.float32]:
    """``mask_embedding.pt`` as drafters carry it, FP32; its values."""
    import torch

    values: NDArray[np.float32] = values_of("mask_embedding", (1, width), 3)[0]
    stored = torch.from_numpy(values.copy())
    torch.save(stored if bare else {"embedding": stored, "mask_token_id": token}, folder / "mask_embedding.pt")
    return values
