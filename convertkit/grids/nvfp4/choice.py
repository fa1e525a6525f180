"""Encode with block scales of least squared error: ``mse`` and ``four-over-six``. No activations are needed.

``amax`` gives each block the scale under which its largest element has code 6. A somewhat larger or smaller scale often
has less error, above all the one under which it has code 4. ``mse`` tries the bytes from 4 below to 8 above that of
``amax`` (every optimum of Gaussian weights lies there, all but one in some thousands from 2 below to 7 above);
``four-over-six`` tries those two, with a global scale that leaves room for the larger one. Sums are exact, so the best
scale is the best on every machine. Importing this module loads the compiled kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.grids.dense import cast
from convertkit.grids.nvfp4 import kernels_choice as kernels
from convertkit.grids.nvfp4.encode import flat_items
from convertkit.grids.nvfp4.numbers import BLOCK, E4M3, float_of
from convertkit.grids.nvfp4.tables import EncodeTables, build_encode_tables, tables_under


@dataclass(frozen=True, slots=True)
class Choice:
    """Bytes tried below and above that of the row itself, and another row whose byte is tried."""

    below: int
    above: int
    other: str


CHOICES: dict[str, Choice] = {
    "mse": Choice(4, 8, "mse"),
    "four-over-six": Choice(0, 0, "four-over-six, largest code 4"),
}
"""By the name used in plans: each is a row of ``arithmetics.SEARCHED``."""


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceTables:
    """Tables of one fused group; ``dtype`` is that of the source, F16 is worked on as F32."""

    dtype: str
    first: EncodeTables
    other: EncodeTables
    sweep: NDArray[np.int64]

    @property
    def global_bits(self) -> int:
        return self.first.global_bits


def build_choice_tables(
    name: str, dtype: str, group_amax_bits: int, *, reversible: bool = False, least_scale: int = 1
) -> ChoiceTables:
    """As ``build_encode_tables`` for a row of ``CHOICES``. The global scale is a multiplier."""
    choice = CHOICES[name]
    built = build_encode_tables(name, dtype, group_amax_bits, reversible=reversible, least_scale=least_scale)
    work = "F32" if dtype == "F16" else dtype
    first, other = (tables_under(row, work, built.global_bits, least_scale=least_scale) for row in (name, choice.other))
    return ChoiceTables(dtype, first, other, np.array([choice.below, choice.above, least_scale], np.int64))


def choose_tile(
    values: NDArray[Any], tables: ChoiceTables, codes_out: NDArray[np.uint8], scales_out: NDArray[np.uint8]
) -> None:
    """Encode ``values`` [rows, in], storage bits of ``tables.dtype``; arrays and errors as those of ``encode_tile``."""
    rows, width = values.shape
    if width % BLOCK or codes_out.shape != (rows, width // 2) or scales_out.shape != (rows, width // BLOCK):
        raise ValueError(f"shapes {values.shape}, {codes_out.shape}, {scales_out.shape} do not fit together")
    codes, scales = flat_items(codes_out, 1, "codes").reshape(-1, BLOCK // 2), flat_items(scales_out, 1, "scales")
    first, other = tables.first, tables.other
    grid, scale = E4M3[:128].astype(np.float64), float(float_of(first.global_bits))
    if tables.dtype == "BF16":
        blocks = flat_items(values, 2, "values").reshape(-1, BLOCK)
        kernels.choose_16(
            blocks,
            first.scale_bytes,
            other.scale_bytes,
            tables.sweep,
            first.code_bounds,
            grid,
            error_units(7),
            scale,
            codes,
            scales,
        )
        return
    wide = cast(values, "F16", "F32") if tables.dtype == "F16" else values
    kernels.choose_32(
        flat_items(wide, 4, "values").reshape(-1, BLOCK),
        first.scale_bytes,
        other.scale_bytes,
        first.scale_bounds,
        other.scale_bounds,
        first.zero_byte,
        tables.sweep,
        first.code_bounds,
        grid,
        error_units(23),
        scale,
        codes,
        scales,
    )


@cache
def error_units(mantissa_bits: int) -> NDArray[np.float64]:
    """Value of the last bit that aligned magnitudes keep, by exponent field; field 0 counts as 1."""
    return np.ldexp(1.0, np.arange(256) - 127 - mantissa_bits - kernels.ROOM)
