"""Drafters for SGLang's and transformers' loaders beyond those of ``cases``: flat ones, read and packed their way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.engines.cases import (
    CT_ACTIVATIONS,
    MLP,
    QKV,
    SLIDING,
    Case,
    Damage,
    added,
    biased,
    both,
    build,
    cases,
    dflash,
    dropped,
    inner,
    reshaped,
    slug,
    top,
    undflash,
    untop,
)
from tests.engines.drafters import DV, HD, NH, NKV, TARGET, Draft, H, I, N, V, pack, write

ALL = (*MLP, *QKV, "o_proj")
A16: Mapping[str, Any] = {"quant_algo": "W4A16_NVFP4", "group_size": 16}


def uniform(
    ignore: list[str], leaves: tuple[str, ...] = ALL, algo: str = "W4A16_NVFP4", inputs: bool = False
) -> Damage:
    def damage(made: Draft) -> None:
        pack(made, leaves, "modelopt", inputs=inputs)
        made.config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": algo, "ignore": ignore}

    return damage


def mixed(names: list[str] | None = None, leaves: tuple[str, ...] = MLP, **more: Any) -> Damage:
    """With the key of the KV cache, so that SGLang takes the config as it is."""

    def damage(made: Draft) -> None:
        modules = pack(made, leaves, "modelopt")
        listed = {name: dict(A16) for name in (modules if names is None else names)}
        block = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": listed, "ignore": []}
        made.config["quantization_config"] = {**block, "kv_cache_quant_algo": None, **more}

    return damage


def packed_ct(targets: list[str], ignore: list[str], leaves: tuple[str, ...] = ALL, activations: Any = None) -> Damage:
    def damage(made: Draft) -> None:
        pack(made, leaves, "compressed-tensors", inputs=activations is not None)
        weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True,
                   "dynamic": False}  # fmt: skip
        group = {"targets": targets, "weights": weights, "input_activations": activations,
                 "format": "nvfp4-pack-quantized"}  # fmt: skip
        made.config["quantization_config"] = {
            "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
            "quantization_status": "compressed", "ignore": ignore, "config_groups": {"group_0": group},
        }  # fmt: skip

    return damage


def two_layers(made: Draft) -> None:
    made.config.update(num_hidden_layers=2)
    for name, spec in list(made.specs.items()):
        if name.startswith("midlayer."):
            wide = name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
            made.put(name.replace("midlayer.", "layers.1."), spec.dtype, *(spec.shape[0], H) if wide else spec.shape)


def fc_normed(made: Draft) -> None:
    for leaf in ("aux_norm_low", "aux_norm_mid", "aux_norm_high"):
        made.put(f"{leaf}.weight", "BF16", H)


EAGLE_IDS = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6, "original_max_position_embeddings": 128}
GATED = both(added("markov_head.gate_proj.weight", "BF16", 16, H + 16), added("markov_head.gate_proj.bias", "BF16", 16))
RNN = both(added("markov_head.joint_proj.weight", "BF16", 48, 32 + H), added("markov_head.joint_proj.bias", "BF16", 48))

OWN: Mapping[str, tuple[str, Damage]] = {
    # other names of the same classes
    "alias ling": ("dspark", top(architectures=["LingDSparkModel"])),
    "alias muse": ("dflash", top(architectures=["MuseGlimmerAssistantModel"])),
    "alias beam": ("dflash2", top(architectures=["DFlash2BeamDraftModel"])),
    "alias minimax": ("dflash2", top(architectures=["MiniMaxDFlash2DraftModel"])),
    # how a config is read
    "is_causal true": ("dflash", inner(is_causal=True)),
    "is_causal false": ("dflash", inner(is_causal=False)),
    "sliding, is_causal false": ("dflash", inner(**SLIDING, is_causal=False)),
    "sliding dspark": ("dspark", inner(**SLIDING)),
    "sliding by max_window_layers": (
        "dflash", both(untop("layer_types"), inner(sliding_window=32, use_sliding_window=True, max_window_layers=1))),
    "layer type unknown": ("dflash", inner(layer_types=["chunked_attention"] * 2)),
    "llama body, layer types too short": ("dflash", inner(model_type="llama", layer_types=["full_attention"])),
    "output multiplier in dflash_config": ("dflash2", dflash(output_multiplier=2.0, final_logit_softcapping=30.0)),
    "output multiplier at top": ("dflash2", top(output_multiplier=2.0, final_logit_softcapping=30.0)),
    "output multiplier zero": ("dflash2", dflash(output_multiplier=0.0)),
    "embedding scale": ("dflash2", top(input_embedding_scale=4.0)),
    "rope yarn": ("dflash", inner(rope_parameters=YARN)),
    "rope interleaved": ("dflash", top(rope_is_neox_style=False)),
    "rope partial": ("dflash", inner(partial_rotary_factor=0.5)),
    "block in both places": ("dflash", top(block_size=12)),
    "block of dspark nested": ("dspark", both(untop("block_size"), top(dflash_config={"block_size": 7}))),
    "dspark without block": ("dspark", untop("block_size")),
    "dspark without mask token": ("dspark", untop("mask_token_id")),
    "dspark taps nested": (
        "dspark", both(untop("target_layer_ids"), top(dflash_config={"target_layer_ids": [1, 3, 5]}))),
    "dspark anchor not sampled": ("dspark", top(sample_from_anchor=False)),
    "dspark without kind of head": ("dspark", untop("markov_head_type")),
    "dspark gated": ("dspark", both(top(markov_head_type="gated"), GATED)),
    "dspark gated without gate": ("dspark", top(markov_head_type="gated")),
    "dspark vanilla with gate": ("dspark", GATED),
    "dspark rnn": ("dspark", both(top(markov_head_type="rnn"), RNN)),
    "dspark other head": ("dspark", top(markov_head_type="mixture")),
    "dspark rank nested": ("dspark", both(untop("markov_rank"), top(dflash_config={"markov_rank": 16}))),
    "dspark confidence off": ("dspark", top(enable_confidence_head=False)),
    "reduced vocabulary stated": ("dflash", top(draft_vocab_size=DV)),
    "target of other depth": ("dflash", top(num_target_layers=N + 4)),
    "selector without top k": ("dflash2", undflash("selector_top_k")),
    "convolution without group": ("dflash2", undflash("conv_group_size")),
    "domino weights": ("dflash", added("prefix_gru.weight_ih_l0", "BF16", 3 * H, H)),
    "native encoder names": (
        "dflash", both(dropped("fc.weight", "hidden_norm.weight"), added("encoder.fc.weight", "BF16", H, 3 * H),
                       added("encoder.output_norm_enc.weight", "BF16", H))),
    "prefix twice": ("dflash", both(dropped("norm.weight"), added("model.model.norm.weight", "BF16", H))),
    "gate too short": ("dflash", reshaped("layers.0.mlp.gate_proj.weight", I - 16, H)),
    "down too narrow": ("dflash", reshaped("layers.1.mlp.down_proj.weight", H, I - 16)),
    "o_proj too narrow": ("dflash", reshaped("layers.0.self_attn.o_proj.weight", H, NH * HD - 16)),
    "v too short": ("dflash", reshaped("layers.0.self_attn.v_proj.weight", NKV * HD - 16, H)),
    "eagle gate too short": ("eagle3", reshaped("midlayer.mlp.gate_proj.weight", I - 16, H)),
    # EAGLE-3
    "eagle taps at top": ("eagle3", top(eagle_aux_hidden_state_layer_ids=[1, 3, 6])),
    "eagle taps": ("eagle3", top(**EAGLE_IDS)),
    "eagle two taps": (
        "eagle3",
        both(top(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 4]}), reshaped("fc.weight", H, 2 * H))),
    "eagle two features stated": ("eagle3", both(top(num_aux_hidden_states=2), reshaped("fc.weight", H, 2 * H))),
    "eagle norm before fc": ("eagle3", both(top(norm_before_fc=True), added("input_norm.weight", "BF16", 3 * H))),
    "eagle norm before fc nested": (
        "eagle3", both(top(eagle_config={"norm_before_fc": True}), added("input_norm.weight", "BF16", 3 * H))),
    "eagle norm before fc lost": ("eagle3", top(norm_before_fc=True)),
    "eagle fc norms": ("eagle3", both(top(fc_norm=True), fc_normed)),
    "eagle legacy fc norms": ("eagle3", both(top(use_aux_norm=True), fc_normed)),
    "eagle norm output": ("eagle3", top(norm_output=True)),
    "eagle tied": ("eagle3", top(tie_word_embeddings=True)),
    "eagle head of the target": ("eagle3", both(top(draft_vocab_size=None), dropped("lm_head.weight", "d2t", "t2d"))),
    "eagle vocabulary not stated": ("eagle3", untop("draft_vocab_size")),
    "eagle embedding": ("eagle3", added("embed_tokens.weight", "BF16", V, H)),
    "eagle wide target": ("eagle3", both(top(target_hidden_size=128), reshaped("fc.weight", H, 3 * 128))),
    "eagle two layers": ("eagle3", two_layers),
    "eagle model prefix": (
        "eagle3", both(dropped("norm.weight"), added("model.norm.weight", "BF16", H))),
    "eagle bias": ("eagle3", both(inner(attention_bias=True), added("midlayer.self_attn.o_proj.bias", "BF16", H))),
    "eagle fc bias": ("eagle3", both(top(bias=True), added("fc.bias", "BF16", H))),
    "eagle no hidden norm": ("eagle3", dropped("midlayer.hidden_norm.weight")),
    "eagle q norm": ("eagle3", added("midlayer.self_attn.q_norm.weight", "BF16", HD)),
    # packed
    "uniform, all layers": ("dflash", uniform([])),
    "uniform, all layers, ignoring fc": ("dflash", uniform(["fc", "lm_head"])),
    "uniform, all layers, w4a4": ("dflash", uniform([], algo="NVFP4", inputs=True)),
    "uniform, all layers, no inputs": ("dflash", uniform([], algo="NVFP4")),
    "uniform, all layers of dflash2": ("dflash2", uniform([])),
    "uniform, all layers of dspark": ("dspark", uniform([])),
    "uniform, no block scale": (
        "dflash", both(uniform([]), dropped("layers.0.self_attn.o_proj.weight_scale"))),
    "uniform, no codes of k": ("dflash", both(uniform([]), dropped("layers.0.self_attn.k_proj.weight"))),
    "uniform, ignoring leaves": ("dflash", uniform(["qkv_proj", "o_proj"], MLP)),
    "uniform, ignoring shards": ("dflash", uniform(["q_proj", "k_proj", "v_proj", "o_proj"], MLP)),
    "uniform, ignoring one shard": ("dflash", uniform(["q_proj", "o_proj"], MLP)),
    "uniform, ignoring a glob": ("dflash", uniform(["*kv_proj", "o_pr*"], MLP)),
    "uniform, ignoring everything": ("dflash", uniform(["*"], MLP)),
    "uniform, eagle3": ("eagle3", uniform(["lm_head"])),
    "uniform, eagle3 with its head": ("eagle3", uniform([], (*ALL, "lm_head"))),
    "uniform, eagle3, head not ignored": ("eagle3", uniform([])),
    "uniform, eagle3, ignoring attention": ("eagle3", uniform(["*self_attn*", "lm_head"], MLP)),
    "mixed, stored names": ("dflash", mixed()),
    "mixed, bare leaves": ("dflash", mixed(["gate_up_proj", "down_proj"])),
    "mixed, bare shards": ("dflash", mixed(["gate_proj", "up_proj", "down_proj"])),
    "mixed, empty": ("dflash", mixed([])),
    "mixed, group size": ("dflash", mixed(kv_cache_scheme={"type": "float", "num_bits": 8})),
    "mixed, eagle3": ("eagle3", mixed(["model.gate_up_proj", "model.down_proj"])),
    "mixed, eagle3, stored names": ("eagle3", mixed()),
    "mixed, eagle3, with cache": (
        "eagle3", mixed(["model.gate_up_proj", "model.down_proj"], kv_cache_quant_algo="FP8")),
    "ct, all layers": ("dflash", packed_ct(["Linear"], [])),
    "ct, all layers, w4a4": ("dflash", packed_ct(["Linear"], [], activations=dict(CT_ACTIVATIONS))),
    "ct, all layers of dspark": ("dspark", packed_ct(["Linear"], ["lm_head"])),
    "ct, ignoring leaves": ("dflash", packed_ct(["Linear"], ["qkv_proj", "o_proj"], MLP)),
    "ct, targets by leaf": ("dflash", packed_ct(["gate_up_proj", "re:down_.*"], ["re:.*qkv_proj", "o_proj"], MLP)),
    "ct, eagle3": ("eagle3", packed_ct(["Linear"], ["lm_head"])),
    "ct, eagle3, ignoring attention": ("eagle3", packed_ct(["Linear"], ["re:.*self_attn.*", "lm_head"], MLP)),
    "ct, eagle3, ignoring by name": ("eagle3", packed_ct(["Linear"], ["model.qkv_proj", "self_attn.o_proj"], MLP)),
    "ct, eagle3, head a target": ("eagle3", packed_ct(["re:.*proj", "lm_head"], [], (*ALL, "lm_head"))),
    "biased": ("dflash", both(biased, inner(attention_bias=True))),
}  # fmt: skip


def sglang_cases() -> Iterator[tuple[str, Case]]:
    """The cases of ``cases`` and those of this file, by name."""
    yield from cases()
    for name, (kind, damage) in OWN.items():
        yield name, Case(kind, damage)


def write_drafters(out: Path) -> int:
    """Write every case below ``out/cases`` and their target to ``out/target``; how many there are."""
    import json

    (out / "target").mkdir(parents=True)
    (out / "target" / "config.json").write_text(json.dumps(dict(TARGET)))
    return len([write(build(case), out / "cases" / slug(name)) for name, case in sglang_cases()])
