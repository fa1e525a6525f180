"""Faults in the values of scales, for callers that read them: conversions refuse, audits report.

A global scale arrives as the stored FP32 bits, block scales as E4M3 bytes. All checks work on integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from convertkit.checkpoint import TensorRef
from convertkit.containers.reader import Reader
from convertkit.dialects.planes import PackedModule
from convertkit.dialects.spelling import GROUP, Sense
from convertkit.errors import ConvertError, Finding, Severity, finding

_INF = 0x7F80_0000
_SIGN = 0x8000_0000
LARGEST_NOT_INVERTIBLE = 0x0020_0000
"""FP32 bits of 2^-128, the largest value whose reciprocal rounds to infinity (the next one gives 2^128 - 2^107)."""


def global_scale_findings(
    scale: TensorRef, bits: int, sense: Sense, severity: Severity = "error"
) -> tuple[Finding, ...]:
    """Faults of a global scale given as FP32 bits: E_SCALE_NONFINITE, E_SCALE_ZERO, E_SCALE_SIGN, E_SCALE_RANGE.

    The range matters for a divisor only: what it divides would become infinite.
    """
    value = float(np.uint32(bits).view(np.float32))
    magnitude = bits & ~_SIGN
    if magnitude >= _INF:
        code, what = "E_SCALE_NONFINITE", f"is {value}"
    elif magnitude == 0:
        code, what = "E_SCALE_ZERO", "is zero"
    elif bits & _SIGN:
        code, what = "E_SCALE_SIGN", f"is negative ({value:.9g})"
    elif sense == "divisor" and magnitude <= LARGEST_NOT_INVERTIBLE:
        code, what = "E_SCALE_RANGE", f"is {value:.9g}, a divisor whose reciprocal is not finite"
    else:
        return ()
    return (finding(code, severity, f"the global scale {what}", file=scale.file, tensor=scale.spec.name),)


def sound_global_bits(reader: Reader, modules: Iterable[PackedModule], status: int | None = None) -> dict[str, int]:
    """FP32 bits of the global scales as stored, by module.

    Raises ``ConvertError`` with the faults of all of them (codes of ``global_scale_findings``); ``status`` replaces
    that of the code where a bad scale is a verdict and not an unacceptable input.
    """
    bits: dict[str, int] = {}
    faults: list[Finding] = []
    for item in modules:
        bits[item.module] = reader.f32_bits(item.global_scale)
        faults += global_scale_findings(item.global_scale, bits[item.module], item.spelling.sense)
    if faults:
        raise ConvertError(faults, status)
    return bits


@dataclass(frozen=True, slots=True)
class BlockFaults:
    """Counts of bad block scales; add tiles with ``+``."""

    nonfinite: int = 0
    negative: int = 0
    zero_over_codes: int = 0

    def __add__(self, other: BlockFaults) -> BlockFaults:
        return BlockFaults(
            self.nonfinite + other.nonfinite,
            self.negative + other.negative,
            self.zero_over_codes + other.zero_over_codes,
        )

    @property
    def total(self) -> int:
        return self.nonfinite + self.negative + self.zero_over_codes


def block_faults(scales: NDArray[np.uint8], codes: NDArray[np.uint8] | None = None) -> BlockFaults:
    """Count bad block scales of a tile: E4M3 bytes [rows, in/16] and, if at hand, codes [rows, in/2].

    Zero is a fault only over a block with a code other than +0 and -0; without codes it is not counted.
    A negative zero counts as negative: no packer writes one.
    """
    magnitude = scales & 0x7F
    nonfinite = int(np.count_nonzero(magnitude == 0x7F))
    negative = int(np.count_nonzero((scales & 0x80 != 0) & (magnitude != 0x7F)))
    zero = np.nonzero(magnitude == 0)
    lost = 0
    if codes is not None and zero[0].size:
        blocks = codes.reshape(*scales.shape, GROUP // 2)[zero]
        lost = int(np.count_nonzero(((blocks & 0x77) != 0).any(axis=1)))
    return BlockFaults(nonfinite, negative, lost)


_BLOCK_ROWS = (
    ("nonfinite", "E_SCALE_NONFINITE", "block scales are NaN"),
    ("negative", "E_SCALE_SIGN", "block scales are negative"),
    ("zero_over_codes", "E_SCALE_ZERO", "block scales are zero over codes that are not"),
)


def block_scale_findings(
    module: PackedModule, faults: BlockFaults, severity: Severity = "error"
) -> tuple[Finding, ...]:
    """The findings of counted block faults of one linear, one per kind."""
    ref = module.block_scale
    return tuple(
        finding(
            code,
            severity,
            f"{getattr(faults, kind)} {text}",
            file=ref.file,
            tensor=ref.spec.name,
            data={"count": getattr(faults, kind)},
        )
        for kind, code, text in _BLOCK_ROWS
        if getattr(faults, kind)
    )
