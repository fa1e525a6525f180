"""Tiny targets, whole and damaged, for vLLM's loader: Qwen3, Llama, Qwen3-MoE, and those of ``hybrid_cases``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from convertkit.checkpoint import TensorSpec
from convertkit.demo.drafters import config_of, tensors_of
from tests.engines.cases import MLP, QKV, added, both, dropped, reshaped, rewritten
from tests.engines.drafters import Draft, pack
from tests.engines.hybrid_cases import DENSE, HYBRID, MOE, PLAIN, TEXT_ONLY, to_dense, to_text

Damage = Callable[[Draft], object]


@dataclass(frozen=True)
class TargetCase:
    kind: str
    damage: Damage


def model(kind: str) -> Draft:
    """A whole model: a kind of ``convertkit demo``, ``llama`` made from its Qwen3, a hybrid one without experts or
    without its tower made from the whole one."""
    base = {"llama": "qwen3", DENSE: MOE, TEXT_ONLY: MOE}.get(kind, kind)
    config: dict[str, Any] = json.loads(json.dumps(config_of(base, "tiny")))
    specs = {item.spec.name: item.spec for item in tensors_of(base, "tiny")}
    if kind == "llama":
        config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
        for key in ("layer_types", "max_window_layers", "sliding_window", "use_sliding_window"):
            config.pop(key)
        specs = {name: spec for name, spec in specs.items() if not name.endswith(("q_norm.weight", "k_norm.weight"))}
    made = Draft(config, specs)
    return to_dense(made) if kind == DENSE else to_text(made) if kind == TEXT_ONLY else made


def _ct(leaves: tuple[str, ...], ignore: list[str]) -> Damage:
    def damage(made: Draft) -> None:
        modules = [name for name in made.specs if ".mlp.gate.weight" in name]
        kept = {name: made.specs[name] for name in modules}
        pack(made, leaves, "compressed-tensors")
        made.specs.update(kept)
        weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True,
                   "dynamic": False}  # fmt: skip
        group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "format": "nvfp4-pack-quantized"}
        made.config["quantization_config"] = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
                                              "ignore": ignore, "config_groups": {"group_0": group}}  # fmt: skip

    return damage


def _tied(made: Draft) -> None:
    made.config["tie_word_embeddings"] = True


def _lost_layer(made: Draft) -> None:
    made.drop(*[name for name in made.specs if ".layers.1." in name])


def _lost_expert(made: Draft) -> None:
    made.drop(*[name for name in made.specs if ".layers.1." in name and ".experts.3." in name])


ALL = (*MLP, *QKV, "o_proj")
AT = "model.layers.0"
Q = f"{AT}.self_attn.q_proj.weight"

EVERY: Mapping[str, Damage] = {
    "whole": lambda made: None,
    "no q": dropped(Q),
    "no norm": dropped(f"{AT}.input_layernorm.weight"),
    "no final norm": dropped("model.norm.weight"),
    "no embedding": dropped("model.embed_tokens.weight"),
    "no head": dropped("lm_head.weight"),
    "tied without head": both(_tied, dropped("lm_head.weight")),
    "no layer 1": _lost_layer,
    "unknown tensor": added(f"{AT}.mlp.extra.weight", "BF16", 4, 64),
    "stray bias": added(f"{AT}.self_attn.o_proj.bias", "BF16", 64),
    "norm too long": reshaped(f"{AT}.input_layernorm.weight", 128),
    "no model prefix": rewritten("model.", ""),
    "nested prefix": rewritten("model.", "model.language_model."),
    "rotary cache": added(f"{AT}.self_attn.rotary_emb.inv_freq", "F32", 8),
}

OWN: Mapping[str, tuple[str, Damage]] = {
    "qwen3 packed": ("qwen3", _ct(ALL, ["lm_head"])),
    "qwen3 packed, no q codes": ("qwen3", both(_ct(ALL, ["lm_head"]), dropped(f"{AT}.self_attn.q_proj.weight_packed"))),
    "qwen3 packed, no global scale": (
        "qwen3", both(_ct(ALL, ["lm_head"]), dropped(f"{AT}.mlp.down_proj.weight_global_scale"))),
    "qwen3 packed, no norm": ("qwen3", both(_ct(ALL, ["lm_head"]), dropped(f"{AT}.self_attn.q_norm.weight"))),
    "qwen3 packed, mlp only": ("qwen3", _ct(MLP, ["lm_head", r"re:.*self_attn.*"])),
    "moe lost expert": ("qwen3-moe", _lost_expert),
    "moe no router": ("qwen3-moe", dropped(f"{AT}.mlp.gate.weight")),
    "moe one gate lost": ("qwen3-moe", dropped(f"{AT}.mlp.experts.2.gate_proj.weight")),
    "moe expert too small": ("qwen3-moe", reshaped(f"{AT}.mlp.experts.1.down_proj.weight", 64, 16)),
    "moe expert too narrow": ("qwen3-moe", reshaped(f"{AT}.mlp.experts.1.gate_proj.weight", 32, 48)),
    "moe expert too tall": ("qwen3-moe", reshaped(f"{AT}.mlp.experts.1.up_proj.weight", 64, 64)),
    "llama up too tall": ("llama", reshaped(f"{AT}.mlp.up_proj.weight", 144, 64)),
    "llama q too short": ("llama", reshaped(Q, 48, 64)),
    "qwen3 o_proj too wide": ("qwen3", reshaped(f"{AT}.self_attn.o_proj.weight", 64, 80)),
    "llama with a q norm": ("llama", added(f"{AT}.self_attn.q_norm.weight", "BF16", 16)),
}  # fmt: skip


def target_cases() -> Iterator[tuple[str, TargetCase]]:
    """Every case by name."""
    for kind in ("qwen3", "llama", "qwen3-moe"):
        for name, damage in EVERY.items():
            yield f"{kind}, {name}", TargetCase(kind, damage)
    for name, (kind, damage) in {**OWN, **HYBRID, **PLAIN}.items():
        yield name, TargetCase(kind, damage)


def build_target(case: TargetCase) -> Draft:
    made = model(case.kind)
    case.damage(made)
    return made


def specs_of(made: Draft) -> tuple[TensorSpec, ...]:
    return tuple(made.specs[name] for name in sorted(made.specs))
