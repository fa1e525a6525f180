"""The pass of EAGLE-3: one token after the other, each step attending to the context and to the steps before it.

The first step runs over the whole context, whose keys later steps need; the others only at the anchors. Recorded
tokens are fed back, as when every proposal was accepted (speculators 0.9.0 ``models/eagle3/core.py:188-330``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from convertkit.drafter import LayerAttention
from convertkit.forward.arithmetic import attend
from convertkit.forward.dflash import EMBEDDING
from convertkit.forward.inputs import Inputs
from convertkit.forward.layers import Drafters, mlp, over_heads, projected, window_rule
from convertkit.forward.rope import turned

Tensor = torch.Tensor


@dataclass
class Memory:
    """Keys and values of one layer: of the context [streams, 1, heads, n, d], and of the later steps per anchor."""

    far: tuple[Tensor, Tensor] | None = None
    near: list[tuple[Tensor, Tensor]] = field(default_factory=list)


def run_eagle3(it: Drafters, inputs: Inputs, features: Tensor) -> Tensor:
    """Normed hidden states of every proposal [streams, anchors, slots, hidden].

    ``features`` [streams, n, taps * width]. Row i of the context joins the features of position i with token i + 1.
    """
    memories = [Memory() for _ in range(it.spec.layers or 0)]
    x = fused(it, features)[:, None, :-1]
    rows = (inputs.anchors - 1)[:, None]
    every = torch.arange(inputs.tokens.numel() - 1, device=x.device)[None]
    made = []
    for step in range(len(inputs.slots)):
        where = every if step == 0 else rows
        x = _step(it, inputs, x, where, step, memories)
        if step == 0:
            x = x[:, 0, rows]
        normed = it.norm(it.streams.probed(x), "norm")
        made.append(normed)
        x = normed if it.spec.norm_output else x
    return torch.cat(made, 2)


def fused(it: Drafters, features: Tensor) -> Tensor:
    """Features of all taps [streams, n, taps * width] as one state [streams, n, hidden]."""
    x = it.streams.probed(features)
    if it.spec.norm_before_fc:
        x = it.norm(x, "input_norm")
    if it.spec.fc_norm:
        parts = x.chunk(len(it.spec.taps or ()), -1)
        x = torch.cat([it.norm(part, f"fc_norm.{number}") for number, part in enumerate(parts)], -1)
    x = it.streams.linear("fc", x)
    it.streams.note_layer("fusion", torch.zeros_like(x), x)
    return x


def _step(it: Drafters, inputs: Inputs, x: Tensor, rows: Tensor, step: int, memories: list[Memory]) -> Tensor:
    """One draft step of all layers at context ``rows`` [anchors, n]; ``x`` [streams, anchors, n, hidden]."""
    ids = inputs.tokens[rows + 1 + step].expand(len(it.specs), *rows.shape)
    embeddings = it.streams.rows(EMBEDDING, ids)
    ropes = it.ropes(inputs.positions[rows] + 1 + step, x.dtype)
    for index, memory in enumerate(memories):
        at = f"layers.{index}"
        before = it.streams.probed(x)
        seen = it.visible(index, lambda layer: _seen(it, inputs, layer, rows, step))
        residual = before
        if index == 0:
            hidden = it.norm(before, f"{at}.hidden_norm")
            residual = hidden if it.spec.norm_before_residual else before
            inside = torch.cat([it.norm(embeddings, f"{at}.input_layernorm"), hidden], -1)
        else:
            inside = it.norm(before, f"{at}.input_layernorm")
        x = residual + _attention(it, at, inside, ropes, seen, memory)
        x = x + mlp(it, at, it.norm(x, f"{at}.post_attention_layernorm"))
        it.streams.note_layer(at, before, x)
    return x


def _attention(it: Drafters, at: str, x: Tensor, ropes: tuple[Tensor, Tensor], seen: Tensor, memory: Memory) -> Tensor:
    query, key, value = projected(it, at, x, "qkv")
    query, key = turned(query, over_heads(ropes)), turned(key, over_heads(ropes))
    if memory.far is None:
        memory.far = (key, value)
        keys, values = key, value
    else:
        memory.near.append((key, value))
        anchors = key.shape[1]
        keys, values = (
            torch.cat([memory.far[part].expand(-1, anchors, -1, -1, -1), *(near[part] for near in memory.near)], -2)
            for part in (0, 1)
        )
    return it.streams.linear(f"{at}.self_attn.o_proj", attend(query, keys, values, seen))


def _seen(it: Drafters, inputs: Inputs, layer: LayerAttention, rows: Tensor, step: int) -> Tensor:
    """Truth values [anchors, n, context + steps]: the context up to the row, and the row's own steps."""
    places = torch.arange(inputs.tokens.numel() - 1, device=rows.device)
    start = inputs.positions[rows][..., None]
    key = inputs.positions[places]
    # speculators counts its window from the row whatever the step, and the row's own place belongs to it
    query = start + step if it.windows == "query" else start
    far = window_rule(layer, query, start, key, "query")
    far = far & (places <= rows[..., None]) & (inputs.sequences[places] == inputs.sequences[rows][..., None])
    near = torch.ones(*rows.shape, step, dtype=torch.bool, device=rows.device)
    if step:
        far = far | (places == rows[..., None])
    return torch.cat([far, near], -1)
