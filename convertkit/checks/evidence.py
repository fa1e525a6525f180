"""What the checks found out about single tensors and linears: details that reports are made from."""

from __future__ import annotations

from dataclasses import dataclass

from convertkit.checks.expand import ExpandTally
from convertkit.checks.fidelity import Tally
from convertkit.checks.pack import PackTally


@dataclass(frozen=True)
class PackedEvidence:
    """One packed linear: its tally and the stored FP32 bits of its global scale.

    ``baseline`` is what plain amax would have lost, where scales were chosen otherwise. ``differing`` elements in
    ``differing_blocks`` do not expand to the bits of a source that lies on a grid; None for other sources.
    """

    module: str
    tally: PackTally
    global_bits: int
    baseline: Tally | None = None
    differing: int | None = None
    differing_blocks: int | None = None


@dataclass(frozen=True)
class ExpandedEvidence:
    """One expanded linear."""

    module: str
    tally: ExpandTally


@dataclass(frozen=True)
class RespelledEvidence:
    """One re-spelled linear: stored bits of its global scale before and after, and how many of its BF16 values
    (exact product rounded once) that changes."""

    module: str
    before_bits: int
    after_bits: int
    changed_values: int


@dataclass(frozen=True)
class RecodedEvidence:
    """One written tensor: its type and how far its values are from those of its source."""

    name: str
    dtype: str
    tally: Tally
