"""The pass of DFlash, DFlash 2 and the backbone of DSpark: from hidden states of the target to those of the block."""

from __future__ import annotations

import torch

from convertkit.drafter import LayerAttention
from convertkit.forward.inputs import Inputs
from convertkit.forward.layers import Drafters, block_layer, block_rule, window_rule

Tensor = torch.Tensor
EMBEDDING = "embed_tokens.weight"


def run_dflash(it: Drafters, inputs: Inputs, features: Tensor) -> Tensor:
    """Final hidden states of every block [streams, anchors, block, hidden], the anchor's included.

    ``features`` [streams, n, taps * width] are each stream's own.
    """
    context = it.norm(it.streams.linear("fc", it.streams.probed(features)), "hidden_norm")
    it.streams.note_layer("fusion", torch.zeros_like(context), context)
    context = it.streams.probed(context)
    x = _embedded_blocks(it, inputs)
    size = x.shape[2]
    positions = inputs.positions[inputs.anchors][:, None] + torch.arange(size, device=x.device)
    ropes = it.ropes(inputs.positions, x.dtype), it.ropes(positions, x.dtype)
    for index in range(it.spec.layers or 0):
        seen = it.visible(index, lambda layer: _seen(it, inputs, layer, size))
        before = it.streams.probed(x)
        x = block_layer(it, index, before, context, ropes, seen)
        it.streams.note_layer(f"layers.{index}", before, x)
    return it.norm(it.streams.probed(x), "norm")


def _embedded_blocks(it: Drafters, inputs: Inputs) -> Tensor:
    """Embeddings of the blocks [streams, anchors, block, hidden]: the known token, then mask tokens."""
    size = it.spec.block_size
    assert size is not None
    masks = [spec.mask_token for spec in it.specs]
    ids = torch.empty(len(it.specs), inputs.anchors.numel(), size, dtype=torch.int64, device=inputs.tokens.device)
    for stream, mask in enumerate(masks):
        ids[stream] = int(mask or 0)
    ids[:, :, 0] = inputs.tokens[inputs.anchors]
    made = it.streams.rows(EMBEDDING, ids)
    for stream, source in enumerate(it.streams.of):
        trained = it.streams.holders[source].mask
        if trained is not None:
            made[stream][ids[stream] == masks[stream]] = trained.to(made)
    scales = torch.tensor([spec.embedding_scale for spec in it.specs], dtype=made.dtype, device=made.device)
    return made * scales.view(-1, 1, 1, 1)


def _seen(it: Drafters, inputs: Inputs, layer: LayerAttention, size: int) -> Tensor:
    """Truth values [anchors, block, n + block]: the context before the anchor, and the block itself."""
    positions, anchors = inputs.positions, inputs.anchors
    start = positions[anchors][:, None, None]
    query = start + torch.arange(size, device=positions.device)[:, None]
    far = window_rule(layer, query, start, positions, it.windows)
    before = torch.arange(positions.numel(), device=positions.device) < anchors[:, None]
    same = inputs.sequences[None, :] == inputs.sequences[anchors][:, None]
    far = far & (before & same)[:, None, :]
    near = block_rule(layer, size, it.windows, positions.device)
    return torch.cat([far, near.expand(anchors.numel(), -1, -1)], -1)
