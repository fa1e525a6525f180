"""Tensors that vLLM 0.33 needs of a target, by architecture: stored names, shapes, which layers have them.

Stored names are those of transformers 5. ``layers`` of a row: ``all``, ``full`` (attention), ``linear`` (attention),
``sparse`` (with experts), ``dense`` (without). Symbols are those of ``SYMBOLS``. Read from ``models/qwen2.py``,
``qwen3.py``, ``qwen3_moe.py``, ``qwen3_next.py``, ``qwen3_5.py``, ``qwen3_vl.py`` and ``llama.py``; Qwen3 and Llama
were run, with experts too. A ``norm`` is a parameter without a quantization method, the only kind that the loader
misses by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["linear", "norm", "table", "vision"]


@dataclass(frozen=True, slots=True)
class Row:
    """Tensors of one template: shape words over symbols, what it is, the layers that have it. ``bias`` names the
    config key on which a bias depends; ``needs`` a condition of ``CONDITIONS``."""

    template: str
    shape: str
    kind: Kind = "linear"
    layers: str = "all"
    needs: str = ""


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


def attention(at: str, query: str, norms: bool, layers: str = "all") -> tuple[Row, ...]:
    """Projections and head norms; ``query`` are the rows of q."""
    rows = {"q_proj": f"{query} H", "k_proj": "nkv*hd H", "v_proj": "nkv*hd H", "o_proj": "H nh*hd"}
    made = [Row(f"{at}.self_attn.{leaf}.weight", shape, layers=layers) for leaf, shape in rows.items()]
    made += [Row(f"{at}.self_attn.{leaf}.bias", rows[leaf].split()[0], "linear", layers, "attention bias")
             for leaf in ("q_proj", "k_proj", "v_proj")]  # fmt: skip
    if norms:
        made += [Row(f"{at}.self_attn.{leaf}.weight", "hd", "norm", layers) for leaf in ("q_norm", "k_norm")]
    return tuple(made)


def mlp(at: str, width: str, layers: str = "all") -> tuple[Row, ...]:
    return (
        Row(f"{at}.gate_proj.weight", f"{width} H", layers=layers),
        Row(f"{at}.up_proj.weight", f"{width} H", layers=layers),
        Row(f"{at}.down_proj.weight", f"H {width}", layers=layers),
    )


def ends(text: str, head: str = "lm_head.weight") -> tuple[Row, ...]:
    return (
        Row(f"{text}.embed_tokens.weight", "V H", "table"),
        Row(f"{text}.norm.weight", "H", "norm"),
        Row(head, "V H", "table", needs="own head"),
        Row(f"{text}.layers.{{i}}.input_layernorm.weight", "H", "norm"),
        Row(f"{text}.layers.{{i}}.post_attention_layernorm.weight", "H", "norm"),
    )


def experts(text: str) -> tuple[Row, ...]:
    return (
        Row(f"{text}.layers.{{i}}.mlp.gate.weight", "E H", layers="sparse"),
        *mlp(f"{text}.layers.{{i}}.mlp.experts.{{e}}", "Ie", "sparse"),
    )


def delta_net(text: str) -> tuple[Row, ...]:
    """The gated delta net of linear-attention layers (``qwen_gdn_linear_attn.py:597``)."""
    at = f"{text}.layers.{{i}}.linear_attn"
    qkv = "2*lk*lkd+lv*lvd"
    return (
        Row(f"{at}.in_proj_qkv.weight", f"{qkv} H", layers="linear"),
        Row(f"{at}.in_proj_z.weight", "lv*lvd H", layers="linear"),
        Row(f"{at}.in_proj_b.weight", "lv H", layers="linear"),
        Row(f"{at}.in_proj_a.weight", "lv H", layers="linear"),
        Row(f"{at}.conv1d.weight", f"{qkv} 1 conv", layers="linear"),
        Row(f"{at}.A_log", "lv", "norm", "linear"),
        Row(f"{at}.dt_bias", "lv", "norm", "linear"),
        Row(f"{at}.norm.weight", "lvd", "norm", "linear"),
        Row(f"{at}.out_proj.weight", "H lv*lvd", layers="linear"),
    )


def vision() -> tuple[Row, ...]:
    """The tower of Qwen3-VL and Qwen3.5 (``qwen3_vl.py:562``)."""
    block, tower = "model.visual.blocks.{i}", "model.visual"
    rows = {
        f"{tower}.patch_embed.proj": "Hv chan tpatch patch patch", f"{block}.attn.qkv": "3*Hv Hv",
        f"{block}.attn.proj": "Hv Hv", f"{block}.mlp.linear_fc1": "Iv Hv", f"{block}.mlp.linear_fc2": "Hv Iv",
        f"{tower}.merger.linear_fc1": "merge*merge*Hv merge*merge*Hv",
        f"{tower}.merger.linear_fc2": "Ho merge*merge*Hv",
    }  # fmt: skip
    made = [Row(f"{tower}.pos_embed.weight", "positions Hv", "vision", "blocks")]
    for name, shape in rows.items():
        made.append(Row(f"{name}.weight", shape, "vision", "blocks"))
        made.append(Row(f"{name}.bias", shape.split()[0], "vision", "blocks"))
    for name in (f"{block}.norm1", f"{block}.norm2", f"{tower}.merger.norm"):
        made += [Row(f"{name}.{leaf}", "Hv", "vision", "blocks") for leaf in ("weight", "bias")]
    return tuple(made)


_TEXT, _NESTED = "model", "model.language_model"
_HYBRID_NESTED = (
    *ends(_NESTED),
    *attention(f"{_NESTED}.layers.{{i}}", "2*nh*hd", True, "full"),
    *delta_net(_NESTED),
)
_SHARED = (
    *mlp(f"{_NESTED}.layers.{{i}}.mlp.shared_expert", "Is", "sparse"),
    Row(f"{_NESTED}.layers.{{i}}.mlp.shared_expert_gate.weight", "1 H", layers="sparse"),
)

LLAMA = (*ends(_TEXT), *attention("model.layers.{i}", "nh*hd", False), *mlp("model.layers.{i}.mlp", "I"))
QWEN3 = (*ends(_TEXT), *attention("model.layers.{i}", "nh*hd", True), *mlp("model.layers.{i}.mlp", "I"))
QWEN3_MOE = (
    *ends(_TEXT),
    *attention("model.layers.{i}", "nh*hd", True),
    *mlp("model.layers.{i}.mlp", "I", "dense"),
    *experts(_TEXT),
)
QWEN3_5 = (*_HYBRID_NESTED, *mlp(f"{_NESTED}.layers.{{i}}.mlp", "I"), *vision())
QWEN3_5_MOE = (*_HYBRID_NESTED, *experts(_NESTED), *_SHARED, *vision())


@dataclass(frozen=True, slots=True)
class TargetTable:
    """One architecture: rows, prefixes of names that the loader drops, and whether its loader was run."""

    architecture: str
    rows: tuple[Row, ...]
    dropped: tuple[str, ...] = ()
    run: bool = False


TARGETS: Mapping[str, TargetTable] = {
    table.architecture: table
    for table in (
        TargetTable("LlamaForCausalLM", LLAMA, run=True),
        TargetTable("Qwen3ForCausalLM", QWEN3, run=True),
        TargetTable("Qwen3MoeForCausalLM", QWEN3_MOE, run=True),
        TargetTable("Qwen3_5ForConditionalGeneration", QWEN3_5, ("mtp.",)),
        TargetTable("Qwen3_5MoeForConditionalGeneration", QWEN3_5_MOE, ("mtp.",)),
    )
}
"""Architectures described."""
