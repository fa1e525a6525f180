"""Faults in the values of scales, for callers that read them: conversions refuse, audits report.

A global scale arrives as the stored FP32 bits, block scales as E4M3 bytes. All checks work on integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

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


Place = tuple[int, int]
"""Row and block of a block scale."""


@dataclass(frozen=True, slots=True)
class BlockFaults:
    """Counts of bad block scales; add tiles with ``+``, upper rows first. ``firsts`` are the places of the first of
    each kind, in the order of the counts."""

    nonfinite: int = 0
    negative: int = 0
    zero_over_codes: int = 0
    firsts: tuple[Place | None, Place | None, Place | None] = field(default=(None, None, None), compare=False)

    def __add__(self, other: BlockFaults) -> BlockFaults:
        one, two, three = (mine or yours for mine, yours in zip(self.firsts, other.firsts, strict=True))
        return BlockFaults(
            self.nonfinite + other.nonfinite,
            self.negative + other.negative,
            self.zero_over_codes + other.zero_over_codes,
            (one, two, three),
        )

    @property
    def total(self) -> int:
        return self.nonfinite + self.negative + self.zero_over_codes


def block_faults(scales: NDArray[np.uint8], codes: NDArray[np.uint8] | None = None, first_row: int = 0) -> BlockFaults:
    """Count bad block scales of a tile: E4M3 bytes [rows, in/16] and, if at hand, codes [rows, in/2]. The tile begins
    at ``first_row`` of its matrix.

    Zero is a fault only over a block with a code other than +0 and -0; without codes it is not counted.
    A negative zero counts as negative: no packer writes one.
    """
    magnitude = scales & 0x7F
    nan = magnitude == 0x7F
    negative = (scales & 0x80 != 0) & ~nan
    zero = magnitude == 0
    if codes is None:
        zero[:] = False
    elif zero.any():
        blocks = codes.reshape(*scales.shape, GROUP // 2)[zero]
        zero[zero] = ((blocks & 0x77) != 0).any(axis=1)
    kinds = (nan, negative, zero)
    bad = [int(np.count_nonzero(kind)) for kind in kinds]
    one, two, three = (_first(kind, first_row) if count else None for kind, count in zip(kinds, bad, strict=True))
    return BlockFaults(bad[0], bad[1], bad[2], (one, two, three))


def _first(bad: NDArray[np.bool_], first_row: int) -> Place:
    row, block = divmod(int(bad.argmax()), bad.shape[1])
    return first_row + row, block


_BLOCK_ROWS = (
    ("nonfinite", "E_SCALE_NONFINITE", "NaN"),
    ("negative", "E_SCALE_SIGN", "negative"),
    ("zero_over_codes", "E_SCALE_ZERO", "zero over codes that are not"),
)


def block_scale_findings(
    module: PackedModule, faults: BlockFaults, severity: Severity = "error"
) -> tuple[Finding, ...]:
    """The findings of counted block faults of one linear, one per kind, with the place of the first."""
    found = []
    for (kind, code, text), place in zip(_BLOCK_ROWS, faults.firsts, strict=True):
        count = getattr(faults, kind)
        if not count:
            continue
        message = f"{count:,} block scales are {text}" if count > 1 else f"a block scale is {text}"
        data: dict[str, Any] = {"count": count}
        if place is not None:
            row, block = place
            message += f", {'the first ' if count > 1 else ''}in row {row:,}, block {block:,}"
            data["first"] = [row, block]
        ref = module.block_scale
        found.append(finding(code, severity, message, file=ref.file, tensor=ref.spec.name, data=data))
    return tuple(found)
