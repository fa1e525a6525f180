"""Damaged drafters: what converters, exports and downloads get wrong, one at a time.

Each case changes a whole drafter of ``drafters.KINDS``. What vLLM's own loader does with each is in
``golden/vllm-0.33.json``; what our model of it says must be the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.engines.drafters import DV, HD, KINDS, NH, NKV, Draft, H, I, N, V, draft, pack

Damage = Callable[[Draft], object]


@dataclass(frozen=True)
class Case:
    kind: str
    damage: Damage


def _mixed(leaves: tuple[str, ...], **more: Any) -> Damage:
    """Packed as ModelOpt MIXED_PRECISION, config as exported."""

    def damage(made: Draft) -> None:
        modules = pack(made, leaves, "modelopt", inputs=more.get("inputs", False))
        algo = {"quant_algo": more.get("algo", "W4A16_NVFP4"), "group_size": 16}
        prefix = more.get("prefix", "")
        made.config["quantization_config"] = {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {prefix + module: algo for module in modules},
            "ignore": [],
        }

    return damage


def _uniform(leaves: tuple[str, ...], ignore: list[str], algo: str = "W4A16_NVFP4", **more: Any) -> Damage:
    def damage(made: Draft) -> None:
        pack(made, leaves, "modelopt", inputs=more.get("inputs", False))
        block: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": algo, "ignore": ignore}
        if "groups" in more:
            block["config_groups"] = more["groups"]
        made.config["quantization_config"] = block

    return damage


def _ct(leaves: tuple[str, ...], targets: list[str], ignore: list[str], activations: Any = None) -> Damage:
    def damage(made: Draft) -> None:
        pack(made, leaves, "compressed-tensors", inputs=activations is not None)
        weights = {
            "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True,
            "dynamic": False,
        }  # fmt: skip
        group = {"targets": targets, "weights": weights, "input_activations": activations, "output_activations": None,
                 "format": "nvfp4-pack-quantized"}  # fmt: skip
        made.config["quantization_config"] = {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "quantization_status": "compressed",
            "ignore": ignore,
            "config_groups": {"group_0": group},
        }

    return damage


MLP = ("gate_proj", "up_proj", "down_proj")
QKV = ("q_proj", "k_proj", "v_proj")
REST = ["*self_attn*", "fc"]
MLP_ONLY = [r"re:.*\.mlp\..*"]


def both(*damages: Damage) -> Damage:
    def damage(made: Draft) -> None:
        for one in damages:
            one(made)

    return damage


def dropped(*names: str) -> Damage:
    return lambda made: made.drop(*names)


def added(name: str, dtype: str, *shape: int) -> Damage:
    return lambda made: made.put(name, dtype, *shape)


def renamed(old: str, new: str) -> Damage:
    return lambda made: made.rename(old, new)


def reshaped(name: str, *shape: int) -> Damage:
    return lambda made: made.put(name, made.specs[name].dtype, *shape)


def top(**keys: Any) -> Damage:
    return lambda made: made.config.update(keys)


def untop(*keys: str) -> Damage:
    return lambda made: [made.config.pop(key) for key in keys]


def inner(**keys: Any) -> Damage:
    return lambda made: made.inner.update(keys)


def uninner(*keys: str) -> Damage:
    return lambda made: [made.inner.pop(key) for key in keys]


def dflash(**keys: Any) -> Damage:
    return lambda made: made.config["dflash_config"].update(keys)


def undflash(*keys: str) -> Damage:
    return lambda made: [made.config["dflash_config"].pop(key) for key in keys]


def rewritten(old: str, new: str) -> Damage:
    """All names that begin with ``old`` begin with ``new``."""

    def damage(made: Draft) -> None:
        for name in list(made.specs):
            if name.startswith(old):
                made.rename(name, new + name.removeprefix(old))

    return damage


def prefixed(prefix: str) -> Damage:
    return rewritten("", prefix)


def lost_layer(made: Draft) -> None:
    made.drop(*[name for name in made.specs if name.startswith("layers.1.")])


def fused(made: Draft) -> None:
    for leaf in QKV:
        made.drop(f"layers.0.self_attn.{leaf}.weight")
    made.put("layers.0.self_attn.qkv_proj.weight", "BF16", (NH + 2 * NKV) * HD, H)


def biased(made: Draft) -> None:
    for leaf, rows in (("q_proj", NH * HD), ("k_proj", NKV * HD), ("v_proj", NKV * HD), ("o_proj", H)):
        for layer in (0, 1):
            made.put(f"layers.{layer}.self_attn.{leaf}.bias", "BF16", rows)


def split(*, index: bool, lost: bool, only: str = "layers.1.") -> Damage:
    def damage(made: Draft) -> None:
        made.files = {name: "model-2.safetensors" for name in made.specs if name.startswith(only)}
        made.index = index
        made.lost_files = ("model-2.safetensors",) if lost else ()

    return damage


def whole_kv(made: Draft) -> None:
    """As many key-value heads as heads."""
    for leaf in ("k_proj", "v_proj"):
        for layer in (0, 1):
            made.put(f"layers.{layer}.self_attn.{leaf}.weight", "BF16", NH * HD, H)


def _runtime_names(made: Draft) -> None:
    """ModelOpt names as the engine numbers layers: behind those of the target."""
    block = made.config["quantization_config"]
    block["quantized_layers"] = {
        f"model.layers.{N + int(name.split('.')[1])}.{name.split('.', 2)[2]}": row
        for name, row in block["quantized_layers"].items()
    }


PLANES = ("weight", "weight_scale", "weight_scale_2")
CT_ACTIVATIONS: Mapping[str, Any] = {
    "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True, "dynamic": "local",
}  # fmt: skip


def f32(name: str) -> Damage:
    return lambda made: made.put(name, "F32", *made.specs[name].shape)


def scaled(name: str, value: float) -> Damage:
    return lambda made: made.values.update({name: np.full(1, value, np.float32).tobytes()})


WITH_BIAS = both(biased, inner(attention_bias=True))
GATE, UP, DOWN = (f"layers.0.mlp.{leaf}" for leaf in MLP)
SLIDING = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 32, "use_sliding_window": True}
MIXED = {**SLIDING, "layer_types": ["sliding_attention", "full_attention"]}
Q = "layers.0.self_attn.q_proj.weight"

EVERY: Mapping[str, Damage] = {
    "whole": lambda made: None,
    "no q": dropped(Q),
    "no k": dropped("layers.1.self_attn.k_proj.weight"),
    "no gate": dropped("layers.0.mlp.gate_proj.weight"),
    "no down": dropped("layers.0.mlp.down_proj.weight"),
    "no final norm": dropped("norm.weight"),
    "no fc": dropped("fc.weight"),
    "no layer 1": lost_layer,
    "unknown tensor": added("layers.0.mlp.router.weight", "BF16", 4, H),
    "unknown top tensor": added("aux_hidden_norms.0.weight", "BF16", H),
    "stray bias": added("layers.0.mlp.down_proj.bias", "BF16", H),
    "stray bias of nobody": added("extra.bias", "BF16", H),
    "rotary cache": added("layers.0.self_attn.rotary_emb.inv_freq", "F32", HD // 2),
    "model prefix": prefixed("model."),
    "fc too wide": lambda made: made.put("fc.weight", "BF16", H, made.specs["fc.weight"].shape[1] + H),
    "gate too tall": reshaped("layers.0.mlp.gate_proj.weight", I + 16, H),
    "norm too long": reshaped("norm.weight", 2 * H),
    "fused qkv on disk": fused,
    "f32 norm": f32("norm.weight"),
    "extra layer": added("layers.2.input_layernorm.weight", "BF16", H),
}
EVERY_KIND = ("dflash", "dflash2", "dspark", "speculators-dspark-reduced", "speculators-eagle3", "speculators-peagle")

OWN: Mapping[str, tuple[str, Damage]] = {
    # the window and causality
    "sliding": ("dflash", inner(**SLIDING)),
    "sliding, not causal": ("dflash2", inner(**SLIDING, is_causal=False)),
    "sliding without flag": ("dflash", inner(**{**SLIDING, "use_sliding_window": False})),
    "sliding without window": ("dflash", inner(**{**SLIDING, "sliding_window": None})),
    "mixed layers": ("dflash", inner(**MIXED)),
    "use_swa without window": ("dflash", dflash(use_swa=True)),
    "causal override": ("dflash", dflash(causal=True)),
    "converted, key false": ("speculators-dflash", top(sliding_window_non_causal=False)),
    "converted, key absent": ("speculators-dflash", untop("sliding_window_non_causal")),
    "converted, is_causal inside": (
        "speculators-dflash", both(top(sliding_window_non_causal=False), inner(is_causal=False))),
    "nested sliding without flag": ("speculators-dflash", inner(**{**SLIDING, "use_sliding_window": False})),
    "nested sliding without window": ("speculators-dflash", inner(**{**SLIDING, "sliding_window": None})),
    # taps
    "no taps": ("dflash", undflash("target_layer_ids")),
    "no taps nested": ("speculators-dflash", untop("aux_hidden_state_layer_ids")),
    "taps off by one": ("dflash", dflash(target_layer_ids=[2, 4, 6])),
    "tap beyond target": ("dflash", dflash(target_layer_ids=[1, 3, 8])),
    "last tap": ("dflash", dflash(target_layer_ids=[1, 3, 7])),
    "one tap less": ("dflash2", dflash(target_layer_ids=[1, 3])),
    "aux ids copied": ("speculators-dflash", top(aux_hidden_state_layer_ids=[1, 3, 5])),
    "aux id zero": ("speculators-dflash", top(aux_hidden_state_layer_ids=[0, 3, 5])),
    "eagle with 4 taps, llama": (
        "speculators-eagle3",
        both(top(eagle_aux_hidden_state_layer_ids=[1, 2, 4, 5]), reshaped("fc.weight", H, 4 * H))),
    "eagle with 4 taps, qwen3": (
        "speculators-eagle3-qwen3",
        both(top(eagle_aux_hidden_state_layer_ids=[1, 2, 4, 5]), reshaped("fc.weight", H, 4 * H),
             added("fc_norm.3.weight", "BF16", H))),
    # mask token, block, tokens
    "no mask token": ("dflash", undflash("mask_token_id")),
    "no mask token nested": ("speculators-dflash", untop("mask_token_id")),
    "no mask token, p-eagle": ("speculators-peagle", untop("mask_token_id")),
    "mask token at top": ("dflash", both(undflash("mask_token_id"), top(mask_token_id=V - 1))),
    "no block size": ("dflash", undflash("block_size")),
    "block size at top": ("dflash", both(undflash("block_size"), top(block_size=8))),
    "tokens are not block - 1": (
        "speculators-dflash2",
        lambda made: made.config["speculators_config"]["proposal_methods"][0].update(speculative_tokens=5)),
    # vocabulary
    "no d2t": ("speculators-dflash-reduced", dropped("d2t")),
    "no head": ("speculators-dflash-reduced", dropped("lm_head.weight")),
    "no d2t, dspark": ("speculators-dspark-reduced", dropped("d2t")),
    "no head, dspark": ("speculators-dspark-reduced", dropped("lm_head.weight")),
    "no d2t, eagle3": ("speculators-eagle3", dropped("d2t")),
    "no head, eagle3": ("speculators-eagle3", dropped("lm_head.weight")),
    "no embedding, eagle3": ("speculators-eagle3", dropped("embed_tokens.weight")),
    "draft vocabulary not stated": ("speculators-dflash-reduced", untop("draft_vocab_size")),
    "draft vocabulary null": ("speculators-dflash-reduced", top(draft_vocab_size=None)),
    "no t2d": ("speculators-dflash-reduced", dropped("t2d")),
    "absolute d2t": (
        "speculators-dspark-reduced",
        lambda made: made.values.update({"d2t": np.arange(0, 2 * DV, 2, dtype=np.int64).tobytes()})),
    "d2t as i32": ("speculators-dflash-reduced", added("d2t", "I32", DV)),
    "own embedding": ("dflash", added("embed_tokens.weight", "BF16", V, H)),
    "own head": ("dflash", added("lm_head.weight", "BF16", V, H)),
    "has own head": ("dflash", both(added("lm_head.weight", "BF16", V, H), top(has_own_lm_head=True))),
    "has own head, none": ("dflash", top(has_own_lm_head=True)),
    "embedding too short": ("dspark", reshaped("embed_tokens.weight", V - 16, H)),
    "no copies": ("dspark", dropped("embed_tokens.weight", "lm_head.weight")),
    # heads of DSpark
    "no markov_w2": ("speculators-dspark", dropped("markov_head.markov_w2.weight")),
    "no markov_w1": ("dspark", dropped("markov_head.markov_w1.weight")),
    "no markov rank": ("dspark", untop("markov_rank")),
    "gated markov": (
        "speculators-dspark",
        both(top(markov_head_type="gated"), added("markov_head.gate_proj.weight", "BF16", 16, H + 16),
             added("markov_head.gate_proj.bias", "BF16", 16))),
    "confidence not stated": ("dspark", untop("enable_confidence_head", "confidence_head_with_markov")),
    "confidence without tensors": (
        "dspark", dropped("confidence_head.proj.weight", "confidence_head.proj.bias")),
    "confidence without bias": ("dspark", dropped("confidence_head.proj.bias")),
    "confidence without markov": ("dspark", top(confidence_head_with_markov=False)),
    "anchor not stated": ("speculators-dspark", untop("sample_from_anchor")),
    "dspark under its class name": ("dspark", top(architectures=["DSparkDraftModel"])),
    "unknown dspark architecture": ("dspark", top(architectures=["MyDSparkModel"])),
    # selector and convolutions
    "codebooks as weights": (
        "dflash2",
        both(renamed("candidate_selector.predecessor_codebook", "candidate_selector.predecessor_codebook.weight"),
             renamed("candidate_selector.successor_codebook", "candidate_selector.successor_codebook.weight"))),
    "no codebook": ("dflash2", dropped("candidate_selector.successor_codebook")),
    "no convolution": ("dflash2", dropped("layers.0.attention_conv.base_kernel")),
    "no kernel projection": ("dflash2", dropped("layers.1.mlp_conv.kernel_projection.weight")),
    "dflash2 labelled dflash": ("dflash2", top(architectures=["DFlashDraftModel"])),
    "dflash labelled dflash2": ("dflash", top(architectures=["DFlash2DraftModel"])),
    "no conv keys": ("dflash2", undflash("conv_kernel_size", "conv_group_size")),
    "conv group does not divide": ("dflash2", dflash(conv_group_size=24)),
    "group width wrong": ("dflash2", dflash(conv_group_size=32)),
    "selector rank wrong": ("dflash2", dflash(selector_rank=32)),
    "output multiplier nested": ("speculators-dflash2", top(output_multiplier=2.0)),
    # EAGLE
    "hidden norm of layer 0": ("speculators-eagle3", dropped("layers.0.hidden_norm.weight")),
    "hidden norm of layer 1": ("speculators-eagle3", added("layers.1.hidden_norm.weight", "BF16", H)),
    "norm flag not stated": ("speculators-eagle3", untop("norm_before_residual")),
    "norm before fc without tensor": ("speculators-eagle3", top(norm_before_fc=True)),
    "fc norm not stated": ("speculators-eagle3-qwen3", top(fc_norm=False)),
    "fc norm lost": ("speculators-eagle3-qwen3", dropped("fc_norm.1.weight")),
    "mask_hidden lost": ("speculators-peagle", dropped("mask_hidden")),
    "mask_hidden too short": ("speculators-peagle", reshaped("mask_hidden", 1, 1, H)),
    "mask_hidden in eagle3": ("speculators-eagle3", added("mask_hidden", "BF16", 1, 1, 3 * H)),
    "mask_hidden in dflash": ("dflash", added("mask_hidden", "BF16", 1, 1, 3 * H)),
    "p-eagle with fc norm": (
        "speculators-peagle",
        both(top(fc_norm=True), *(added(f"fc_norm.{i}.weight", "BF16", H) for i in range(3)))),
    "legacy": ("eagle3", lambda made: None),
    "legacy without d2t": ("eagle3", dropped("d2t")),
    "legacy, base label": ("eagle3", top(architectures=["LlamaForCausalLM"])),
    # the config
    "base model's label": ("dflash", top(architectures=["Qwen3ForCausalLM"])),
    "no architectures": ("dflash", untop("architectures")),
    "no model type": ("dflash", untop("model_type")),
    "model type left at top": ("speculators-dflash", top(model_type="qwen3")),
    "no head_dim": ("dflash", uninner("head_dim")),
    "no head_dim nested": ("speculators-dflash", uninner("head_dim")),
    "kv heads wrong": ("dflash", inner(num_key_value_heads=4)),
    "bias stated and stored": ("dflash", WITH_BIAS),
    "bias stated, not stored": ("dflash", inner(attention_bias=True)),
    "bias stored, not stated": ("dflash", biased),
    "one layer too many stated": ("dflash", inner(num_hidden_layers=3, layer_types=["full_attention"] * 3)),
    "one layer too few stated": ("dflash", inner(num_hidden_layers=1, layer_types=["full_attention"])),
    "rope not stated": ("dflash", uninner("rope_parameters")),
    "rope not stated, nested": ("speculators-dflash", uninner("rope_parameters")),
    "no eps nested": ("speculators-dflash", uninner("rms_norm_eps")),
    "unknown speculator": ("speculators-dflash", top(speculators_model_type="mtp")),
    "no proposal methods": (
        "speculators-dflash", lambda made: made.config["speculators_config"].update(proposal_methods=[])),
    "target hidden size": ("dflash", both(top(target_hidden_size=128), reshaped("fc.weight", H, 3 * 128))),
    # files
    "shard missing, no index": ("dflash", split(index=False, lost=True)),
    "shards": ("dflash", split(index=True, lost=False)),
    "legacy midlayer in dflash": ("dflash", rewritten("layers.0.", "midlayer.")),
    # names and shapes that two tensors share, or that only look right
    "layer 0 twice": (
        "dflash", lambda made: made.put("midlayer.input_layernorm.weight", "BF16", H)),
    "q twice": ("dflash", added("midlayer.self_attn.q_proj.weight", "BF16", NH * HD, H)),
    "o_proj too wide": ("dflash", reshaped("layers.0.self_attn.o_proj.weight", H, NH * HD + 16)),
    "q too short": ("dflash", reshaped(Q, NH * HD - 16, H)),
    "gate_up fused on disk": (
        "dflash2",
        both(dropped(f"{GATE}.weight", f"{UP}.weight"), added("layers.0.mlp.gate_up_proj.weight", "BF16", 2 * I, H))),
    "packed gate_up fused on disk": (
        "dflash",
        both(_mixed(MLP), dropped(*[f"{m}.{leaf}" for m in (GATE, UP) for leaf in PLANES]),
             added("layers.0.mlp.gate_up_proj.weight", "U8", 2 * I, H // 2),
             added("layers.0.mlp.gate_up_proj.weight_scale", "F8_E4M3", 2 * I, H // 16),
             added("layers.0.mlp.gate_up_proj.weight_scale_2", "F32"))),
    "head with a bias": ("speculators-dflash-reduced", added("lm_head.bias", "BF16", DV)),
    "bias at the top": ("dflash", added("bias", "BF16", H)),
    "bias of a norm": ("dflash", added("norm.bias", "BF16", H)),
    "bias below a parameter": ("dflash2", added("candidate_selector.successor_codebook.bias", "BF16", V)),
    "head too short": ("speculators-dflash-reduced", reshaped("lm_head.weight", DV - 16, H)),
    "d2t too short": ("speculators-dflash-reduced", reshaped("d2t", DV - 1)),
    "norm as a scalar": ("dflash", reshaped("norm.weight")),
    "codebook of the draft vocabulary": ("dflash2", reshaped("candidate_selector.successor_codebook", DV, 16)),
    "kernel of three taps": ("dflash2", reshaped("layers.0.mlp_conv.base_kernel", 2, 3, H)),
    "markov_w2 of the whole vocabulary": (
        "speculators-dspark-reduced", reshaped("markov_head.markov_w2.weight", V, 16)),
    "vocabulary stated wrong": ("dflash2", inner(vocab_size=V + 64)),
    "hidden size stated wrong": ("dflash", inner(hidden_size=H * 2)),
    "draft vocabulary above the target's": (
        "speculators-dflash", top(draft_vocab_size=V + 64)),
    "mask_embedding as a tensor": ("dflash", added("mask_embedding", "BF16", H)),
    "mask_embedding as a tensor, dspark": ("dspark", added("mask_embedding", "BF16", H)),
    "kv scales, dense": ("dflash", added("layers.0.self_attn.k_proj.k_scale", "F32")),
    "kv scales, uniform": (
        "dflash",
        both(_uniform(MLP, REST), added("layers.0.self_attn.k_proj.k_scale", "F32"),
             added("layers.0.self_attn.v_proj.v_scale", "F32"))),
    "kv scales, mixed": ("dflash", both(_mixed(MLP), added("layers.0.self_attn.k_proj.k_scale", "F32"))),
    "features off": ("dflash", both(dflash(use_aux_hidden_state=False), dropped("fc.weight"))),
    "features off, fc stored": ("dflash", dflash(use_aux_hidden_state=False)),
    "input norm": (
        "speculators-eagle3", both(top(norm_before_fc=True), added("input_norm.weight", "BF16", 3 * H))),
    "input norm, flag off": ("speculators-eagle3", added("input_norm.weight", "BF16", 3 * H)),
    "eagle with a bias": ("speculators-eagle3", both(biased, inner(attention_bias=True))),
    "eagle qwen3 with a bias": ("speculators-eagle3-qwen3", both(biased, inner(attention_bias=True))),
    "eagle of an odd backbone": ("speculators-eagle3", inner(model_type="mistral")),
    "eagle without a model type": ("speculators-eagle3", uninner("model_type")),
    "anchor of dflash": ("speculators-dflash", top(sample_from_anchor=True)),
    # more of the config
    "layer types too short": ("dflash", inner(layer_types=["full_attention"])),
    "layer types null nested": ("speculators-dflash", inner(layer_types=None)),
    "kv heads null": ("dflash", both(inner(num_key_value_heads=None), whole_kv)),
    "no hidden size nested": ("speculators-dflash", uninner("hidden_size")),
    "no vocabulary nested": ("speculators-dflash", uninner("vocab_size")),
    "no activation nested": ("speculators-dflash", uninner("hidden_act")),
    "no positions nested": ("speculators-dflash", uninner("max_position_embeddings")),
    "no kv heads nested": ("speculators-dflash", both(uninner("num_key_value_heads"), whole_kv)),
    "no layer config": ("speculators-dflash", untop("transformer_layer_config")),
    "no verifier": ("speculators-dflash", lambda made: made.config["speculators_config"].pop("verifier")),
    "llama body": ("dflash", inner(model_type="llama")),
    "dflash named after its base": ("dflash", top(architectures=["Qwen3DFlash"])),
    "taps not rising": ("dflash", dflash(target_layer_ids=[5, 3, 1])),
    "tap twice": ("dflash", dflash(target_layer_ids=[1, 3, 3])),
    "tap of the embedding": ("dflash", dflash(target_layer_ids=[-1, 3, 5])),
    "layer_ids": ("dflash", both(undflash("target_layer_ids"), dflash(layer_ids=[2, 4, 6]))),
    "mask token beyond the vocabulary": ("dflash", dflash(mask_token_id=V)),
    "gemma dspark": ("dspark", top(architectures=["Gemma4DSparkModel"])),
    # quantized drafters
    "mixed mlp": ("dflash2", _mixed(MLP)),
    "mixed mlp, dspark": ("speculators-dspark-reduced", _mixed(MLP)),
    "mixed mlp nested": (
        "speculators-dspark",
        both(_mixed(MLP), lambda made: made.inner.update(quantization_config=made.config.pop("quantization_config")))),
    "mixed, model prefix": ("dflash", _mixed(MLP, prefix="model.")),
    "mixed, all linears": ("dflash", _mixed((*MLP, *QKV, "o_proj"))),
    "mixed, fc": ("dflash", _mixed((*MLP, "fc"))),
    "mixed, w4a4": ("dflash", _mixed(MLP, algo="NVFP4", inputs=True)),
    "mixed, w4a4 without inputs": ("dflash", _mixed(MLP, algo="NVFP4")),
    "mixed, stray input scale": ("dflash", _mixed(MLP, inputs=True)),
    "mixed, gate unlisted": (
        "dflash", both(_mixed(MLP), lambda made: made.config["quantization_config"]["quantized_layers"].pop(GATE))),
    "mixed, gate and up unlisted": (
        "dflash",
        both(_mixed(MLP),
             lambda made: [made.config["quantization_config"]["quantized_layers"].pop(name) for name in (GATE, UP)])),
    "mixed, dense listed": (
        "dflash",
        both(_mixed(MLP),
             lambda made: made.config["quantization_config"]["quantized_layers"].update(
                 {"layers.0.self_attn.o_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16}}))),
    "mixed, two algorithms": (
        "dflash",
        both(_mixed(MLP), lambda made: made.config["quantization_config"]["quantized_layers"].update(
            {GATE: {"quant_algo": "NVFP4", "group_size": 16}}))),
    "mixed, no layers": (
        "dflash", both(_mixed(MLP), lambda made: made.config["quantization_config"].update(quantized_layers={}))),
    "mixed, no block scale": ("dflash", both(_mixed(MLP), dropped(f"{GATE}.weight_scale"))),
    "mixed, no global scale": ("dflash", both(_mixed(MLP), dropped(f"{GATE}.weight_scale_2"))),
    "mixed, no codes": ("dflash", both(_mixed(MLP), dropped(f"{DOWN}.weight"))),
    "mixed, unequal scales": ("dflash", both(_mixed(MLP), scaled(f"{UP}.weight_scale_2", 1.0))),
    "mixed, block scale transposed": (
        "dflash", both(_mixed(MLP), reshaped(f"{GATE}.weight_scale", H // 16, I))),
    "mixed, scale of shape 1": ("dflash", both(_mixed(MLP), reshaped(f"{GATE}.weight_scale_2", 1))),
    "mixed, in hf_quant_config": (
        "dflash",
        both(_mixed(MLP), lambda made: setattr(made, "quant_config", {
            "producer": {"name": "modelopt", "version": "0.47.0"},
            "quantization": {
                "quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None,
                "quantized_layers": made.config.pop("quantization_config")["quantized_layers"],
            },
        }))),
    "mixed, no config at all": ("dflash", both(_mixed(MLP), untop("quantization_config"))),
    "mixed, markov_w2": ("speculators-dspark", _mixed((*MLP, "markov_w2"))),
    "mixed, kernel projection": ("dflash2", _mixed((*MLP, "kernel_projection"))),
    "mixed, selector": ("dflash2", _mixed((*MLP, "hidden_projection"))),
    "uniform mlp": ("dflash", _uniform(MLP, REST)),
    "uniform mlp, exact fused": (
        "dflash",
        _uniform(MLP, ["layers.0.self_attn.qkv_proj", "layers.1.self_attn.qkv_proj", "layers.0.self_attn.o_proj",
                       "layers.1.self_attn.o_proj", "fc"])),
    "uniform mlp, shard names": (
        "dflash",
        _uniform(MLP, [f"layers.{i}.self_attn.{leaf}" for i in (0, 1) for leaf in (*QKV, "o_proj")] + ["fc"])),
    "uniform mlp, fc not ignored": ("dflash", _uniform(MLP, ["*self_attn*"])),
    "uniform mlp, parents": ("dflash", _uniform(MLP, ["layers.0.self_attn", "layers.1.self_attn", "fc"])),
    "uniform, all": ("dflash", _uniform((*MLP, *QKV, "o_proj", "fc"), [])),
    "uniform mlp, nvfp4 weight only": (
        "dflash", _uniform(MLP, REST, "NVFP4", groups={"group_0": {"input_activations": None, "targets": ["Linear"]}})),
    "uniform mlp, w4a4": ("dflash", _uniform(MLP, REST, "NVFP4", inputs=True)),
    "uniform mlp, dflash2": ("dflash2", _uniform(MLP, [*REST, "*_conv*"])),
    "uniform mlp, dflash2, conv not ignored": ("dflash2", _uniform(MLP, REST)),
    "uniform mlp, dspark": ("speculators-dspark", _uniform(MLP, [*REST, "*markov_head*"])),
    "uniform mlp, dspark, markov*": ("speculators-dspark", _uniform(MLP, [*REST, "*markov*"])),
    "uniform, algorithm unknown": ("dflash", _uniform(MLP, REST, "NVFP4_AWQ")),
    "uniform, no algorithm": (
        "dflash", both(_uniform(MLP, REST), lambda made: made.config["quantization_config"].pop("quant_algo"))),
    "uniform mlp, substring": ("dflash", _uniform(MLP, [*REST, "mlp.gate"])),
    "ct mlp": ("dflash", _ct(MLP, MLP_ONLY, [])),
    "ct mlp, Linear": ("dflash", _ct(MLP, ["Linear"], ["re:.*self_attn.*", "re:.*fc$"])),
    "ct mlp, exact names": (
        "dflash",
        _ct(MLP, ["Linear"],
            [f"layers.{i}.self_attn.{leaf}" for i in (0, 1) for leaf in (*QKV, "o_proj")] + ["fc"])),
    "ct mlp, runtime names": (
        "dflash",
        _ct(MLP, ["Linear"],
            [f"model.layers.{N + i}.self_attn.{leaf}" for i in (0, 1) for leaf in ("qkv_proj", "o_proj")]
            + ["model.fc"])),
    "ct mlp, fc not ignored": ("dflash", _ct(MLP, ["Linear"], ["re:.*self_attn.*"])),
    "ct mlp, shard expressions": (
        "dflash", _ct(MLP, ["Linear"], ["re:.*q_proj", "re:.*k_proj", "re:.*v_proj", "re:.*o_proj", "re:.*fc"])),
    "ct mlp, fused expressions": (
        "dflash", _ct(MLP, ["Linear"], ["re:.*qkv_proj", "re:.*o_proj", "re:.*fc"])),
    "ct mlp, no global scale": ("dflash", both(_ct(MLP, MLP_ONLY, []), dropped(f"{UP}.weight_global_scale"))),
    "ct mlp, no block scale": ("dflash", both(_ct(MLP, MLP_ONLY, []), dropped(f"{UP}.weight_scale"))),
    "ct mlp, no codes": ("dflash", both(_ct(MLP, MLP_ONLY, []), dropped(f"{DOWN}.weight_packed"))),
    "ct mlp, unequal scales": ("dflash", both(_ct(MLP, MLP_ONLY, []), scaled(f"{UP}.weight_global_scale", 1.0))),
    "ct mlp, dflash2": ("dflash2", _ct(MLP, ["Linear"], ["re:.*self_attn.*", "re:.*fc$", "re:.*_conv.*"])),
    "ct mlp, dspark": ("speculators-dspark", _ct(MLP, MLP_ONLY, [])),
    "ct planes, modelopt config": (
        "dflash", both(_ct(MLP, MLP_ONLY, []), lambda made: made.config.update(
            quantization_config={"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "ignore": REST}))),
    "mixed, eagle3 by stored names": ("speculators-eagle3", _mixed(MLP)),
    "mixed, eagle3 by runtime names": ("speculators-eagle3", both(_mixed(MLP), _runtime_names)),
    "width not of 16": (
        "dflash",
        both(inner(intermediate_size=72),
             *(reshaped(f"layers.{i}.mlp.{leaf}.weight", 72, H) for i in (0, 1) for leaf in ("gate_proj", "up_proj")),
             *(reshaped(f"layers.{i}.mlp.down_proj.weight", H, 72) for i in (0, 1)), _mixed(MLP))),
    "mixed, fused names": (
        "dflash",
        both(_mixed(MLP), lambda made: made.config["quantization_config"].update(quantized_layers={
            f"layers.{i}.mlp.{leaf}": {"quant_algo": "W4A16_NVFP4"}
            for i in (0, 1) for leaf in ("gate_up_proj", "down_proj")}))),
    "mixed, a parent listed": (
        "dflash",
        both(_mixed(MLP), lambda made: made.config["quantization_config"].update(quantized_layers={
            f"layers.{i}.mlp": {"quant_algo": "W4A16_NVFP4"} for i in (0, 1)}))),
    "mixed, lower case": ("dflash", _mixed(MLP, algo="w4a16_nvfp4")),
    "mixed, ignored too": (
        "dflash", both(_mixed(MLP), lambda made: made.config["quantization_config"].update(ignore=["*mlp*"]))),
    "mixed, own head": (
        "dflash",
        both(top(has_own_lm_head=True), added("lm_head.weight", "BF16", V, H), _mixed((*MLP, "lm_head")))),
    "mixed, head borrowed by config": (
        "dflash", both(added("lm_head.weight", "BF16", V, H), _mixed((*MLP, "lm_head")))),
    "mixed, eagle3 head": ("speculators-eagle3", _mixed(("lm_head",))),
    "mixed, eagle3 qwen3 attention": (
        "speculators-eagle3-qwen3",
        both(_mixed((*QKV, "o_proj")), _runtime_names)),
    "mixed, all linears of dspark": ("dspark", _mixed((*MLP, *QKV, "o_proj", "fc", "markov_w2"))),
    "mixed, markov_w1": ("dspark", _mixed((*MLP, "markov_w1"))),
    "mixed, confidence": ("dspark", both(_mixed(MLP), added("confidence_head.proj.weight", "U8", 1, 40))),
    "mixed, codes too narrow": ("dflash", both(_mixed(MLP), reshaped(f"{DOWN}.weight", H, I // 4))),
    "mixed, one dense shard": (
        "dflash",
        both(_mixed(MLP), dropped(*[f"{UP}.{leaf}" for leaf in PLANES]), added(f"{UP}.weight", "BF16", I, H))),
    "hf_quant_config without producer": (
        "dflash",
        both(_mixed(MLP), lambda made: setattr(made, "quant_config", {"quantization": {
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": made.config.pop("quantization_config")["quantized_layers"]}}))),
    "layers only in hf_quant_config": (
        "dflash",
        both(_mixed(MLP), lambda made: setattr(made, "quant_config", {
            "producer": {"name": "modelopt", "version": "0.47.0"},
            "quantization": {"quant_algo": "MIXED_PRECISION",
                             "quantized_layers": made.config["quantization_config"].pop("quantized_layers")}}))),
    "uniform in hf_quant_config": (
        "dflash",
        both(_uniform(MLP, REST), untop("quantization_config"), lambda made: setattr(made, "quant_config", {
            "producer": {"name": "modelopt", "version": "0.47.0"},
            "quantization": {"quant_algo": "W4A16_NVFP4", "kv_cache_quant_algo": None, "group_size": 16,
                             "exclude_modules": REST}}))),
    "uniform in hf_quant_config, no group size": (
        "dflash",
        both(_uniform(MLP, REST), untop("quantization_config"), lambda made: setattr(made, "quant_config", {
            "producer": {"name": "modelopt", "version": "0.47.0"},
            "quantization": {"quant_algo": "W4A16_NVFP4", "kv_cache_quant_algo": None, "exclude_modules": REST}}))),
    "uniform mlp, model prefix": ("dflash", _uniform(MLP, ["model.layers.*.self_attn*", "model.fc"])),
    "uniform mlp, star in the middle": ("dflash", _uniform(MLP, ["layers.*.self_attn.*", "fc*"])),
    "uniform mlp, eagle3": (
        "speculators-eagle3", _uniform(MLP, ["*self_attn*", "*fc*", "lm_head"])),
    "uniform mlp, eagle3, head not ignored": ("speculators-eagle3", _uniform(MLP, ["*self_attn*", "*fc*"])),
    "uniform mlp, nvfp4 without inputs": ("dflash", _uniform(MLP, REST, "NVFP4")),
    "ct mlp, w4a4": ("dflash", _ct(MLP, MLP_ONLY, [], {**CT_ACTIVATIONS})),
    "ct mlp, class names": ("dflash", _ct(MLP, ["MergedColumnParallelLinear", "RowParallelLinear"],
                                          ["re:.*self_attn.*"])),
    "ct mlp, eagle3": ("speculators-eagle3", _ct(MLP, MLP_ONLY, [])),
    "ct, all of eagle3": ("speculators-eagle3", _ct((*MLP, *QKV, "o_proj", "fc"), ["Linear"], ["lm_head"])),
    "ct, all of dflash2": ("dflash2", _ct((*MLP, *QKV, "o_proj", "fc", "kernel_projection"), ["Linear"], [])),
    "ct mlp, no ignored, all dense else": ("dspark", _ct(MLP, ["Linear"], ["re:.*self_attn.*", "re:.*fc"])),
    "ct, no groups": ("dflash", both(_ct(MLP, MLP_ONLY, []),
                                     lambda made: made.config["quantization_config"].pop("config_groups"))),
    "ct mlp, a plane of the wrong width": (
        "dflash", both(_ct(MLP, MLP_ONLY, []), reshaped(f"{DOWN}.weight_scale", H, 4))),
    "ct, unknown method": (
        "dflash", both(_ct(MLP, MLP_ONLY, []),
                       lambda made: made.config["quantization_config"].update(quant_method="bitsandbytes"))),
}  # fmt: skip


def cases() -> Iterator[tuple[str, Case]]:
    """Every case by name."""
    for kind in KINDS:
        for name, damage in EVERY.items():
            if kind in EVERY_KIND or name == "whole":
                yield f"{kind}, {name}", Case(kind, damage)
    for name, (kind, damage) in OWN.items():
        yield name, Case(kind, damage)


def slug(name: str) -> str:
    """A case's name as a folder's."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def build(case: Case) -> Draft:
    """The damaged drafter."""
    made = draft(case.kind)
    case.damage(made)
    return made
