"""What vLLM 0.33 builds of a target, by architecture: modules and parameters in its own names, which layers have them.

A stored name reaches its module through the renames of the architecture; a fused module is filled by the stored
linears that it names as its parts. ``layers``: ``all``, ``full`` (attention), ``linear`` (attention), ``sparse``
(with experts), ``dense`` (without), ``blocks`` and ``tower`` (of vision), ``once``. Sizes are words over ``SYMBOLS``.
Compared with the parameters of the built models: ``models/qwen2.py``, ``qwen3.py``, ``qwen3_moe.py``,
``qwen3_next.py``, ``qwen3_5.py``, ``qwen3_vl.py``, ``llama.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Split = Literal["rows", "columns", "whole"]
Fit = Literal["exact", "rows", "conv", "vocabulary"]


@dataclass(frozen=True, slots=True)
class Module:
    """A linear. ``kind`` is its class, ``parts`` are share, stored leaf and rows; ``quantized``: it may be packed.
    ``bias``: a bias ``always``, on a config key of that name, or never."""

    name: str
    kind: str
    parts: tuple[tuple[str, str, str], ...]
    columns: str
    split: Split
    layers: str = "all"
    quantized: bool = True
    bias: str = ""
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Single:
    """A parameter that is no linear. ``fit``: how its stored tensor may differ. ``noticed``: the loader of an
    unquantized model refuses when it is missing, as it does for parameters without a quantization method. ``dtype``
    where the engine keeps more bits than of the rest."""

    name: str
    shape: str
    fit: Fit = "exact"
    layers: str = "all"
    noticed: bool = True
    needs: str = ""
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of a layer: gate and up of all in one parameter, down in another."""

    name: str
    layers: str = "sparse"


Row = Module | Single | Experts

SYMBOLS: Mapping[str, str] = {
    "V": "vocab_size", "H": "hidden_size", "I": "intermediate_size", "nh": "num_attention_heads",
    "nkv": "num_key_value_heads", "hd": "head_dim", "E": "num_experts", "Ie": "moe_intermediate_size",
    "Is": "shared_expert_intermediate_size", "lk": "linear_num_key_heads", "lkd": "linear_key_head_dim",
    "lv": "linear_num_value_heads", "lvd": "linear_value_head_dim", "conv": "linear_conv_kernel_dim",
    "layers": "num_hidden_layers",
}  # fmt: skip
VISION_SYMBOLS: Mapping[str, str] = {
    "Hv": "hidden_size", "Iv": "intermediate_size", "depth": "depth", "patch": "patch_size",
    "tpatch": "temporal_patch_size", "positions": "num_position_embeddings", "Ho": "out_hidden_size",
    "merge": "spatial_merge_size", "chan": "in_channels", "nhv": "num_heads",
}  # fmt: skip


def _sizes(text: str) -> Mapping[str, int]:
    return {name: int(value) for name, _, value in (word.partition("=") for word in text.split())}


LLAMA_DEFAULTS = _sizes("V=32000 H=4096 I=11008 layers=32 nh=32")
QWEN3_DEFAULTS = _sizes("V=151936 H=4096 I=22016 layers=32 nh=32 nkv=32 hd=128")
MOE_DEFAULTS = _sizes("V=151936 H=2048 I=6144 layers=24 nh=32 nkv=4 E=128 Ie=768")
_DELTA_DEFAULTS = "V=248320 nh=16 hd=256 lk=16 lkd=128 lv=32 lvd=128 conv=4"
HYBRID_DEFAULTS = _sizes(f"{_DELTA_DEFAULTS} H=4096 I=12288 layers=32 nkv=4")
HYBRID_MOE_DEFAULTS = _sizes(f"{_DELTA_DEFAULTS} H=2048 layers=40 nkv=2 E=256 Ie=512 Is=512")
VISION_DEFAULTS = _sizes("Hv=1152 Iv=4304 depth=27 nhv=16 patch=16 tpatch=2 positions=2304 Ho=3584 merge=2 chan=3")
"""Sizes that transformers 5.20.2's config classes take for keys that are absent."""

KV = "nkv*hd"
"""Rows of k and v, of which every rank has at least one head."""


def attention(
    at: str, query: str, norms: bool, layers: str = "all", bias: str = "attention_bias", out_bias: str = ""
) -> tuple[Row, ...]:
    """Projections and head norms; ``query`` are the rows of q, ``bias`` and ``out_bias`` keys that ask for biases."""
    parts = (("q", "q_proj", query), ("k", "k_proj", KV), ("v", "v_proj", KV))
    made: list[Row] = [
        Module(f"{at}.self_attn.qkv_proj", "QKVParallelLinear", parts, "H", "rows", layers, bias=bias),
        Module(f"{at}.self_attn.o_proj", "RowParallelLinear", (("", "o_proj", "H"),), "nh*hd", "columns", layers,
               bias=out_bias),
    ]  # fmt: skip
    if norms:
        made += [Single(f"{at}.self_attn.{leaf}.weight", "hd", layers=layers) for leaf in ("q_norm", "k_norm")]
    return tuple(made)


def mlp(at: str, width: str, layers: str = "all", bias: str = "") -> tuple[Row, ...]:
    pair = (("gate", "gate_proj", width), ("up", "up_proj", width))
    return (
        Module(f"{at}.gate_up_proj", "MergedColumnParallelLinear", pair, "H", "rows", layers, bias=bias),
        Module(f"{at}.down_proj", "RowParallelLinear", (("", "down_proj", "H"),), width, "columns", layers, bias=bias),
    )


def ends(root: str, head: str) -> tuple[Row, ...]:
    return (
        Single(f"{root}.embed_tokens.weight", "V H", "vocabulary", "once", False),
        Single(f"{root}.norm.weight", "H", layers="once"),
        Module(head, "ParallelLMHead", (("", "lm_head", "V"),), "H", "whole", "once", needs="own head"),
        Single(f"{root}.layers.{{i}}.input_layernorm.weight", "H"),
        Single(f"{root}.layers.{{i}}.post_attention_layernorm.weight", "H"),
    )


def experts(at: str, gate_quantized: bool) -> tuple[Row, ...]:
    """The router, which Qwen3-MoE may pack and Qwen3-Next not, and the experts."""
    gate = Module(f"{at}.gate", "GateLinear", (("", "gate", "E"),), "H", "whole", "sparse", gate_quantized)
    return (gate, Experts(f"{at}.experts"))


def delta_net(at: str) -> tuple[Row, ...]:
    """The gated delta net of linear-attention layers (``qwen_gdn_linear_attn.py:597``)."""
    key, value = "lk*lkd", "lv*lvd"
    qkvz = (("q k v", "in_proj_qkv", f"2*{key}+{value}"), ("z", "in_proj_z", value))
    conv = (("", "conv1d", f"2*{key}+{value}"),)
    ba = (("b", "in_proj_b", "lv"), ("a", "in_proj_a", "lv"))
    merged = "MergedColumnParallelLinear"
    return (
        Module(f"{at}.in_proj_qkvz", merged, qkvz, "H", "rows", "linear"),
        Module(f"{at}.in_proj_ba", merged, ba, "H", "rows", "linear"),
        Module(f"{at}.conv1d", "ColumnParallelLinear", conv, "conv", "rows", "linear", False),
        Single(f"{at}.A_log", "lv", "rows", "linear", dtype="F32"),
        Single(f"{at}.dt_bias", "lv", "rows", "linear"),
        Single(f"{at}.norm.weight", "lvd", layers="linear"),
        Module(f"{at}.out_proj", "RowParallelLinear", (("", "out_proj", "H"),), value, "columns", "linear"),
    )


def _visual(name: str, kind: str, rows: str, columns: str, split: Split, layers: str) -> Module:
    leaf = name.rpartition(".")[2]
    return Module(name, kind, (("", leaf, rows),), columns, split, layers, bias="always")


def vision(at: str) -> tuple[Row, ...]:
    """The tower of Qwen3-VL and Qwen3.5 (``qwen3_vl.py:561``)."""
    block, wide = f"{at}.blocks.{{i}}", "merge*merge*Hv"
    thirds = tuple((share, f"{share}", "Hv") for share in "qkv")
    made: list[Row] = [
        Single(f"{at}.pos_embed.weight", "positions Hv", layers="tower"),
        Single(f"{at}.patch_embed.proj.weight", "Hv chan tpatch patch patch", layers="tower"),
        Single(f"{at}.patch_embed.proj.bias", "Hv", layers="tower"),
        Module(f"{block}.attn.qkv", "QKVParallelLinear", thirds, "Hv", "rows", "blocks", bias="always"),
        _visual(f"{block}.attn.proj", "RowParallelLinear", "Hv", "Hv", "columns", "blocks"),
        _visual(f"{block}.mlp.linear_fc1", "ColumnParallelLinear", "Iv", "Hv", "rows", "blocks"),
        _visual(f"{block}.mlp.linear_fc2", "RowParallelLinear", "Hv", "Iv", "columns", "blocks"),
        _visual(f"{at}.merger.linear_fc1", "ColumnParallelLinear", wide, wide, "rows", "tower"),
        _visual(f"{at}.merger.linear_fc2", "RowParallelLinear", "Ho", wide, "columns", "tower"),
    ]
    for name, layers in ((f"{block}.norm1", "blocks"), (f"{block}.norm2", "blocks"), (f"{at}.merger.norm", "tower")):
        made += [Single(f"{name}.{leaf}", "Hv", layers=layers) for leaf in ("weight", "bias")]
    return tuple(made)


Prefixes = tuple[tuple[str, str | None], ...]
"""Beginnings of names in order, and what each becomes; None: the tensor is dropped."""


@dataclass(frozen=True, slots=True)
class TargetTable:
    """One architecture. ``prefixes`` are the renames of the whole model, ``inner`` those of the language model inside,
    whose root is ``within``; ``shards`` are its fused linears as quantization configs see them.
    ``defaults`` are sizes that its config need not state."""

    architecture: str
    rows: tuple[Row, ...]
    shards: Mapping[str, Sequence[str]]
    prefixes: Prefixes = ()
    inner: Prefixes = ()
    within: str = ""
    defaults: Mapping[str, int] = field(default_factory=dict)


QKV = ("q_proj", "k_proj", "v_proj")
GATE_UP = ("gate_proj", "up_proj")
FUSED: Mapping[str, Sequence[str]] = {"qkv_proj": QKV, "gate_up_proj": GATE_UP}
QKV_ALONE: Mapping[str, Sequence[str]] = {"qkv_proj": QKV}
DELTA: Mapping[str, Sequence[str]] = {
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}

_LAYER = "model.layers.{i}"
_TEXT_PREFIXES: Prefixes = (("model.language_model.", "model."), ("mtp.", None))
_OUTER: Prefixes = (("model.visual.", "visual."), ("lm_head.", "language_model.lm_head."),
                    ("model.language_model.", "language_model.model."), ("mtp.", None))  # fmt: skip


def _plain(norms: bool, inside: tuple[Row, ...], out_bias: str = "") -> tuple[Row, ...]:
    return (*ends("model", "lm_head"), *attention(_LAYER, "nh*hd", norms, out_bias=out_bias), *inside)


def _hybrid(root: str, head: str, sparse: bool) -> tuple[Row, ...]:
    at = f"{root}.layers.{{i}}"
    gated = Module(f"{at}.mlp.shared_expert_gate", "ReplicatedLinear", (("", "shared_expert_gate", "1"),), "H", "whole",
                   "sparse", False)  # fmt: skip
    inside: tuple[Row, ...] = mlp(f"{at}.mlp", "I")
    if sparse:
        inside = (*experts(f"{at}.mlp", False), *mlp(f"{at}.mlp.shared_expert", "Is", "sparse"), gated)
    return (
        *ends(root, head),
        *attention(at, "2*nh*hd", True, "full", "qkv_bias"),
        *delta_net(f"{at}.linear_attn"),
        *inside,
    )


_DENSE, _MOE = _plain(True, mlp(f"{_LAYER}.mlp", "I")), (
    *mlp(f"{_LAYER}.mlp", "I", "dense"),
    *experts(f"{_LAYER}.mlp", True),
)  # fmt: skip
_LLAMA = _plain(False, mlp(f"{_LAYER}.mlp", "I", bias="mlp_bias"), "attention_bias")
_NESTED = ("language_model.model", "language_model.lm_head")

TARGETS: Mapping[str, TargetTable] = {
    table.architecture: table
    for table in (
        TargetTable("LlamaForCausalLM", _LLAMA, FUSED, defaults=LLAMA_DEFAULTS),
        TargetTable("Qwen3ForCausalLM", _DENSE, FUSED, defaults=QWEN3_DEFAULTS),
        TargetTable("Qwen3MoeForCausalLM", _plain(True, _MOE), QKV_ALONE, defaults=MOE_DEFAULTS),
        *(
            TargetTable(name, _hybrid("model", "lm_head", sparse), {**FUSED, **DELTA}, _TEXT_PREFIXES,
                        defaults=HYBRID_MOE_DEFAULTS if sparse else HYBRID_DEFAULTS)
            for name, sparse in (("Qwen3_5ForCausalLM", False), ("Qwen3_5MoeForCausalLM", True))
        ),
        *(
            TargetTable(name, (*_hybrid(*_NESTED, sparse), *vision("visual")), {**FUSED, **DELTA, "qkv": ("qkv",)},
                        _OUTER, _TEXT_PREFIXES, "language_model.",
                        {**(HYBRID_MOE_DEFAULTS if sparse else HYBRID_DEFAULTS), **VISION_DEFAULTS})
            for name, sparse in (
                ("Qwen3_5ForConditionalGeneration", False), ("Qwen3_5MoeForConditionalGeneration", True)
            )
        ),
    )
}  # fmt: skip
"""Architectures described."""
