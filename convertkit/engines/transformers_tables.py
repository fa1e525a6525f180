"""Parameters of transformers 5 models by architecture: names, shapes, the layers that have them.

Compared with the models that ``from_pretrained`` built in the oracle test. Experts are two parameters of a layer; one
tensor per expert on disk is merged into them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Needs = Literal["", "bias", "mlp bias", "own head", "tower"]


@dataclass(frozen=True, slots=True)
class Row:
    """A parameter: its name, its shape in words over ``sglang_target_tables.SYMBOLS``, its layers."""

    name: str
    shape: str
    layers: str = "all"
    needs: Needs = ""


def _linears(at: str, rows: Mapping[str, str], layers: str = "all", needs: Needs = "") -> list[Row]:
    made = [Row(f"{at}.{leaf}.weight", shape, layers) for leaf, shape in rows.items()]
    return made + [Row(f"{at}.{leaf}.bias", shape.split()[0], layers, needs) for leaf, shape in rows.items() if needs]


def _attention(at: str, query: str, norms: bool, layers: str = "all") -> list[Row]:
    rows = {"q_proj": f"{query} H", "k_proj": "nkv*hd H", "v_proj": "nkv*hd H", "o_proj": "H nh*hd"}
    made = _linears(f"{at}.self_attn", rows, layers, "bias")
    return made + [Row(f"{at}.self_attn.{leaf}.weight", "hd", layers) for leaf in ("q_norm", "k_norm") if norms]


def _mlp(at: str, width: str, layers: str = "all", needs: Needs = "") -> list[Row]:
    return _linears(at, {"gate_proj": f"{width} H", "up_proj": f"{width} H", "down_proj": f"H {width}"}, layers, needs)


def _experts(at: str) -> list[Row]:
    return [
        Row(f"{at}.mlp.gate.weight", "E H", "sparse"),
        Row(f"{at}.mlp.experts.gate_up_proj", "E 2*Ie H", "sparse"),
        Row(f"{at}.mlp.experts.down_proj", "E H Ie", "sparse"),
    ]


def _ends(text: str) -> list[Row]:
    at = f"{text}.layers.{{i}}"
    norms = [Row(f"{at}.{leaf}.weight", "H") for leaf in ("input_layernorm", "post_attention_layernorm")]
    return [Row(f"{text}.embed_tokens.weight", "V H", "once"), Row(f"{text}.norm.weight", "H", "once"),
            Row("lm_head.weight", "V H", "once", "own head"), *norms]  # fmt: skip


def _delta(at: str) -> list[Row]:
    qkv = "2*lk*lkd+lv*lvd"
    rows = {"in_proj_qkv": f"{qkv} H", "in_proj_z": "lv*lvd H", "in_proj_b": "lv H", "in_proj_a": "lv H",
            "out_proj": "H lv*lvd"}  # fmt: skip
    singles = {"conv1d.weight": f"{qkv} 1 conv", "A_log": "lv", "dt_bias": "lv", "norm.weight": "lvd"}
    made = [Row(f"{at}.linear_attn.{leaf}", shape, "linear") for leaf, shape in singles.items()]
    return made + _linears(f"{at}.linear_attn", rows, "linear")


def _vision() -> list[Row]:
    tower, block, wide = "model.visual", "model.visual.blocks.{i}", "merge*merge*Hv"
    made = _linears(block, {"attn.qkv": "3*Hv Hv", "attn.proj": "Hv Hv", "mlp.linear_fc1": "Iv Hv",
                            "mlp.linear_fc2": "Hv Iv"}, "blocks", "tower")  # fmt: skip
    made += _linears(f"{tower}.merger", {"linear_fc1": f"{wide} {wide}", "linear_fc2": f"Ho {wide}"}, "tower", "tower")
    made += _linears(f"{tower}.patch_embed", {"proj": "Hv chan tpatch patch patch"}, "tower", "tower")
    made.append(Row(f"{tower}.pos_embed.weight", "positions Hv", "tower"))
    for leaf in ("weight", "bias"):
        made += [Row(f"{block}.{name}.{leaf}", "Hv", "blocks") for name in ("norm1", "norm2")]
        made.append(Row(f"{tower}.merger.norm.{leaf}", "Hv", "tower"))
    return made


def _hybrid(text: str, experts: bool, tower: list[Row]) -> tuple[Row, ...]:
    at = f"{text}.layers.{{i}}"
    made = [*_ends(text), *_attention(at, "2*nh*hd", True, "full"), *_delta(at)]
    if not experts:
        return (*made, *_mlp(f"{at}.mlp", "I"), *tower)
    gate = Row(f"{at}.mlp.shared_expert_gate.weight", "1 H", "sparse")
    return (*made, *_experts(at), *_mlp(f"{at}.mlp.shared_expert", "Is", "sparse"), gate, *tower)


@dataclass(frozen=True, slots=True)
class Model:
    """A class: its rows, prefixes of names that it ignores on disk, a prefix that it drops from names, whether it
    merges experts that are stored one by one."""

    name: str
    rows: tuple[Row, ...]
    ignored: tuple[str, ...] = ()
    shed: str = ""
    merges: bool = True


_AT = "model.layers.{i}"
_DENSE = _mlp(f"{_AT}.mlp", "I")
MODELS: Mapping[str, Model] = {
    "llama": Model(
        "LlamaForCausalLM",
        (*_ends("model"), *_attention(_AT, "nh*hd", False), *_mlp(f"{_AT}.mlp", "I", needs="mlp bias")),
    ),
    "qwen3": Model("Qwen3ForCausalLM", (*_ends("model"), *_attention(_AT, "nh*hd", True), *_DENSE)),
    "qwen3_moe": Model(
        "Qwen3MoeForCausalLM",
        (*_ends("model"), *_attention(_AT, "nh*hd", True), *_mlp(f"{_AT}.mlp", "I", "dense"), *_experts(_AT)),
    ),
    "qwen3_5": Model("Qwen3_5ForConditionalGeneration", _hybrid("model.language_model", False, _vision()), ("mtp",)),
    "qwen3_5_moe": Model(
        "Qwen3_5MoeForConditionalGeneration", _hybrid("model.language_model", True, _vision()), ("mtp",)
    ),
    "qwen3_5_text": Model(
        "Qwen3_5ForCausalLM", _hybrid("model", False, []), ("mtp", "model.visual"), "model.language_model."
    ),
    "qwen3_5_moe_text": Model(
        "Qwen3_5MoeForCausalLM", _hybrid("model", True, []), ("mtp", "model.visual"), "model.language_model."
    ),
}
"""Classes by ``model_type``, which alone chooses them."""
