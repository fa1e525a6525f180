"""What a search for an NVFP4 grid finds; apart from the search, which loads compiled kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from convertkit.grids.nvfp4.numbers import Sense


@dataclass(frozen=True, slots=True)
class Found:
    """One grid: stored FP32 bits of its global scale, their sense, how many non-zero blocks lie on it, and by whose
    steps its planes expand to the weights: ``exact``, or those of a package (as ``decode_table``)."""

    global_bits: int
    sense: Sense
    blocks: int
    arithmetic: str = "exact"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``grid``: every block lies on ``found[0]``. ``part``: some do. ``several``: every block lies on one of two.
    ``none``: see ``reason``.

    ``blocks`` counts those that are not all zero (0 where the search ended before counting).
    """

    status: Literal["grid", "part", "several", "none"]
    amax_bits: int
    reason: str
    blocks: int = 0
    found: tuple[Found, ...] = ()
