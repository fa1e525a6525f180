"""What a pass starts from: hidden states of the target, tokens, and where drafting begins.

An *anchor* is a position whose token is known while the target's hidden states are known before it only: there a
drafter drafts. Its *slots* are the tokens that it proposes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from convertkit.drafter import DrafterSpec
from convertkit.errors import refusal
from convertkit.forward.calibration import Calibration

Tensor = torch.Tensor

ANCHORS = 16
"""Places at which drafting is tried, at most, spread evenly."""

EAGLE_STEPS = 3
"""Draft tokens of an EAGLE-3 that states none, as speculators writes it."""


@dataclass(frozen=True)
class Inputs:
    """``tokens``, ``positions``, ``sequences`` I64 [n] of the context; ``recorded`` truth values [n].

    ``anchors`` I64 [anchors] are indices into the context; ``slots`` is how far behind its anchor each proposed
    token lies. ``hidden`` float [n, width] by target layer.
    """

    tokens: Tensor
    positions: Tensor
    sequences: Tensor
    recorded: Tensor
    anchors: Tensor
    slots: tuple[int, ...]
    hidden: Mapping[int, Tensor]

    @property
    def proposed(self) -> Tensor:
        """Indices of the proposed tokens, I64 [anchors, slots]."""
        return self.anchors[:, None] + torch.tensor(self.slots, device=self.anchors.device)

    def features(self, taps: Sequence[int]) -> Tensor:
        """Hidden states of the tapped layers side by side [n, taps * width]."""
        return torch.cat([self.hidden[tap] for tap in taps], -1)


def slots_of(spec: DrafterSpec) -> tuple[int, ...]:
    """Distance behind the anchor of each token that a drafter proposes."""
    if spec.algorithm == "eagle3":
        return tuple(range(1, (spec.draft_tokens or EAGLE_STEPS) + 1))
    assert spec.block_size is not None
    return tuple(range(1, spec.block_size + (1 if spec.sample_from_anchor else 0)))


def inputs_of(
    calibration: Calibration, taps: Sequence[int], slots: tuple[int, ...], dtype: torch.dtype, device: str
) -> Inputs:
    """The pass's inputs. Raises E_CALIBRATION if no position leaves room for all slots in its sequence."""
    sequences, recorded = torch.tensor(calibration.sequences), torch.tensor(calibration.recorded)
    anchors = _anchors(sequences, recorded, slots[-1])
    used = _used(sequences, anchors, slots[-1])
    hidden = {tap: torch.tensor(calibration.hidden_of(tap)[used]).to(device, dtype) for tap in sorted(set(taps))}
    return Inputs(
        torch.tensor(calibration.tokens)[used].to(device),
        torch.tensor(calibration.positions)[used].to(device),
        sequences[used].to(device),
        recorded[used].to(device),
        torch.searchsorted(used, anchors).to(device),
        slots,
        hidden,
    )


def _used(sequences: Tensor, anchors: Tensor, reach: int) -> Tensor:
    """Indices that a pass needs: of sequences with an anchor, up to the last one's proposals."""
    places = torch.arange(sequences.numel())
    needed = torch.zeros_like(places, dtype=torch.bool)
    for anchor in anchors:
        needed |= (sequences == sequences[anchor]) & (places <= anchor + reach)
    return places[needed]


def _anchors(sequences: Tensor, recorded: Tensor, reach: int) -> Tensor:
    """Indices at which drafting is tried: those whose proposals are all recorded, if there are any such."""
    places = torch.arange(sequences.numel())
    inside = (places > 0) & (places + reach < sequences.numel())
    places = places[inside]
    places = places[(sequences[places - 1] == sequences[places]) & (sequences[places + reach] == sequences[places])]
    known = torch.stack([recorded[places + far] for far in range(1, reach + 1)]).all(0) if places.numel() else places
    places = places[known] if bool(known.any()) else places
    if not places.numel():
        message = f"no sequence has room for {reach} proposed tokens behind a known one"
        raise refusal("E_CALIBRATION", message, fix="record longer sequences")
    count = min(ANCHORS, places.numel())
    return places[torch.arange(1, count + 1) * places.numel() // count - 1]
