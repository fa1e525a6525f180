"""From hidden states to tokens: the head and its scaling, DFlash 2's selector, DSpark's Markov head."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from convertkit.forward.layers import Drafters
from convertkit.forward.streams import REFERENCE, Energy

Tensor = torch.Tensor
SELECTOR = "candidate_selector"


def logits_of(it: Drafters, hidden: Tensor, latents: Tensor | None = None) -> Iterator[tuple[int, Tensor]]:
    """Logits of slots a range of the draft vocabulary at a time: ``hidden`` [streams, n, hidden], each tile
    [streams, n, tokens]. ``latents`` [streams, n, rank] are the Markov head's."""
    multipliers = torch.tensor([spec.output_multiplier for spec in it.specs], dtype=hidden.dtype, device=hidden.device)
    for first, tile in it.streams.products("lm_head", hidden):
        tile = tile * multipliers.view(-1, 1, 1)
        for stream, spec in enumerate(it.specs):
            if spec.softcap:
                tile[stream] = torch.tanh(tile[stream] / spec.softcap) * spec.softcap
        if latents is not None:
            tile = tile + _markov_bias(it, latents, first, tile.shape[-1])
        yield first, tile


def _markov_bias(it: Drafters, latents: Tensor, first: int, count: int) -> Tensor:
    """The Markov head's part of a range of logits [streams, n, tokens]."""
    name = "markov_head.markov_w2"
    weights = [holder.tile(f"{name}.weight", first, count) for holder in it.streams.holders]
    if it.streams.compared:
        mine, yours = (latents[REFERENCE] @ weight.T for weight in weights)
        it.streams.modules.setdefault(name, Energy()).add(mine, yours)
    return torch.stack([latents[stream] @ weights[source].T for stream, source in enumerate(it.streams.of)])


def selector_scores(it: Drafters, hidden: Tensor, previous: Tensor, candidates: Tensor, unary: Tensor) -> Tensor:
    """Scores of DFlash 2's candidates [streams, n, k]: their logits plus what follows from the token before.

    ``hidden`` [streams, n, hidden], ``previous`` I64 [streams, n], ``candidates`` I64 and ``unary`` [streams, n, k].
    """
    projected = it.streams.linear(f"{SELECTOR}.hidden_projection", it.streams.probed(hidden))
    context = it.streams.rows(f"{SELECTOR}.predecessor_codebook", previous) * projected
    successors = it.streams.rows(f"{SELECTOR}.successor_codebook", candidates)
    return unary + torch.einsum("snr,snkr->snk", context, successors)


def markov_latents(it: Drafters, hidden: Tensor, previous: Tensor) -> Tensor | None:
    """What DSpark's Markov head multiplies into logits [streams, anchors, block, rank]; None without such a head.

    ``previous`` I64 [streams, anchors, block] are the tokens before each position (speculators 0.9.0
    ``models/dspark/model_definitions.py:42-80``).
    """
    if not it.spec.markov_rank:
        return None
    rank = it.spec.markov_rank
    hidden = it.streams.probed(hidden)
    embedded = it.streams.rows("markov_head.markov_w1.weight", previous)
    if it.spec.markov_head == "gated":
        gate = it.streams.linear("markov_head.gate_proj", torch.cat([hidden, embedded], -1))
        return torch.sigmoid(gate) * embedded
    if it.spec.markov_head != "rnn":
        return embedded
    state = torch.zeros_like(embedded[:, :, 0])
    made = []
    for place in range(embedded.shape[2]):
        joint = torch.cat([state, embedded[:, :, place], hidden[:, :, place]], -1)
        made_of = it.streams.linear("markov_head.joint_proj", joint)
        gate, candidate, out = (made_of[..., part * rank : (part + 1) * rank] for part in range(3))
        state = torch.sigmoid(gate) * state + (1.0 - torch.sigmoid(gate)) * torch.tanh(candidate)
        made.append(torch.tanh(out))
    return torch.stack(made, 2)
