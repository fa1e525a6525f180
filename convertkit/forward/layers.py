"""A draft layer, and who sees whom in it.

Formulas are those of z-lab dflash 0.1.0 (``model.py:330-520``) and speculators 0.9.0 (``models/dflash``,
``models/dflash2``, ``models/eagle3``); tests compare with these classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from convertkit.drafter import DrafterSpec, LayerAttention
from convertkit.forward.arithmetic import ACTIVATIONS, attend, convolve, heads_of, rms_norm
from convertkit.forward.rope import Table, rope_table, turned
from convertkit.forward.streams import Streams

Tensor = torch.Tensor

Windows = Literal["query", "anchor"]
"""From where a window counts: from each query, as z-lab's class and the engines do, or from the anchor for the whole
block, as speculators trains. They differ by at most a block's length of context."""


@dataclass(frozen=True)
class Drafters:
    """Streams, and the spec that each of them follows. Sizes are the same for all; attention, rope, mask token and
    output scaling are each stream's own."""

    streams: Streams
    specs: tuple[DrafterSpec, ...]
    windows: Windows = "query"

    @property
    def spec(self) -> DrafterSpec:
        return self.specs[0]

    @property
    def eps(self) -> float:
        return float(self.spec.eps or 1e-6)

    @property
    def head_dim(self) -> int:
        assert self.spec.head_dim is not None
        return self.spec.head_dim

    def norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self.streams.vector(f"{name}.weight"), self.eps)

    def ropes(self, positions: Tensor, dtype: torch.dtype) -> Table:
        """Tables [streams, ..., n, head_dim] for positions [..., n]."""
        tables = [rope_table(spec.rope, self.head_dim, positions, dtype) for spec in self.specs if spec.rope]
        return torch.stack([cos for cos, _ in tables]), torch.stack([sin for _, sin in tables])

    def visible(self, layer: int, rule: Callable[[LayerAttention], Tensor]) -> Tensor:
        """Truth values [streams, ...] of one layer."""
        return torch.stack([rule(spec.attention[layer]) for spec in self.specs])


def window_rule(layer: LayerAttention, query: Tensor, anchor: Tensor, key: Tensor, windows: Windows) -> Tensor:
    """Whether queries at positions ``query`` see context at positions ``key`` as far as the window goes."""
    if layer.window is None:
        return query - key == query - key
    if windows == "query":
        return query - key < layer.window
    return key - anchor + 0 * query >= -layer.window


def block_rule(layer: LayerAttention, size: int, windows: Windows, device: torch.device) -> Tensor:
    """Who sees whom inside a block of ``size``, truth values [size, size]."""
    place = torch.arange(size, device=device)
    ahead = place[None, :] - place[:, None]
    seen = ahead <= 0 if layer.causal else torch.ones_like(ahead, dtype=torch.bool)
    if layer.window is not None and windows == "query":
        seen = seen & (ahead.abs() < layer.window)
    return seen


def projected(it: Drafters, at: str, x: Tensor, names: Sequence[str]) -> list[Tensor]:
    """Projections ``names`` of ``x`` [streams, ..., n, in] as heads [streams, ..., heads, n, head_dim], normed where
    the layer has head norms."""
    made = []
    for name in names:
        heads = heads_of(it.streams.linear(f"{at}.self_attn.{name}_proj", x), it.head_dim)
        has_norm = name != "v" and it.streams.has(f"{at}.self_attn.{name}_norm.weight")
        made.append(it.norm(heads, f"{at}.self_attn.{name}_norm") if has_norm else heads)
    return made


def mlp(it: Drafters, at: str, x: Tensor) -> Tensor:
    """The gated MLP called ``at``; ``x`` [..., hidden]."""
    gate = ACTIVATIONS[it.spec.activation or "silu"](it.streams.linear(f"{at}.mlp.gate_proj", x))
    return it.streams.linear(f"{at}.mlp.down_proj", gate * it.streams.linear(f"{at}.mlp.up_proj", x))


def around(it: Drafters, at: str, x: Tensor, inner: Callable[[Tensor], Tensor]) -> Tensor:
    """``inner`` between the two dynamic convolutions of DFlash 2 called ``at``; ``inner`` alone without them."""
    if not it.streams.has(f"{at}.base_kernel"):
        return inner(x)
    group = it.spec.conv_group
    assert group is not None
    base = it.streams.vector(f"{at}.base_kernel").to(x.dtype)
    kernels = it.streams.linear(f"{at}.kernel_projection", x).view(*x.shape[:-1], 2, base.shape[2], -1)
    inside = inner(convolve(x, kernels[..., 0, :, :], base[:, 0], group))
    return convolve(inside, kernels[..., 1, :, :], base[:, 1], group)


def block_layer(
    it: Drafters, index: int, x: Tensor, context: Tensor, ropes: tuple[Table, Table], seen: Tensor
) -> Tensor:
    """One DFlash layer: the block ``x`` [streams, anchors, block, hidden] attends to the context [streams, n, hidden]
    and to itself. ``ropes`` are those of context and block, ``seen`` [streams, anchors, block, n + block]."""
    at = f"layers.{index}"
    streams, anchors, size, width = x.shape

    def attention(inside: Tensor) -> Tensor:
        rows = torch.cat([context, inside.reshape(streams, anchors * size, width)], 1)
        query = turned(projected(it, at, inside, "q")[0], over_heads(ropes[1]))
        key, value = projected(it, at, rows, "kv")
        far = context.shape[1]
        near_key, near_value = (_blocks(part[:, :, far:], anchors) for part in (key, value))
        far_key = turned(key[:, :, :far], over_heads(ropes[0]))
        near_key = turned(near_key, over_heads(ropes[1]))
        keys, values = _joined(far_key, near_key), _joined(value[:, :, :far], near_value)
        return it.streams.linear(f"{at}.self_attn.o_proj", attend(query, keys, values, seen))

    x = x + around(it, f"{at}.attention_conv", it.norm(x, f"{at}.input_layernorm"), attention)
    inside = it.norm(x, f"{at}.post_attention_layernorm")
    return x + around(it, f"{at}.mlp_conv", inside, lambda y: mlp(it, at, y))


def over_heads(table: Table) -> Table:
    """Tables [streams, ..., n, d] with a dimension for heads."""
    return table[0].unsqueeze(-3), table[1].unsqueeze(-3)


def _blocks(part: Tensor, anchors: int) -> Tensor:
    """[streams, heads, anchors * n, d] as [streams, anchors, heads, n, d]."""
    streams, heads, _, width = part.shape
    return part.view(streams, heads, anchors, -1, width).transpose(1, 2)


def _joined(far: Tensor, near: Tensor) -> Tensor:
    """Context [streams, heads, n, d] before each block [streams, anchors, heads, m, d]."""
    return torch.cat([far[:, None].expand(-1, near.shape[1], -1, -1, -1), near], -2)
