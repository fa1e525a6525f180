"""Two drafters at work: what they propose for the same text, and by how much each part of them differs.

Sums are FP64 on torch. The order in which a library adds is not fixed, but it moves results by 1e-12 at most, and
reports keep ``DIGITS`` digits: the same files give the same report for any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from convertkit.forward.dflash import run_dflash
from convertkit.forward.eagle3 import run_eagle3
from convertkit.forward.heads import logits_of, markov_latents, selector_scores
from convertkit.forward.inputs import Inputs
from convertkit.forward.layers import Drafters
from convertkit.forward.streams import CANDIDATE, REFERENCE

Tensor = torch.Tensor

DIGITS = 6
"""Significant digits of what a report states about a pass."""

TOP = 10
"""Tokens of ``topk_agreement``."""


@dataclass(frozen=True)
class Slots:
    """What both drafters say about each proposal. All [slots] unless stated; slots count anchor by anchor.

    ``kl`` nats of KL(reference, candidate) over the draft vocabulary. ``cosine`` of the logits, each less its mean.
    ``first`` I64 [2, slots] is the token that each would propose, ``top`` I64 [2, slots, k] the most likely ones by
    logits, as ids of the target; ``chance`` [2, slots] is the probability of the calibration's token.
    """

    anchors: int
    kl: Tensor
    cosine: Tensor
    first: Tensor
    top: Tensor
    chance: Tensor
    tokens: Tensor
    recorded: Tensor


def hidden_of(it: Drafters, inputs: Inputs, features: Tensor) -> tuple[Tensor, Tensor | None]:
    """Hidden states of the proposals [streams, anchors * slots, hidden], and the Markov head's latents likewise."""
    if it.spec.algorithm == "eagle3":
        return run_eagle3(it, inputs, features).flatten(1, 2), None
    hidden = run_dflash(it, inputs, features)
    latents = None
    first = 0 if it.spec.sample_from_anchor else 1
    if it.spec.algorithm == "dspark":
        before = torch.arange(hidden.shape[2], device=hidden.device) - (1 - (1 if it.spec.sample_from_anchor else 0))
        previous = inputs.tokens[inputs.anchors[:, None] + before.clamp(min=0)]
        latents = markov_latents(it, hidden, previous.expand(len(it.specs), -1, -1))
        if it.spec.confidence_head:
            _confidence(it, hidden, previous)
        latents = None if latents is None else latents[:, :, first:].flatten(1, 2)
    return hidden[:, :, first:].flatten(1, 2), latents


def _confidence(it: Drafters, hidden: Tensor, previous: Tensor) -> None:
    """The confidence head proposes nothing; it runs so that its error is known."""
    parts = [it.streams.probed(hidden)]
    if it.spec.confidence_with_markov and it.spec.markov_rank:
        parts.append(it.streams.rows("markov_head.markov_w1.weight", previous.expand(len(it.specs), -1, -1)))
    it.streams.linear("confidence_head.proj", torch.cat(parts, -1))


def compared_slots(it: Drafters, inputs: Inputs, features: Tensor, ids: Tensor) -> Slots:
    """Run both drafters. ``ids`` I64 [2, draft vocabulary] are the target's ids of each one's draft tokens."""
    hidden, latents = hidden_of(it, inputs, features)
    tokens = inputs.tokens[inputs.proposed].flatten()
    seen = _Scan(tokens, ids, max(TOP, it.spec.selector_top_k or 0))
    for first, tile in logits_of(it, it.streams.probed(hidden), latents):
        seen.add(first, tile[: CANDIDATE + 1])
    values, places = seen.top
    best = torch.stack([ids[side][places[side]] for side in (REFERENCE, CANDIDATE)])
    first_choice, chance = best[..., 0], seen.chance()
    if it.spec.algorithm == "dflash2":
        first_choice, chance = _selected(it, inputs, hidden, (values, places), tokens)
    proposed = inputs.recorded[inputs.proposed].flatten()
    return Slots(
        inputs.anchors.numel(), seen.kl(), seen.cosine(), first_choice, best[..., :TOP], chance, tokens, proposed
    )  # fmt: skip


def _selected(
    it: Drafters, inputs: Inputs, hidden: Tensor, top: tuple[Tensor, Tensor], tokens: Tensor
) -> tuple[Tensor, Tensor]:
    """DFlash 2: what the selector takes, and its probability of the calibration's token; the token before is the
    calibration's."""
    count = it.spec.selector_top_k or 1
    which = [REFERENCE, CANDIDATE, CANDIDATE][: len(it.specs)]
    unary, candidates = (part[which][..., :count] for part in top)
    previous = inputs.tokens[inputs.proposed - 1].flatten().expand(len(it.specs), -1)
    scores = selector_scores(it, hidden, previous, candidates, unary)[: CANDIDATE + 1]
    candidates = candidates[: CANDIDATE + 1]
    first = candidates.gather(-1, _ranked(scores).argmax(-1, keepdim=True))[..., 0]
    held = (candidates == tokens[:, None]).to(scores.dtype)
    return first, (scores.softmax(-1) * held).sum(-1)


def _ranked(values: Tensor) -> Tensor:
    """The values with what is no number behind all others: devices differ in where they would sort it."""
    return values.masked_fill(values.isnan(), float("-inf"))


def _largest(values: Tensor, count: int) -> Tensor:
    """Places of the ``count`` largest values, the largest first and of equal ones the first: the same on every device,
    which ``topk`` does not promise."""
    ranked = _ranked(values)
    last = ranked.topk(count, -1).values[..., -1:]
    above, equal = ranked > last, ranked == last
    taken = above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))
    places = taken.nonzero()[:, -1].view(*values.shape[:-1], count)
    order = ranked.gather(-1, places).sort(stable=True, dim=-1, descending=True).indices
    return places.gather(-1, order)


class _Scan:
    """Statistics over logits that come a range of tokens at a time [2, slots, tokens]."""

    def __init__(self, tokens: Tensor, ids: Tensor, count: int) -> None:
        self.tokens, self.ids, self.count = tokens, ids, count
        self.size = 0
        self.top: Any = None
        self.peak: Any = None
        self.mass: Any = 0.0
        self.gap: Any = 0.0
        self.sums: Any = 0.0
        self.squares: Any = 0.0
        self.products: Any = 0.0
        self.hit: Any = float("-inf")

    def add(self, first: int, tile: Tensor) -> None:
        count = tile.shape[-1]
        places = torch.arange(first, first + count, device=tile.device).expand(tile.shape)
        held = (tile, places) if self.top is None else tuple(
            torch.cat(pair, -1) for pair in zip(self.top, (tile, places), strict=True)
        )  # fmt: skip
        index = _largest(held[0], min(self.count, held[0].shape[-1]))
        self.top = held[0].gather(-1, index), held[1].gather(-1, index)
        peak = tile.max(-1).values if self.peak is None else torch.maximum(self.peak, tile.max(-1).values)
        shrink = torch.zeros_like(peak) if self.peak is None else (self.peak - peak).exp()
        weights = (tile - peak[..., None]).exp()
        self.mass = self.mass * shrink + weights.sum(-1)
        self.gap = self.gap * shrink[0] + (weights[0] * (tile[0] - tile[1])).sum(-1)
        self.peak = peak
        self.size += count
        self.sums = self.sums + tile.sum(-1)
        self.squares = self.squares + tile.square().sum(-1)
        self.products = self.products + (tile[0] * tile[1]).sum(-1)
        named = self.ids[:, None, first : first + count] == self.tokens[None, :, None]
        hit = tile.masked_fill(~named, float("-inf")).max(-1).values
        self.hit = hit if isinstance(self.hit, float) else torch.maximum(self.hit, hit)

    @property
    def masses(self) -> Tensor:
        """Logarithms of the sums of exponentials [2, slots]."""
        made: Tensor = self.peak + self.mass.log()
        return made

    def kl(self) -> Tensor:
        """Never below zero but for rounding, which is cut off."""
        masses = self.masses
        made: Tensor = (self.gap / self.mass[0] - masses[0] + masses[1]).clamp(min=0.0)
        return made

    def cosine(self) -> Tensor:
        spread = self.squares - self.sums.square() / self.size
        product = self.products - self.sums[0] * self.sums[1] / self.size
        made: Tensor = product / (spread[0] * spread[1]).sqrt()
        return made

    def chance(self) -> Tensor:
        made: Tensor = (self.hit - self.masses).exp()
        return made


def output_metrics(slots: Slots, recorded: bool) -> dict[str, Any]:
    """Metrics of all proposals together. Those about accept length are None without recorded tokens."""
    agree = slots.first[REFERENCE] == slots.first[CANDIDATE]
    shared = (slots.top[REFERENCE][:, :, None] == slots.top[CANDIDATE][:, None, :]).any(-1).double().mean(-1)
    finite = torch.isfinite(slots.kl) & torch.isfinite(slots.cosine)
    made: dict[str, Any] = {
        "slots": slots.kl.numel(),
        "anchors": slots.anchors,
        "nonfinite": int((~finite).sum()),
        "kl": rounded(slots.kl.mean()),
        "max_kl": rounded(slots.kl.max()),
        "cosine": rounded(slots.cosine.mean()),
        "top1_agreement": rounded(agree.double().mean()),
        "topk": slots.top.shape[-1],
        "topk_agreement": rounded(shared.mean()),
        "agreed_length": rounded(_leading(agree.double(), slots.anchors)),
    }
    return made | _accepted(slots, recorded)


def _leading(chances: Tensor, anchors: int) -> Tensor:
    """Mean over anchors of the expected number of leading proposals that are taken, given the chance of each."""
    return chances.view(anchors, -1).cumprod(-1).sum(-1).mean()


def _accepted(slots: Slots, recorded: bool) -> dict[str, Any]:
    """Accept lengths of both sides; the token that the target adds itself counts."""
    if not recorded:
        return {"accept_length": None, "expected_accept_length": None, "accept_drop": None}
    known = slots.recorded.double()
    taken = (slots.first == slots.tokens).double() * known
    greedy = [1.0 + float(_leading(taken[side], slots.anchors)) for side in (REFERENCE, CANDIDATE)]
    sampled = [1.0 + float(_leading(slots.chance[side] * known, slots.anchors)) for side in (REFERENCE, CANDIDATE)]
    drop = max(1.0 - pair[1] / pair[0] for pair in (greedy, sampled))
    return {
        "accept_length": {"reference": rounded(greedy[0]), "candidate": rounded(greedy[1])},
        "expected_accept_length": {"reference": rounded(sampled[0]), "candidate": rounded(sampled[1])},
        "accept_drop": rounded(drop),
    }


def rounded(value: Tensor | float | None) -> float | None:
    """A number with ``DIGITS`` significant digits, 0 for what is no more than rounding (1e-9); None if not finite."""
    if value is None:
        return None
    number = float(value)
    if not abs(number) < float("inf"):
        return None
    return 0.0 if abs(number) < 1e-9 else float(f"{number:.{DIGITS}g}")
