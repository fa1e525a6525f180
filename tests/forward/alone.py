"""One drafter's pass alone, in any dtype: what tests compare with the real classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from convertkit.checks.gate import weights_of
from convertkit.containers.folder import open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.conversion.desk import Desk
from convertkit.conversion.stop import Stop
from convertkit.conversion.tiles import Buffers
from convertkit.forward.holder import Holder, places_of
from convertkit.forward.inputs import Inputs
from convertkit.forward.layers import Drafters, Windows
from convertkit.forward.specs import spec_of
from convertkit.forward.streams import Streams
from convertkit.progress import SILENT

Tensor = torch.Tensor


def drafter_alone(folder: Path, dtype: torch.dtype = torch.float32, windows: Windows = "query") -> Drafters:
    """A drafter as the only stream; its embedding and head must lie in the folder if they are used."""
    checkpoint = open_checkpoint(folder)
    desk = Desk(Reader(checkpoint), Stop(), SILENT, Buffers())
    spec = spec_of(checkpoint, "reference", 12)
    holder = Holder(spec, places_of(desk, weights_of(checkpoint)), dtype)
    return Drafters(Streams((holder,), (0,)), (spec,), windows)


def inputs_at(anchors: list[int], tokens: Tensor, slots: int, sequences: Tensor | None = None) -> Inputs:
    """Inputs without hidden states, which the caller passes on as features."""
    count = tokens.numel()
    same = torch.zeros(count, dtype=torch.int64) if sequences is None else sequences
    return Inputs(
        tokens, torch.arange(count), same, torch.ones(count, dtype=torch.bool), torch.tensor(anchors),
        tuple(range(1, slots + 1)), {},
    )  # fmt: skip


def apart(one: Any, other: Any) -> float:
    """The largest difference, in units of the largest value."""
    return float((one - other).abs().max() / one.abs().max())
