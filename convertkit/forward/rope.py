"""Rotary embedding: the frequencies of each kind, as transformers 5.19 (``modeling_rope_utils.py``) defines them.

Everything is computed in the dtype of the pass: in FP64 a report does not depend on the machine's FP32 cosine, in
FP32 the numbers are those of the real classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from convertkit.containers.folder import CONFIG
from convertkit.drafter import Rope
from convertkit.errors import refusal

Tensor = torch.Tensor
Table = tuple[Tensor, Tensor]
"""Cosines and sines [..., head_dim]."""


def rope_table(rope: Rope, head_dim: int, positions: Tensor, dtype: torch.dtype) -> Table:
    """Cosines and sines of positions (I64, any shape) in one dtype. Raises E_FORWARD for a kind that is not known."""
    fault = rope_fault(rope)
    if fault is not None:
        raise refusal("E_FORWARD", fault, file=CONFIG, key="rope_parameters")
    exponents = torch.arange(0, head_dim, 2, dtype=dtype, device=positions.device) / head_dim
    inverse, factor = KINDS[rope.kind](rope.theta**exponents, rope.theta, head_dim, dict(rope.numbers))
    angles = positions[..., None].to(dtype) * inverse
    angles = torch.cat([angles, angles], -1)
    return angles.cos() * factor, angles.sin() * factor


def rope_fault(rope: Rope) -> str | None:
    """Why this rotary embedding cannot be computed here, None if it can."""
    if rope.kind not in KINDS:
        return f"the rotary embedding '{rope.kind}' is not supported; supported are {', '.join(KINDS)}"
    if rope.fraction != 1.0 or not rope.neox:
        return "a rotary embedding of a part of each head, or of interleaved pairs, is not supported"
    missing = [name for name in NEEDED[rope.kind] if name not in dict(rope.numbers)]
    return f"the rotary embedding '{rope.kind}' states no {', '.join(missing)}" if missing else None


def turned(x: Tensor, table: Table) -> Tensor:
    """Heads ``x`` [..., head_dim] turned by a table that broadcasts against them; halves are paired."""
    cos, sin = table
    half = x.shape[-1] // 2
    return (x * cos) + (torch.cat([-x[..., half:], x[..., :half]], -1) * sin)


Numbers = Mapping[str, Any]
Kind = Callable[[Tensor, float, int, Numbers], tuple[Tensor, float]]


def _default(periods: Tensor, theta: float, dim: int, numbers: Numbers) -> tuple[Tensor, float]:
    return 1.0 / periods, 1.0


def _linear(periods: Tensor, theta: float, dim: int, numbers: Numbers) -> tuple[Tensor, float]:
    return 1.0 / periods / numbers["factor"], 1.0


def _yarn(periods: Tensor, theta: float, dim: int, numbers: Numbers) -> tuple[Tensor, float]:
    """Fast dimensions as trained, slow ones stretched by ``factor``, a ramp between (YaRN, arXiv 2309.00071)."""
    factor, trained = numbers["factor"], numbers["original_max_position_embeddings"]

    def dimension(rotations: float) -> float:
        return dim * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(numbers.get("beta_fast") or 32), dimension(numbers.get("beta_slow") or 1)
    if numbers.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high += 0.001 if low == high else 0.0
    steps = torch.arange(dim // 2, dtype=periods.dtype, device=periods.device)
    kept = 1 - torch.clamp((steps - low) / (high - low), 0, 1)
    return 1.0 / (factor * periods) * (1 - kept) + 1.0 / periods * kept, _yarn_factor(numbers)


def _yarn_factor(numbers: Numbers) -> float:
    """What cosines and sines are multiplied with."""
    stated = numbers.get("attention_factor")
    if stated is not None:
        return float(stated)

    def scaled(weight: float) -> float:
        return 1.0 if numbers["factor"] <= 1 else 0.1 * weight * math.log(numbers["factor"]) + 1.0

    one, all_ = numbers.get("mscale"), numbers.get("mscale_all_dim")
    return scaled(one) / scaled(all_) if one and all_ else scaled(1.0)


def _llama3(periods: Tensor, theta: float, dim: int, numbers: Numbers) -> tuple[Tensor, float]:
    """Long waves stretched by ``factor``, short ones kept, smooth between."""
    inverse = 1.0 / periods
    trained, factor = numbers["original_max_position_embeddings"], numbers["factor"]
    low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
    waves = 2 * math.pi / inverse
    stretched = torch.where(waves > trained / low, inverse / factor, inverse)
    smooth = (trained / waves - low) / (high - low)
    between = ~(waves < trained / high) & ~(waves > trained / low)
    mixed = (1 - smooth) * stretched / factor + smooth * stretched
    return torch.where(between, mixed, stretched), 1.0


KINDS: dict[str, Kind] = {"default": _default, "linear": _linear, "yarn": _yarn, "llama3": _llama3}
NEEDED: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""Numbers without which a kind means nothing."""
