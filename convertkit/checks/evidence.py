"""What the checks of GGUF tensors found."""

from __future__ import annotations

from dataclasses import dataclass

from convertkit.checks.fidelity import Tally


@dataclass(frozen=True)
class RecodedEvidence:
    """One written tensor: its type and how far its values are from those of its source."""

    name: str
    dtype: str
    tally: Tally
