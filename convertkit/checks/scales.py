"""Whether global scales have the size that their sense implies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from convertkit.dialects.planes import PackedModule
from convertkit.errors import MAX_LISTED, Finding, finding
from convertkit.layouts.rules import families

LARGEST_CODE_AND_SCALE = 6 * 448
"""Largest product of an E2M1 code and an E4M3 block scale: packers put the largest magnitude of a weight there, so a
multiplier above 1 (a divisor below 1) would mean weights beyond this number."""


def inverted_scales(packed: Mapping[str, PackedModule], bits: Mapping[str, int]) -> Iterator[Finding]:
    """W_SCALE_INVERTED by family of linears; ``bits`` are the stored FP32 bits of the global scales."""
    values = {name: float(np.uint32(bits[name]).view(np.float32)) for name in packed}
    wrong = [
        name
        for name, module in packed.items()
        if 0 < values[name] < float("inf")
        and (values[name] > 1 if module.spelling.sense == "multiplier" else values[name] < 1)
    ]
    for family in families(wrong).values():
        first = family.names[0]
        sense = packed[first].spelling.sense
        message = f"{len(family.names)} x '{family.template}': the global scale {values[first]:.6g} looks inverted"
        yield finding(
            "W_SCALE_INVERTED",
            "warning",
            f"{message}; as a {sense} it means weights beyond {LARGEST_CODE_AND_SCALE:,}",
            tensor=packed[first].global_scale.spec.name,
            fix="compressed-tensors stores divisors, ModelOpt multipliers: find out which tool wrote the values",
            data={"count": len(family.names), "modules": list(family.names[:MAX_LISTED])},
        )
