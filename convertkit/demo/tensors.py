"""Tensors of the models that the generator makes, as tables of name templates.

A row is a name, a shape, a role (what its values look like) and, for a weight that a quantizer packs by default,
the fused group whose global scale it shares. Shapes are words of products, their factors numbers or symbols:
H hidden, I intermediate, nh/nkv/hd heads, K tapped target layers, V vocabulary. Placeholders in names run over
``{i}`` layers, ``{f}`` full-attention layers, ``{l}`` linear-attention layers, ``{e}`` experts, ``{b}`` vision blocks.

Names and shapes are those that the real classes save: dflash 0.1.0 (model.py; the codebooks of DFlash 2 are stored
bare, as published), transformers 5.17.0 (Qwen3ForCausalLM, Qwen3MoeForCausalLM, Qwen3_5MoeForConditionalGeneration).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from string import Formatter
from typing import NamedTuple

from convertkit.checkpoint import TensorSpec


class Row(NamedTuple):
    """One template. ``grid`` is the group's name, ``dtype`` a fixed storage type (default: the model's)."""

    name: str
    shape: str
    role: str = "linear"
    grid: str | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class DemoTensor:
    """One tensor to make: its spec, the role of its values, and its group if it can lie on the grid."""

    spec: TensorSpec
    role: str
    grid: str | None

    @property
    def fan_in(self) -> int:
        """Inputs of one output: the last dimension, or all but the first of a convolution."""
        shape = self.spec.shape
        return prod(shape[1:]) if self.role == "convolution" else shape[-1]


def attention(at: str, *, grid: bool, query: str = "nh*hd") -> tuple[Row, ...]:
    """Grouped-query attention with q and k norms under the prefix ``at``."""
    qkv, out = (f"{at}.qkv", f"{at}.o_proj") if grid else (None, None)
    return (
        Row(f"{at}.q_proj.weight", f"{query} H", grid=qkv),
        Row(f"{at}.k_proj.weight", "nkv*hd H", grid=qkv),
        Row(f"{at}.v_proj.weight", "nkv*hd H", grid=qkv),
        Row(f"{at}.o_proj.weight", "H nh*hd", grid=out),
        Row(f"{at}.q_norm.weight", "hd", "norm"),
        Row(f"{at}.k_norm.weight", "hd", "norm"),
    )


def mlp(at: str, width: str = "I") -> tuple[Row, ...]:
    """A gated MLP under the prefix ``at``; gate and up share a global scale."""
    return (
        Row(f"{at}.gate_proj.weight", f"{width} H", grid=f"{at}.gate_up"),
        Row(f"{at}.up_proj.weight", f"{width} H", grid=f"{at}.gate_up"),
        Row(f"{at}.down_proj.weight", f"H {width}", grid=f"{at}.down"),
    )


def _layer_norms(at: str) -> tuple[Row, ...]:
    """The two norms of a decoder layer."""
    return (
        Row(f"{at}.input_layernorm.weight", "H", "norm"),
        Row(f"{at}.post_attention_layernorm.weight", "H", "norm"),
    )


def convolution(at: str) -> tuple[Row, ...]:
    """A grouped dynamic convolution of DFlash 2; ``gates`` is 2 * taps * H / group."""
    return (
        Row(f"{at}.base_kernel", "2 taps H", "kernel"),
        Row(f"{at}.kernel_projection.weight", "gates H"),
    )


DFLASH = (
    *attention("layers.{i}.self_attn", grid=False),
    *mlp("layers.{i}.mlp"),
    *_layer_norms("layers.{i}"),
    Row("fc.weight", "H K*H"),
    Row("hidden_norm.weight", "H", "norm"),
    Row("norm.weight", "H", "norm"),
)

DFLASH2 = (
    *DFLASH,
    *convolution("layers.{i}.attention_conv"),
    *convolution("layers.{i}.mlp_conv"),
    Row("candidate_selector.predecessor_codebook", "V rank", "embedding"),
    Row("candidate_selector.successor_codebook", "V rank", "embedding"),
    Row("candidate_selector.hidden_projection.weight", "rank H"),
)

CAUSAL_LM = (
    Row("model.embed_tokens.weight", "V H", "embedding"),
    *attention("model.layers.{i}.self_attn", grid=True),
    *_layer_norms("model.layers.{i}"),
    Row("model.norm.weight", "H", "norm"),
    Row("lm_head.weight", "V H", "embedding"),
)

QWEN3 = (*CAUSAL_LM, *mlp("model.layers.{i}.mlp"))

QWEN3_MOE = (
    *CAUSAL_LM,
    Row("model.layers.{i}.mlp.gate.weight", "E H"),
    *mlp("model.layers.{i}.mlp.experts.{e}", "Ie"),
)

VISION = (
    Row("model.visual.patch_embed.proj.weight", "Hv 3 2 patch patch", "convolution"),
    Row("model.visual.patch_embed.proj.bias", "Hv", "bias"),
    Row("model.visual.pos_embed.weight", "positions Hv", "embedding"),
    Row("model.visual.blocks.{b}.norm1.weight", "Hv", "norm"),
    Row("model.visual.blocks.{b}.norm1.bias", "Hv", "bias"),
    Row("model.visual.blocks.{b}.norm2.weight", "Hv", "norm"),
    Row("model.visual.blocks.{b}.norm2.bias", "Hv", "bias"),
    Row("model.visual.blocks.{b}.attn.qkv.weight", "3*Hv Hv"),
    Row("model.visual.blocks.{b}.attn.qkv.bias", "3*Hv", "bias"),
    Row("model.visual.blocks.{b}.attn.proj.weight", "Hv Hv"),
    Row("model.visual.blocks.{b}.attn.proj.bias", "Hv", "bias"),
    Row("model.visual.blocks.{b}.mlp.linear_fc1.weight", "Iv Hv"),
    Row("model.visual.blocks.{b}.mlp.linear_fc1.bias", "Iv", "bias"),
    Row("model.visual.blocks.{b}.mlp.linear_fc2.weight", "Hv Iv"),
    Row("model.visual.blocks.{b}.mlp.linear_fc2.bias", "Hv", "bias"),
    Row("model.visual.merger.norm.weight", "Hv", "norm"),
    Row("model.visual.merger.norm.bias", "Hv", "bias"),
    Row("model.visual.merger.linear_fc1.weight", "4*Hv 4*Hv"),
    Row("model.visual.merger.linear_fc1.bias", "4*Hv", "bias"),
    Row("model.visual.merger.linear_fc2.weight", "H 4*Hv"),
    Row("model.visual.merger.linear_fc2.bias", "H", "bias"),
)

_TEXT = "model.language_model"
_DELTA = _TEXT + ".layers.{l}.linear_attn"
_MOE = _TEXT + ".layers.{i}.mlp"

GATED_DELTA_NET = (
    Row(f"{_DELTA}.in_proj_qkv.weight", "2*lk*lkd+lv*lvd H", grid=f"{_DELTA}.in_proj_qkvz"),
    Row(f"{_DELTA}.in_proj_z.weight", "lv*lvd H", grid=f"{_DELTA}.in_proj_qkvz"),
    Row(f"{_DELTA}.in_proj_b.weight", "lv H"),
    Row(f"{_DELTA}.in_proj_a.weight", "lv H"),
    Row(f"{_DELTA}.conv1d.weight", "2*lk*lkd+lv*lvd 1 4", "convolution"),
    Row(f"{_DELTA}.A_log", "lv", "decay", dtype="F32"),
    Row(f"{_DELTA}.dt_bias", "lv", "decay"),
    Row(f"{_DELTA}.norm.weight", "lvd", "norm", dtype="F32"),
    Row(f"{_DELTA}.out_proj.weight", "H lv*lvd", grid=f"{_DELTA}.out_proj"),
)

TARGET = (
    Row(f"{_TEXT}.embed_tokens.weight", "V H", "embedding"),
    Row(f"{_TEXT}.norm.weight", "H", "centred norm"),
    Row("lm_head.weight", "V H", "embedding"),
)

_QWEN3_5_MOE = (
    *VISION,
    *TARGET,
    *GATED_DELTA_NET,
    *attention(_TEXT + ".layers.{f}.self_attn", grid=True, query="2*nh*hd"),
    *_layer_norms(_TEXT + ".layers.{i}"),
    Row(f"{_MOE}.gate.weight", "E H"),
    *mlp(f"{_MOE}.shared_expert", "Is"),
    Row(f"{_MOE}.shared_expert_gate.weight", "1 H"),
)

QWEN3_5_MOE = (
    *_QWEN3_5_MOE,
    Row(f"{_MOE}.experts.gate_up_proj", "E 2*Ie H"),
    Row(f"{_MOE}.experts.down_proj", "E H Ie"),
)

QWEN3_5_MOE_UNFUSED = (*_QWEN3_5_MOE, *mlp(_MOE + ".experts.{e}", "Ie"))


def expand(
    rows: Sequence[Row], sizes: Mapping[str, int], ranges: Mapping[str, Sequence[int]], dtype: str
) -> Iterator[DemoTensor]:
    """All tensors of ``rows``; ``sizes`` gives the symbols of shapes, ``ranges`` those of names."""
    for row in rows:
        shape = tuple(_sum(word, sizes) for word in row.shape.split())
        keys = [field for _, field, _, _ in Formatter().parse(row.name) if field]
        for picked in product(*(ranges[key] for key in keys)):
            place = dict(zip(keys, picked, strict=True))
            spec = TensorSpec(row.name.format(**place), row.dtype or dtype, shape)
            yield DemoTensor(spec, row.role, row.grid and row.grid.format(**place))


def _sum(word: str, sizes: Mapping[str, int]) -> int:
    return sum(
        prod(int(part) if part.isdigit() else sizes[part] for part in term.split("*")) for term in word.split("+")
    )
