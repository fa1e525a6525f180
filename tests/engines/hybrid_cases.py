"""Tiny hybrid targets (Qwen3.5 and 3.6, with experts and dense), packed and damaged, and other packed targets.

The sizes are those of ``convertkit demo``: hidden 64, layers 0 to 2 with a gated delta net, layer 3 with full
attention, 4 experts of width 32, a vision tower.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.dialects.tiny import planes
from tests.engines.cases import added, both, dropped, renamed, reshaped, rewritten
from tests.engines.drafters import Draft

Damage = Callable[[Draft], object]

MOE, FUSED, DENSE, TEXT_ONLY = "qwen3.5-moe-unfused", "qwen3.5-moe", "qwen3.5", "qwen3.5-text"
AT = "model.language_model"
LINEAR, FULL, EXPERT = f"{AT}.layers.0.linear_attn", f"{AT}.layers.3.self_attn", f"{AT}.layers.1.mlp.experts"
SHARED, TOWER = f"{AT}.layers.2.mlp.shared_expert", "model.visual"

EXPERTS = (".experts.",)
MLP = (".experts.", ".shared_expert.", ".mlp.gate_proj", ".mlp.up_proj", ".mlp.down_proj")
BODY = (*MLP, ".self_attn.")
ALL = (*BODY, ".in_proj_qkv.", ".in_proj_z.", ".out_proj.")
IGNORE = ["lm_head", "re:.*visual.*", "re:.*linear_attn.*", r"re:.*mlp\.gate$", "re:.*shared_expert_gate$"]
EXCLUDE = ["lm_head", "model.visual*", "*linear_attn*", "*.mlp.gate", "*shared_expert_gate*"]


def pack_inside(made: Draft, inside: Iterable[str], dialect: str, inputs: bool = False) -> list[str]:
    """Turn matrices of projections whose name holds one of ``inside`` into planes; their modules."""
    parts = tuple(inside)
    modules = [
        name.removesuffix(".weight")
        for name, spec in made.specs.items()
        if name.endswith(".weight") and len(spec.shape) == 2 and "visual" not in name
        and any(part in f"{name}." for part in parts) and "_gate.weight" not in name
    ]  # fmt: skip
    for module in modules:
        rows, columns = made.specs[f"{module}.weight"].shape
        made.drop(f"{module}.weight")
        for spec in planes(module, dialect, rows, columns):
            made.specs[spec.name] = spec
        if inputs:
            leaf, shape = ("input_scale", ()) if dialect == "modelopt" else ("input_global_scale", (1,))
            made.put(f"{module}.{leaf}", "F32", *shape)
    return modules


def ct(inside: Iterable[str], ignore: list[str], *, a4: bool = False, targets: tuple[str, ...] = ("Linear",)) -> Damage:
    """Packed by compressed-tensors."""

    def damage(made: Draft) -> None:
        pack_inside(made, inside, "compressed-tensors", a4)
        weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True,
                   "dynamic": False}  # fmt: skip
        group = {"targets": list(targets), "weights": weights, "format": "nvfp4-pack-quantized",
                 "input_activations": {**weights, "dynamic": "local"} if a4 else None}  # fmt: skip
        made.config["quantization_config"] = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
                                              "ignore": ignore, "config_groups": {"group_0": group}}  # fmt: skip

    return damage


def uniform(inside: Iterable[str], ignore: list[str], algo: str = "NVFP4", *, a4: bool = True) -> Damage:
    """Packed by ModelOpt, one algorithm."""

    def damage(made: Draft) -> None:
        pack_inside(made, inside, "modelopt", a4)
        made.config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": algo, "group_size": 16,
                                              "ignore": ignore}  # fmt: skip

    return damage


def mixed(
    inside: Iterable[str], *, algo: str = "W4A16_NVFP4", name: Callable[[str], str] = str, skip: str = "\n"
) -> Damage:
    """Packed by ModelOpt, every linear listed but those whose name holds ``skip``."""

    def damage(made: Draft) -> None:
        modules = pack_inside(made, inside, "modelopt", algo == "NVFP4")
        row = {"quant_algo": algo, "group_size": 16}
        made.config["quantization_config"] = {
            "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "ignore": [],
            "quantized_layers": {name(module): row for module in modules if skip not in module},
        }  # fmt: skip

    return damage


def in_file(made: Draft) -> None:
    """The same quantization in ``hf_quant_config.json`` alone."""
    block = made.config.pop("quantization_config")
    inner = {"quant_algo": block["quant_algo"], "kv_cache_quant_algo": None, "group_size": 16}
    inner |= {"exclude_modules": block["ignore"]}
    if "quantized_layers" in block:
        inner["quantized_layers"] = block["quantized_layers"]
    made.quant_config = {"producer": {"name": "modelopt", "version": "0.47.0"}, "quantization": inner}


def packed(module: str, dialect: str = "compressed-tensors") -> Damage:
    """One more linear in planes, which the config does not say."""

    def damage(made: Draft) -> None:
        rows, columns = made.specs[f"{module}.weight"].shape
        made.drop(f"{module}.weight")
        for spec in planes(module, dialect, rows, columns):
            made.specs[spec.name] = spec

    return damage


def without(part: str) -> Damage:
    return lambda made: made.drop(*[name for name in made.specs if part in name])


def inner(**keys: Any) -> Damage:
    return lambda made: made.config["text_config"].update(keys)


def to_dense(made: Draft) -> Draft:
    """Qwen3.5 without experts, from the one with."""
    made.config |= {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5"}
    text, tower = made.config["text_config"], made.config["vision_config"]
    for key in ("moe_intermediate_size", "num_experts", "num_experts_per_tok", "shared_expert_intermediate_size"):
        text.pop(key)
    text |= {"intermediate_size": 96, "model_type": "qwen3_5_text"}
    tower["model_type"] = "qwen3_5_vision"
    made.drop(*[name for name in made.specs if ".mlp." in name and "visual" not in name])
    for layer in range(text["num_hidden_layers"]):
        for leaf, shape in (("gate_proj", (96, 64)), ("up_proj", (96, 64)), ("down_proj", (64, 96))):
            made.put(f"{AT}.layers.{layer}.mlp.{leaf}.weight", "BF16", *shape)
    return made


def to_text(made: Draft) -> Draft:
    """The language model alone, as text-only exports name it."""
    text = json.loads(json.dumps(made.config["text_config"]))
    made.config = {**text, "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text"}
    without("visual")(made)
    rewritten(f"{AT}.", "model.")(made)
    return made


BA = [f"{AT}.layers.{i}.linear_attn.{leaf}" for i in range(3) for leaf in ("in_proj_a", "in_proj_b")]
CT, CT_A4, MIXED = ct(BODY, IGNORE), ct(BODY, IGNORE, a4=True), mixed(BODY)
UNIFORM = uniform(BODY, EXCLUDE)

HYBRID: Mapping[str, tuple[str, Damage]] = {
    # as stored
    "hybrid whole": (MOE, lambda made: None),
    "hybrid fused experts whole": (FUSED, lambda made: None),
    "hybrid dense whole": (DENSE, lambda made: None),
    "hybrid text only whole": (TEXT_ONLY, lambda made: None),
    # names
    "hybrid nested vision": (MOE, rewritten(f"{TOWER}.", f"{AT}.visual.")),
    "hybrid visual at the top": (MOE, rewritten(f"{TOWER}.", "visual.")),
    "hybrid stripped": (MOE, rewritten(f"{AT}.", "model.")),
    "hybrid without prefix": (MOE, rewritten("model.", "")),
    "hybrid doubled": (MOE, rewritten(f"{AT}.", f"{AT}.language_model.")),
    "hybrid model prefix": (MOE, rewritten("", "model.")),
    "hybrid language model first": (MOE, rewritten(f"{AT}.", "language_model.model.")),
    "hybrid text only nested": (TEXT_ONLY, rewritten("model.", f"{AT}.")),
    "hybrid text only with vision": (TEXT_ONLY, added(f"{TOWER}.pos_embed.weight", "BF16", 16, 32)),
    "hybrid text only mtp": (TEXT_ONLY, added("mtp.fc.weight", "BF16", 64, 128)),
    "hybrid expert renamed": (MOE, renamed(f"{EXPERT}.0.up_proj.weight", f"{EXPERT}.up_proj.0.weight")),
    "hybrid expert w1": (MOE, renamed(f"{EXPERT}.0.gate_proj.weight", f"{EXPERT}.0.w1.weight")),
    "hybrid expert beyond": (MOE, added(f"{EXPERT}.4.gate_proj.weight", "BF16", 32, 64)),
    "hybrid expert bias": (MOE, added(f"{EXPERT}.0.gate_proj.bias", "BF16", 32)),
    "hybrid unknown tensor": (MOE, added(f"{AT}.layers.0.mlp.extra.weight", "BF16", 4, 64)),
    "hybrid extra layer": (MOE, added(f"{AT}.layers.4.input_layernorm.weight", "BF16", 64)),
    "hybrid stray bias": (MOE, added(f"{LINEAR}.out_proj.bias", "BF16", 64)),
    "hybrid with mtp": (MOE, added("mtp.fc.weight", "BF16", 64, 128)),
    "hybrid mtp inside": (MOE, added("model.mtp.fc.weight", "BF16", 64, 128)),
    "hybrid mtp advertised": (MOE, inner(mtp_num_hidden_layers=1)),
    "hybrid merged qkvz": (MOE, both(dropped(f"{LINEAR}.in_proj_z.weight"), renamed(
        f"{LINEAR}.in_proj_qkv.weight", f"{LINEAR}.in_proj_qkvz.weight"))),
    "hybrid vision split": (MOE, both(dropped(f"{TOWER}.blocks.0.attn.qkv.weight"), *[
        added(f"{TOWER}.blocks.0.attn.{leaf}.weight", "BF16", 32, 32) for leaf in "qkv"])),
    # missing
    "hybrid without vision": (MOE, without("visual")),
    "hybrid no vision block": (MOE, without("visual.blocks.0.")),
    "hybrid no vision norm": (MOE, dropped(f"{TOWER}.merger.norm.weight")),
    "hybrid no positions": (MOE, dropped(f"{TOWER}.pos_embed.weight")),
    "hybrid no patches": (MOE, dropped(f"{TOWER}.patch_embed.proj.weight")),
    "hybrid no vision bias": (MOE, dropped(f"{TOWER}.blocks.0.attn.proj.bias")),
    "hybrid no conv": (MOE, dropped(f"{LINEAR}.conv1d.weight")),
    "hybrid no decay": (MOE, dropped(f"{LINEAR}.A_log")),
    "hybrid no dt": (MOE, dropped(f"{LINEAR}.dt_bias")),
    "hybrid no delta norm": (MOE, dropped(f"{LINEAR}.norm.weight")),
    "hybrid no z": (MOE, dropped(f"{LINEAR}.in_proj_z.weight")),
    "hybrid no b": (MOE, dropped(f"{LINEAR}.in_proj_b.weight")),
    "hybrid no out": (MOE, dropped(f"{LINEAR}.out_proj.weight")),
    "hybrid no q": (MOE, dropped(f"{FULL}.q_proj.weight")),
    "hybrid no q norm": (MOE, dropped(f"{FULL}.q_norm.weight")),
    "hybrid no router": (MOE, dropped(f"{AT}.layers.1.mlp.gate.weight")),
    "hybrid lost expert": (MOE, dropped(f"{EXPERT}.1.down_proj.weight")),
    "hybrid lost experts of a layer": (MOE, without("layers.1.mlp.experts.")),
    "hybrid no shared gate": (MOE, dropped(f"{AT}.layers.1.mlp.shared_expert_gate.weight")),
    "hybrid no shared up": (MOE, dropped(f"{SHARED}.up_proj.weight")),
    "hybrid no layer": (MOE, without("layers.2.")),
    "hybrid no head": (MOE, dropped("lm_head.weight")),
    "hybrid no embedding": (MOE, dropped(f"{AT}.embed_tokens.weight")),
    "hybrid no final norm": (MOE, dropped(f"{AT}.norm.weight")),
    "hybrid tied, no head": (MOE, both(
        dropped("lm_head.weight"), lambda made: made.config.update(tie_word_embeddings=True), inner(
            tie_word_embeddings=True))),
    "hybrid tied inside, no head": (MOE, both(dropped("lm_head.weight"), inner(tie_word_embeddings=True))),
    "hybrid tied outside, no head": (
        MOE, both(dropped("lm_head.weight"), lambda made: made.config.update(tie_word_embeddings=True))),
    "hybrid tied, with head": (MOE, both(
        lambda made: made.config.update(tie_word_embeddings=True), inner(tie_word_embeddings=True))),
    "hybrid fused experts, no down": (FUSED, dropped(f"{EXPERT}.down_proj")),
    "hybrid fused experts, transposed": (FUSED, reshaped(f"{EXPERT}.down_proj", 4, 32, 64)),
    "hybrid fused experts, one less": (FUSED, reshaped(f"{EXPERT}.gate_up_proj", 3, 64, 64)),
    "hybrid dense, no up": (DENSE, dropped(f"{AT}.layers.1.mlp.up_proj.weight")),
    # shapes
    "hybrid z too wide": (MOE, reshaped(f"{LINEAR}.in_proj_z.weight", 80, 64)),
    "hybrid z too short": (MOE, reshaped(f"{LINEAR}.in_proj_z.weight", 48, 64)),
    "hybrid qkv too tall": (MOE, reshaped(f"{LINEAR}.in_proj_qkv.weight", 144, 64)),
    "hybrid conv squeezed": (MOE, reshaped(f"{LINEAR}.conv1d.weight", 128, 4)),
    "hybrid conv too tall": (MOE, reshaped(f"{LINEAR}.conv1d.weight", 144, 1, 4)),
    "hybrid decay too long": (MOE, reshaped(f"{LINEAR}.A_log", 8)),
    "hybrid out too wide": (MOE, reshaped(f"{LINEAR}.out_proj.weight", 64, 80)),
    "hybrid q without gate": (MOE, reshaped(f"{FULL}.q_proj.weight", 64, 64)),
    "hybrid shared gate of two": (MOE, reshaped(f"{AT}.layers.1.mlp.shared_expert_gate.weight", 2, 64)),
    "hybrid vision qkv short": (MOE, reshaped(f"{TOWER}.blocks.0.attn.qkv.weight", 64, 32)),
    "hybrid positions short": (MOE, reshaped(f"{TOWER}.pos_embed.weight", 8, 32)),
    "hybrid embedding short": (MOE, reshaped(f"{AT}.embed_tokens.weight", 128, 64)),
    # compressed-tensors
    "hybrid ct whole": (MOE, CT),
    "hybrid ct a4 whole": (MOE, CT_A4),
    "hybrid ct experts only whole": (MOE, ct(EXPERTS, [*IGNORE, "re:.*self_attn.*", "re:.*shared_expert.*"])),
    "hybrid ct all whole": (MOE, ct(ALL, ["lm_head", "re:.*visual.*", "re:.*in_proj_[ab]$", "re:.*conv1d$",
                                          r"re:.*mlp\.gate$", "re:.*shared_expert_gate$"])),
    "hybrid ct dense whole": (DENSE, ct(BODY, IGNORE)),
    "hybrid ct text only whole": (TEXT_ONLY, ct(BODY, IGNORE)),
    "hybrid ct, a and b not ignored": (MOE, ct(ALL, ["lm_head", "re:.*visual.*"])),
    "hybrid ct, visual by stored name": (MOE, ct(BODY, ["lm_head", "re:model.visual.*", *IGNORE[2:]])),
    "hybrid ct, visual not ignored": (MOE, ct(BODY, ["lm_head", *IGNORE[2:]])),
    "hybrid ct, delta net not ignored": (MOE, ct(BODY, [*IGNORE[:2], *IGNORE[3:]])),
    "hybrid ct, delta net by stored name": (
        MOE, ct(BODY, [*IGNORE[:2], r"re:^model\.language_model\.layers\.\d+\.linear_attn.*"])),
    "hybrid ct, delta net by exact names": (MOE, ct(BODY, [*IGNORE[:2], *[
        f"{AT}.layers.{i}.linear_attn.{leaf}" for i in range(3)
        for leaf in ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj")]])),
    "hybrid ct, one shard ignored": (MOE, ct(BODY, [*IGNORE, f"{FULL}.q_proj"])),
    "hybrid ct, gates not ignored": (MOE, ct(BODY, IGNORE[:3])),
    "hybrid ct, head not ignored": (MOE, ct(BODY, IGNORE[1:])),
    "hybrid ct, experts ignored": (MOE, ct(BODY, [*IGNORE, r"re:.*experts\.\d+.*"])),
    "hybrid ct, expert 0 ignored": (MOE, ct(BODY, [*IGNORE, r"re:.*experts\.0\.gate_proj"])),
    "hybrid ct, shared ignored": (MOE, ct(BODY, [*IGNORE, r"re:.*shared_expert\..*"])),
    "hybrid ct, no inputs": (MOE, both(CT_A4, without("input_global_scale"))),
    "hybrid ct, stated inputs missing": (MOE, both(CT_A4, without("shared_expert.down_proj.input_global_scale"))),
    "hybrid ct, inputs not stated": (MOE, both(CT_A4, lambda made: made.config["quantization_config"][
        "config_groups"]["group_0"].update(input_activations=None))),
    "hybrid ct, no codes of an expert": (MOE, both(CT, dropped(f"{EXPERT}.2.up_proj.weight_packed"))),
    "hybrid ct, no scale of an expert": (MOE, both(CT, dropped(f"{EXPERT}.2.up_proj.weight_scale"))),
    "hybrid ct, no global of an expert": (MOE, both(CT, dropped(f"{EXPERT}.2.down_proj.weight_global_scale"))),
    "hybrid ct, no global of q": (MOE, both(CT, dropped(f"{FULL}.q_proj.weight_global_scale"))),
    "hybrid ct, no block scale of k": (MOE, both(CT, dropped(f"{FULL}.k_proj.weight_scale"))),
    "hybrid ct, scale of an expert too wide": (MOE, both(CT, reshaped(f"{EXPERT}.2.up_proj.weight_scale", 32, 8))),
    "hybrid ct, codes of an expert short": (MOE, both(CT, reshaped(f"{EXPERT}.2.up_proj.weight_packed", 16, 32))),
    "hybrid ct, scale of shared narrow": (MOE, both(CT, reshaped(f"{SHARED}.up_proj.weight_scale", 32, 2))),
    "hybrid ct, router packed": (MOE, both(CT, packed(f"{AT}.layers.1.mlp.gate"))),
    "hybrid ct, z packed": (MOE, both(CT, packed(f"{LINEAR}.in_proj_z"))),
    "hybrid ct, no norm": (MOE, both(CT, dropped(f"{AT}.layers.0.input_layernorm.weight"))),
    "hybrid ct, an expert dense": (MOE, both(CT, without("layers.1.mlp.experts.2.up_proj"),
                                             added(f"{EXPERT}.2.up_proj.weight", "BF16", 32, 64))),
    "hybrid ct, nested vision": (MOE, both(CT, rewritten(f"{TOWER}.", f"{AT}.visual."))),
    "hybrid ct, stripped": (MOE, both(CT, rewritten(f"{AT}.", "model."))),
    "hybrid ct, modelopt names": (MOE, both(uniform(BODY, EXCLUDE, a4=False), lambda made: made.config.update(
        quantization_config={}), lambda made: CT(Draft(made.config, {})))),
    "hybrid ct, no config": (MOE, both(CT, lambda made: made.config.pop("quantization_config"))),
    # ModelOpt
    "hybrid uniform whole": (MOE, UNIFORM),
    "hybrid uniform a16 whole": (MOE, uniform(BODY, EXCLUDE, "W4A16_NVFP4", a4=False)),
    "hybrid uniform dense whole": (DENSE, uniform(BODY, EXCLUDE)),
    "hybrid uniform all whole": (MOE, uniform(ALL, ["lm_head", "model.visual*", *BA])),
    "hybrid uniform all, a and b by pattern": (
        MOE, uniform(ALL, ["lm_head", "model.visual*", "*.in_proj_a", "*.in_proj_b"])),
    "hybrid uniform all, a alone": (MOE, uniform(ALL, ["lm_head", "model.visual*", *BA[::2]])),
    "hybrid uniform in file": (MOE, both(UNIFORM, in_file)),
    "hybrid uniform, visual not excluded": (MOE, uniform(BODY, ["lm_head", *EXCLUDE[2:]])),
    "hybrid uniform, visual as pattern": (MOE, uniform(BODY, ["lm_head", "*visual*", *EXCLUDE[2:]])),
    "hybrid uniform, visual plain": (MOE, uniform(BODY, ["lm_head", "model.visual", *EXCLUDE[2:]])),
    "hybrid uniform, delta net not excluded": (MOE, uniform(BODY, [*EXCLUDE[:2], *EXCLUDE[3:]])),
    "hybrid uniform, delta nets by layer": (MOE, uniform(BODY, [*EXCLUDE[:2], *[
        f"{AT}.layers.{i}.linear_attn*" for i in range(3)]])),
    "hybrid uniform, delta nets by leaf": (MOE, uniform(BODY, [*EXCLUDE[:2], *[
        f"{AT}.layers.{i}.linear_attn.{leaf}" for i in range(3)
        for leaf in ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj")]])),
    "hybrid uniform, qkv without z": (MOE, uniform(BODY, [*EXCLUDE[:2], *[
        f"{AT}.layers.{i}.linear_attn.{leaf}" for i in range(3)
        for leaf in ("in_proj_qkv", "in_proj_a", "in_proj_b", "out_proj")]])),
    "hybrid uniform, head not excluded": (MOE, uniform(BODY, EXCLUDE[1:])),
    "hybrid uniform, gate as substring": (MOE, uniform(BODY, [*EXCLUDE, "gate"])),
    "hybrid uniform, experts excluded": (MOE, uniform(BODY, [*EXCLUDE, "*experts*"])),
    "hybrid uniform, no input of an expert": (MOE, both(UNIFORM, dropped(f"{EXPERT}.0.up_proj.input_scale"))),
    "hybrid uniform, no input of shared": (MOE, both(UNIFORM, dropped(f"{SHARED}.down_proj.input_scale"))),
    "hybrid uniform, no scale of shared": (MOE, both(UNIFORM, dropped(f"{SHARED}.down_proj.weight_scale"))),
    "hybrid uniform, no scale of an expert": (MOE, both(UNIFORM, dropped(f"{EXPERT}.0.down_proj.weight_scale"))),
    "hybrid uniform, no scale 2 of an expert": (MOE, both(UNIFORM, dropped(f"{EXPERT}.0.down_proj.weight_scale_2"))),
    "hybrid uniform, with cache scales": (MOE, both(UNIFORM, added(f"{FULL}.k_proj.k_scale", "F32"),
                                                    added(f"{FULL}.v_proj.v_scale", "F32"))),
    "hybrid mixed whole": (MOE, MIXED),
    "hybrid mixed a4 whole": (MOE, mixed(BODY, algo="NVFP4")),
    "hybrid mixed all whole": (MOE, mixed(ALL)),
    "hybrid mixed experts only whole": (MOE, mixed(EXPERTS)),
    "hybrid mixed dense whole": (DENSE, mixed(BODY)),
    "hybrid mixed text only whole": (TEXT_ONLY, mixed(BODY)),
    "hybrid mixed in file": (MOE, both(MIXED, in_file)),
    "hybrid mixed, names without nesting": (MOE, mixed(BODY, name=lambda module: module.replace(f"{AT}.", "model."))),
    "hybrid mixed, runtime names": (MOE, mixed(BODY, name=lambda module: module.replace(
        f"{AT}.", "language_model.model."))),
    "hybrid mixed, experts by layer": (MOE, mixed(BODY, name=lambda module: module.partition(".experts.")[0] + (
        ".experts" if ".experts." in module else ""))),
    "hybrid mixed, up not listed": (MOE, mixed(BODY, skip="shared_expert.up_proj")),
    "hybrid mixed, experts not listed": (MOE, mixed(BODY, skip=".experts.")),
    "hybrid mixed, shared not listed": (MOE, mixed(BODY, skip="shared_expert")),
    "hybrid mixed, delta net dense but listed": (MOE, both(MIXED, lambda made: made.config["quantization_config"][
        "quantized_layers"].update({f"{LINEAR}.out_proj": {"quant_algo": "NVFP4", "group_size": 16}}))),
    "hybrid mixed, z packed": (MOE, both(MIXED, packed(f"{LINEAR}.in_proj_z", "modelopt"))),
    "hybrid mixed, no codes of q": (MOE, both(MIXED, dropped(f"{FULL}.q_proj.weight"))),
}  # fmt: skip


def top(**keys: Any) -> Damage:
    return lambda made: made.config.update(keys)


def block(**keys: Any) -> Damage:
    return lambda made: made.config["quantization_config"].update(keys)


def biased(made: Draft) -> None:
    """Biases of attention, as the config says."""
    made.config["attention_bias"] = True
    for name, spec in list(made.specs.items()):
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            made.put(name.replace(".weight", ".bias"), "BF16", spec.shape[0])


def all_biased(made: Draft) -> None:
    """Biases of all linears of Llama."""
    made.config["mlp_bias"] = True
    for name, spec in list(made.specs.items()):
        if name.endswith(("o_proj.weight", "gate_proj.weight", "up_proj.weight", "down_proj.weight")):
            made.put(name.replace(".weight", ".bias"), "BF16", spec.shape[0])


def swapped(one: str, other: str) -> Damage:
    """Two tensors under each other's name."""

    def damage(made: Draft) -> None:
        first, second = made.specs[one], made.specs[other]
        made.put(one, second.dtype, *second.shape)
        made.put(other, first.dtype, *first.shape)

    return damage


def second_file(made: Draft) -> None:
    """``hf_quant_config.json`` that leaves out what ``config.json`` packs."""
    made.quant_config = {"producer": {"name": "modelopt"}, "quantization": {
        "quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16, "exclude_modules": ["*"]}}  # fmt: skip


Q0, DOWN0 = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"
LLAMA_CT, QWEN_UNIFORM = ct(BODY, ["lm_head"]), uniform(BODY, ["lm_head"])

PLAIN: Mapping[str, tuple[str, Damage]] = {
    "llama q transposed": ("llama", reshaped("model.layers.0.self_attn.k_proj.weight", 64, 32)),
    "llama up transposed": ("llama", reshaped("model.layers.0.mlp.up_proj.weight", 64, 128)),
    "llama down transposed": ("llama", reshaped(f"{DOWN0}.weight", 128, 64)),
    "llama vocabulary cut": ("llama", both(reshaped("model.embed_tokens.weight", 80, 64),
                                           reshaped("lm_head.weight", 80, 64))),
    "llama vocabulary padded": ("llama", both(reshaped("model.embed_tokens.weight", 128, 64),
                                              reshaped("lm_head.weight", 128, 64))),
    "llama embedding narrow": ("llama", reshaped("model.embed_tokens.weight", 96, 32)),
    "llama with biases": ("llama", biased),
    "llama with all biases whole": ("llama", both(biased, all_biased)),
    "llama biases not stated": ("llama", both(biased, top(attention_bias=False))),
    "llama biases not stored": ("llama", top(attention_bias=True)),
    "llama one bias lost": ("llama", both(biased, dropped(f"{Q0}.bias"))),
    "llama no head_dim whole": ("llama", lambda made: made.config.pop("head_dim")),
    "llama layers not stored": ("llama", top(num_hidden_layers=3)),
    "llama layers not counted": ("llama", top(num_hidden_layers=1)),
    "llama fused qkv": ("llama", both(*[dropped(f"model.layers.0.self_attn.{leaf}_proj.weight") for leaf in "qkv"],
                                      added("model.layers.0.self_attn.qkv_proj.weight", "BF16", 128, 64))),
    "llama norms as f32 whole": ("llama", added("model.norm.weight", "F32", 64)),
    "llama cache scales": ("llama", added("model.layers.0.self_attn.k_proj.k_scale", "F32")),
    "qwen3 tied, with head": ("qwen3", top(tie_word_embeddings=True)),
    "qwen3 head of draft": ("qwen3", reshaped("lm_head.weight", 64, 64)),
    "moe experts not counted": ("qwen3-moe", top(num_experts=3)),
    "moe experts not stored": ("qwen3-moe", top(num_experts=6)),
    "moe dense layer": ("qwen3-moe", top(mlp_only_layers=[1])),
    "moe no width": ("qwen3-moe", lambda made: made.config.pop("moe_intermediate_size")),
    "moe router short": ("qwen3-moe", reshaped("model.layers.0.mlp.gate.weight", 3, 64)),
    "llama ct, scales swapped": ("llama", both(LLAMA_CT, swapped(f"{Q0}.weight_scale", f"{Q0}.weight_global_scale"))),
    "llama ct, global of two": ("llama", both(LLAMA_CT, reshaped(f"{Q0}.weight_global_scale", 2))),
    "llama ct, global as scalar": ("llama", both(LLAMA_CT, reshaped(f"{Q0}.weight_global_scale"))),
    "llama ct, codes whole width": ("llama", both(LLAMA_CT, reshaped(f"{DOWN0}.weight_packed", 64, 128))),
    "llama ct, scale of 32": ("llama", both(LLAMA_CT, reshaped(f"{DOWN0}.weight_scale", 64, 4))),
    "llama ct, no groups": ("llama", both(LLAMA_CT, lambda made: made.config["quantization_config"].pop(
        "config_groups"))),
    "llama ct, ignored all": ("llama", ct(BODY, ["re:.*"])),
    "llama ct, ignore null": ("llama", both(ct(BODY, []), block(ignore=None))),
    "llama ct, in compression_config": ("llama", both(LLAMA_CT, lambda made: made.config.update(
        compression_config=made.config.pop("quantization_config")))),
    "llama ct, targets by exact names": ("llama", ct(MLP, [], targets=tuple(
        f"model.layers.{i}.mlp.{leaf}" for i in range(2) for leaf in ("gate_proj", "up_proj", "down_proj")))),
    "llama ct, one shard targeted": ("llama", ct(MLP, [], targets=("re:.*gate_proj", "re:.*down_proj"))),
    "llama ct, input scales not stated": ("llama", both(ct(BODY, ["lm_head"], a4=True), lambda made: made.config[
        "quantization_config"]["config_groups"]["group_0"].update(input_activations=None))),
    "qwen3 uniform, scales swapped": ("qwen3", both(
        QWEN_UNIFORM, swapped(f"{Q0}.weight_scale", f"{Q0}.weight_scale_2"))),
    "qwen3 uniform, global of shape 1": ("qwen3", both(QWEN_UNIFORM, reshaped(f"{Q0}.weight_scale_2", 1))),
    "qwen3 uniform, no algorithm": ("qwen3", both(QWEN_UNIFORM, lambda made: made.config["quantization_config"].pop(
        "quant_algo"))),
    "qwen3 uniform, no method": ("qwen3", both(QWEN_UNIFORM, lambda made: made.config["quantization_config"].pop(
        "quant_method"))),
    "qwen3 uniform, in file": ("qwen3", both(QWEN_UNIFORM, in_file)),
    "qwen3 uniform, both files differ": ("qwen3", both(QWEN_UNIFORM, second_file)),
    "qwen3 uniform, head packed whole": ("qwen3", both(uniform((*BODY, "lm_head."), []))),
    "qwen3 uniform, one dense": ("qwen3", both(QWEN_UNIFORM, without("layers.0.mlp.down_proj"),
                                               added(f"{DOWN0}.weight", "BF16", 64, 128))),
    "qwen3 mixed, one not listed": ("qwen3", mixed(BODY, skip="layers.0.mlp.down_proj")),
    "qwen3 mixed, q not listed": ("qwen3", mixed(BODY, skip="layers.0.self_attn.q_proj")),
    "qwen3 mixed, empty": ("qwen3", both(mixed(BODY), block(quantized_layers={}))),
    "qwen3 mixed, two algorithms": ("qwen3", both(mixed(BODY), lambda made: made.config["quantization_config"][
        "quantized_layers"].update({Q0: {"quant_algo": "NVFP4", "group_size": 16}}))),
    "moe ct whole": ("qwen3-moe", ct(BODY, ["lm_head", r"re:.*mlp\.gate$"])),
    "moe ct a4 whole": ("qwen3-moe", ct(BODY, ["lm_head", r"re:.*mlp\.gate$"], a4=True)),
    "moe ct, router not ignored": ("qwen3-moe", ct(BODY, ["lm_head"])),
    "moe ct, no experts packed": ("qwen3-moe", ct((".self_attn.",), ["lm_head", r"re:.*mlp\.gate$"])),
    "moe uniform whole": ("qwen3-moe", uniform(BODY, ["lm_head", "*.mlp.gate"])),
    "moe uniform, router not excluded": ("qwen3-moe", uniform(BODY, ["lm_head"])),
    "moe mixed whole": ("qwen3-moe", mixed(BODY)),
    "moe mixed, attention only whole": ("qwen3-moe", mixed((".self_attn.",))),
    "qwen3 uniform whole": ("qwen3", uniform(BODY, ["lm_head"])),
    "qwen3 mixed whole": ("qwen3", mixed(BODY)),
    "qwen3 uniform, no block scale": (
        "qwen3", both(uniform(BODY, ["lm_head"]), dropped("model.layers.0.mlp.down_proj.weight_scale"))),
    "qwen3 uniform, no scale 2": (
        "qwen3", both(uniform(BODY, ["lm_head"]), dropped("model.layers.0.mlp.down_proj.weight_scale_2"))),
    "qwen3 uniform, no input": (
        "qwen3", both(uniform(BODY, ["lm_head"]), dropped("model.layers.0.mlp.down_proj.input_scale"))),
    "qwen3 uniform a16, with inputs": ("qwen3", uniform(BODY, ["lm_head"], "W4A16_NVFP4")),
    "qwen3 uniform, q excluded": ("qwen3", uniform(BODY, ["lm_head", "*q_proj*"])),
    "qwen3 uniform, attention excluded": ("qwen3", uniform(MLP, ["lm_head", "*self_attn*"])),
    "llama ct whole": ("llama", ct(BODY, ["lm_head"])),
    "llama ct, scale too tall": (
        "llama", both(ct(BODY, ["lm_head"]), reshaped("model.layers.0.mlp.up_proj.weight_scale", 144, 4))),
    "llama ct, one dense": (
        "llama", both(ct(BODY, ["lm_head"]), without("layers.0.mlp.down_proj"),
                      added("model.layers.0.mlp.down_proj.weight", "BF16", 64, 128))),
    "llama ct, targets mlp": (
        "llama", ct(MLP, ["lm_head"], targets=(r"re:.*\.mlp\..*",))),
    "llama ct, targets shards": (
        "llama", ct(MLP, ["lm_head"], targets=("re:.*gate_proj", "re:.*up_proj", "re:.*down_proj"))),
}  # fmt: skip
