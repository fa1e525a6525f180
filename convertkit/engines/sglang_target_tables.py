"""What SGLang 0.5.23 builds of a target, by architecture: modules and parameters in its own names.

Compared with the parameters of the built models in the oracle test. ``layers``: ``all``, ``full`` and ``linear``
(attention), ``sparse`` (with experts: all, ``mlp_only_layers`` is not read), ``blocks``, ``tower`` and ``deepstack``
(of vision), ``once``. Sizes are words over ``SYMBOLS``, and ``gates``: 2 where attention has an output gate, else 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from convertkit.engines.model import Fit

Style = Literal["llama", "qwen3", "moe", "hybrid", "text"]
"""How a loader renames and what it does with a name that it does not know."""

SYMBOLS: Mapping[str, str] = {
    "V": "vocab_size", "H": "hidden_size", "I": "intermediate_size", "nh": "num_attention_heads",
    "nkv": "num_key_value_heads", "hd": "head_dim", "E": "num_experts", "Ie": "moe_intermediate_size",
    "Is": "shared_expert_intermediate_size", "lk": "linear_num_key_heads", "lkd": "linear_key_head_dim",
    "lv": "linear_num_value_heads", "lvd": "linear_value_head_dim", "conv": "linear_conv_kernel_dim",
}  # fmt: skip
VISION_SYMBOLS: Mapping[str, str] = {
    "Hv": "hidden_size", "Iv": "intermediate_size", "depth": "depth", "patch": "patch_size",
    "tpatch": "temporal_patch_size", "positions": "num_position_embeddings", "Ho": "out_hidden_size",
    "merge": "spatial_merge_size", "chan": "in_channels",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Module:
    """A linear: its name, the name it asks its quantization config by, its class, its parts with their rows."""

    name: str
    asked: str
    kind: str
    parts: tuple[tuple[str, str], ...]
    columns: str
    split: Fit
    layers: str = "all"
    quantized: bool = True
    bias: str = ""


@dataclass(frozen=True, slots=True)
class Single:
    """A parameter that is no linear. ``fit`` ``vocabulary``: rows padded to 64, the stored tensor exact."""

    name: str
    shape: str
    layers: str = "all"
    fit: Literal["exact", "vocabulary", "conv"] = "exact"
    dtype: str = ""
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of a layer."""

    name: str
    asked: str


Row = Module | Single | Experts

LAYER = "model.layers.{i}"


def attention(at: str, asked: str, query: str, norms: bool, layers: str, bias: str = "") -> tuple[Row, ...]:
    parts = (("q", query), ("k", "nkv*hd"), ("v", "nkv*hd"))
    made: list[Row] = [
        Module(f"{at}.qkv_proj", f"{asked}.qkv_proj", "QKVParallelLinear", parts, "H", "rows", layers, bias=bias),
        Module(f"{at}.o_proj", f"{asked}.o_proj", "RowParallelLinear", (("", "H"),), "nh*hd", "columns", layers,
               bias=bias if bias == "llama bias" else ""),
    ]  # fmt: skip
    if norms:
        made += [Single(f"{at}.{leaf}.weight", "hd", layers) for leaf in ("q_norm", "k_norm")]
    return tuple(made)


def mlp(at: str, asked: str, width: str, layers: str = "all") -> tuple[Row, ...]:
    pair = (("gate", width), ("up", width))
    return (
        Module(f"{at}.gate_up_proj", f"{asked}.gate_up_proj", "MergedColumnParallelLinear", pair, "H", "rows", layers),
        Module(f"{at}.down_proj", f"{asked}.down_proj", "RowParallelLinear", (("", "H"),), width, "columns", layers),
    )


def ends(own_head: str) -> tuple[Row, ...]:
    return (
        Single("model.embed_tokens.weight", "V H", "once", "vocabulary"),
        Single("model.norm.weight", "H", "once"),
        Single("lm_head.weight", "V H", "once", "vocabulary", needs=own_head),
        Single(f"{LAYER}.input_layernorm.weight", "H"),
        Single(f"{LAYER}.post_attention_layernorm.weight", "H"),
    )


def delta_net(asked: str) -> tuple[Row, ...]:
    at, qkv = f"{LAYER}.linear_attn", "2*lk*lkd+lv*lvd"
    both = (("qkv", qkv), ("z", "lv*lvd"))
    pair = (("b", "lv"), ("a", "lv"))
    return (
        Module(
            f"{at}.in_proj_qkvz", f"{asked}.in_proj_qkvz", "MergedColumnParallelLinear", both, "H", "rows", "linear"
        ),
        Module(f"{at}.in_proj_ba", f"{asked}.in_proj_ba", "MergedColumnParallelLinear", pair, "H", "rows", "linear"),
        Module(f"{at}.out_proj", f"{asked}.out_proj", "RowParallelLinear", (("", "H"),), "lv*lvd", "columns", "linear"),
        Single(f"{at}.conv1d.weight", f"{qkv} 1 conv", "linear", "conv"),
        Single(f"{at}.A_log", "lv", "linear", "conv", "F32"),
        Single(f"{at}.dt_bias", "lv", "linear", "conv"),
        Single(f"{at}.norm.weight", "lvd", "linear"),
    )


def vision() -> tuple[Row, ...]:
    block, asked = "visual.blocks.{i}", "model.visual.blocks.{i}"
    wide = "merge*merge*Hv"
    linears: tuple[tuple[str, str, str, str, Fit], ...] = (
        ("attn.qkv_proj", "QKVParallelLinear", "3*Hv", "Hv", "rows"),
        ("attn.proj", "RowParallelLinear", "Hv", "Hv", "columns"),
        ("mlp.linear_fc1", "ColumnParallelLinear", "Iv", "Hv", "rows"),
        ("mlp.linear_fc2", "RowParallelLinear", "Hv", "Iv", "columns"),
    )  # fmt: skip
    merger: tuple[tuple[str, str, str, Fit], ...] = (
        ("linear_fc1", "ColumnParallelLinear", wide, "rows"), ("linear_fc2", "RowParallelLinear", "Ho", "columns"),
    )  # fmt: skip
    made: list[Row] = [
        Module(f"{block}.{leaf}", f"{asked}.{leaf}", kind, (("", rows),), columns, split, "blocks", False, "always")
        for leaf, kind, rows, columns, split in linears
    ]
    mergers = (("merger", "tower"), ("deepstack_merger_list.{i}", "deepstack"))
    made += [
        Module(f"visual.{at}.{leaf}", f"model.visual.{at}.{leaf}", kind, (("", rows),), wide, split, layers, False,
               "always")
        for at, layers in mergers for leaf, kind, rows, split in merger
    ]  # fmt: skip
    made += [
        Single("visual.pos_embed.weight", "positions Hv", "tower", "vocabulary"),
        Single("visual.patch_embed.proj.weight", "Hv chan tpatch patch patch", "tower"),
        Single("visual.patch_embed.proj.bias", "Hv", "tower"),
    ]  # fmt: skip
    for leaf in ("weight", "bias"):
        made += [Single(f"{block}.{name}.{leaf}", "Hv", "blocks") for name in ("norm1", "norm2")]
        made.append(Single(f"visual.merger.norm.{leaf}", "Hv", "tower"))
        made.append(Single(f"visual.deepstack_merger_list.{{i}}.norm.{leaf}", wide, "deepstack"))
    return tuple(made)


@dataclass(frozen=True, slots=True)
class TargetTable:
    """One architecture: how its loader renames, its rows, the fused linears that its class names, whether its attention
    asks the quantization config for scales of the KV cache."""

    architecture: str
    style: Style
    rows: tuple[Row, ...]
    packed: Mapping[str, tuple[str, ...]]
    cache_scales: bool = True


QKV = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
DELTA = {**QKV, "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"), "in_proj_ba": ("in_proj_b", "in_proj_a")}
_DENSE = (*mlp(f"{LAYER}.mlp", f"{LAYER}.mlp", "I"),)
_SPARSE = (
    Module(f"{LAYER}.mlp.gate", f"{LAYER}.mlp.gate", "ReplicatedLinear", (("", "E"),), "H", "exact", "sparse", False),
    Experts(f"{LAYER}.mlp.experts", f"{LAYER}.mlp.experts"),
)
_NESTED = "model.language_model.layers.{i}"
_GATES = (
    _SPARSE[0],
    Module(f"{LAYER}.mlp.shared_expert_gate", "", "Linear", (("", "1"),), "H", "exact", "sparse", False),
)


def _hybrid(experts: bool, at: str, tower: tuple[Row, ...]) -> tuple[Row, ...]:
    body = (*attention(LAYER, f"{at}.self_attn", "gates*nh*hd", True, "full"), *delta_net(f"{at}.linear_attn"))
    if not experts:
        return (*ends("own head"), *body, *mlp(f"{LAYER}.mlp", f"{at}.mlp", "I"), *tower)
    shared = mlp(f"{LAYER}.mlp.shared_expert", f"{at}.mlp.shared_expert", "Is", "sparse")
    sparse = Experts(f"{LAYER}.mlp.experts", f"{at}.mlp.experts")
    return (*ends("own head"), *body, sparse, *shared, *_GATES, *tower)


_AT = f"{LAYER}.self_attn"
TARGETS: Mapping[str, TargetTable] = {
    table.architecture: table
    for table in (
        TargetTable("LlamaForCausalLM", "llama",
                    (*ends("own head"), *attention(_AT, _AT, "nh*hd", False, "all", "llama bias"), *_DENSE), {}),
        TargetTable("Qwen3ForCausalLM", "qwen3",
                    (*ends("own head"), *attention(_AT, _AT, "nh*hd", True, "all", "attention bias"), *_DENSE), {},
                    False),
        TargetTable("Qwen3MoeForCausalLM", "moe",
                    (*ends(""), *attention(_AT, _AT, "nh*hd", True, "all", "attention bias"),
                     *_SPARSE), QKV, False),
        TargetTable("Qwen3_5ForConditionalGeneration", "hybrid", _hybrid(False, _NESTED, vision()), DELTA),
        TargetTable("Qwen3_5MoeForConditionalGeneration", "hybrid", _hybrid(True, _NESTED, vision()), DELTA),
        TargetTable("Qwen3_5ForCausalLM", "text", _hybrid(False, LAYER, ()), DELTA),
        TargetTable("Qwen3_5MoeForCausalLM", "text", _hybrid(True, LAYER, ()), DELTA),
    )
}  # fmt: skip
"""Architectures described."""
