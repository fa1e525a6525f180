"""Check of quantized weights: derive scales and codes again by another method, and measure what was lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.checks import slots
from convertkit.checks.arrays import flat, source_words, tally_of
from convertkit.checks.fidelity import Tally
from convertkit.checks.reference import FORMATS, PlaneTables, bits_of, float_of, narrowed, plane_tables, widened
from convertkit.checks.tiles import LANES

RULES = {"amax": slots.AMAX_RULE, "amax-llmcompressor": slots.LLMCOMPRESSOR_RULE}
LEVELS = {"amax": np.float32(2688), "mse": np.float32(2688), "four-over-six": np.float32(1536)}
"""6 times the block scale that the largest magnitude of a group gets: 448, or 256 to leave room for 1.5 times that."""
SENSES = {"amax": "multiplier", "amax-llmcompressor": "divisor"}
NARROW = {"F32": slots.KEEP_F32, "BF16": slots.TO_BF16, "F16": slots.TO_F16}


@dataclass(frozen=True, slots=True)
class PackTally:
    """``wrong_codes`` and ``wrong_scales`` against those derived again, and what was lost.

    ``amax_bits`` is the largest source magnitude, as storage bits of the source's dtype.
    """

    wrong_codes: int = 0
    wrong_scales: int = 0
    amax_bits: int = 0
    fidelity: Tally = field(default_factory=Tally)

    def __add__(self, other: PackTally) -> PackTally:
        return PackTally(
            self.wrong_codes + other.wrong_codes,
            self.wrong_scales + other.wrong_scales,
            max(self.amax_bits, other.amax_bits),
            self.fidelity + other.fidelity,
        )


def expected_global(
    arithmetic: str, dtype: str, group_amax_bits: int, *, reversible: bool = False, sense: str | None = None
) -> int:
    """FP32 bits of the global scale of a group whose largest magnitude has these storage bits of ``dtype``.

    ``amax``, ``mse``, ``four-over-six``: the multiplier fl(amax / ``LEVELS``), at least 2**-126, and 1.0 for a group
    of zeros. ``amax-llmcompressor``: the divisor, 2688 times the reciprocal of amax, both rounded to ``dtype``, amax
    at least the type's least normal number; 1.0 where that is not finite. ``reversible``: the next FP32 number up that
    its reciprocal gives back.
    ``sense``: how the file records it; if that is not the arithmetic's own sense, the FP32 reciprocal is meant.
    """
    amax: np.float32 = widened(np.array([group_amax_bits], FORMATS[dtype].storage), dtype)[0]
    with np.errstate(all="ignore"):
        if arithmetic in LEVELS:
            scale = np.float32(1.0) if amax == 0 else max(amax / LEVELS[arithmetic], np.float32(2.0**-126))
        else:
            clamped = max(amax, np.float32(2.0 ** FORMATS[dtype].least_exponent))
            inverse = _through(np.float32(1.0) / clamped, dtype)
            scale = _through(inverse * np.float32(2688), dtype)
            scale = scale if np.isfinite(scale) else np.float32(1.0)
        while reversible and np.float32(1.0) / (np.float32(1.0) / scale) != scale:
            scale = np.nextafter(scale, np.float32(np.inf))
        if sense is not None and sense != SENSES.get(arithmetic, "multiplier"):
            scale = np.float32(1.0) / scale
    return bits_of(scale)


def _through(value: np.float32, dtype: str) -> np.float32:
    rounded: np.float32 = widened(narrowed(np.array([value], np.float32), dtype), dtype)[0]
    return rounded


def check_pack_tile(
    source: NDArray[Any],
    source_dtype: str,
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    global_bits: int,
    sense: str,
    arithmetic: str,
    *,
    encoding_bits: int | None = None,
    stored: str | None = None,
) -> PackTally:
    """Check a tile of rows: ``source`` storage bits [rows, in], ``codes`` uint8 [rows, in/2], ``scales`` [rows, in/16].

    ``global_bits`` and ``sense`` are as recorded in the file and decode the planes. ``encoding_bits`` are those that
    the encoder used in the arithmetic's own sense; without them the recorded scale is taken, inverted if the sense
    is the other one. Codes are compared with those that the *derived* block scales give. ``stored`` measures the
    values as a file of that dtype would hold them instead of the exact ones.
    """
    with np.errstate(all="ignore"):
        if encoding_bits is not None:
            encoder = float_of(encoding_bits)
        else:
            recorded = float_of(global_bits)
            encoder = recorded if sense == SENSES[arithmetic] else np.float32(1.0) / recorded
    counts, tally = measure_tile(
        source, source_dtype, codes, scales, global_bits, sense, stored, RULES[arithmetic], encoder
    )
    amax = narrowed(np.array([counts[slots.AMAX_BITS]], np.uint32).view(np.float32), source_dtype)
    return PackTally(int(counts[slots.WRONG_CODES]), int(counts[slots.WRONG_SCALES]), int(amax[0]), tally)


def measure_tile(
    source: NDArray[Any],
    source_dtype: str,
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    global_bits: int,
    sense: str,
    stored: str | None,
    rule: int = slots.NO_RULE,
    encoder: np.float32 | float = 1.0,
    tables: PlaneTables | None = None,
) -> tuple[NDArray[np.int64], Tally]:
    """Run the fused kernel over one tile; its raw counts and the tally of the dense source against the planes.

    ``tables`` are what the planes decode to, if that is not the exact values or those of a ``stored`` file.
    """
    words, shift = source_words(source, source_dtype)
    nibbles, bytes_ = flat(codes, "u1"), flat(scales, "u1")
    if words.size != 2 * nibbles.size or words.size != 16 * bytes_.size:
        raise ValueError(f"{words.size} elements, {nibbles.size} code bytes and {bytes_.size} scales do not fit")
    tables = plane_tables(global_bits, sense, stored) if tables is None else tables
    lanes, counts = np.zeros(slots.SUMS * LANES), np.zeros(slots.COUNTS, np.int64)
    from convertkit.checks.kernels_planes import measure_planes

    histogram = np.zeros(256, np.int64)
    measure_planes(
        words, shift, nibbles, bytes_, tables.values, tables.tops, tables.scales, tables.starts,
        rule, NARROW[source_dtype], encoder, lanes, counts, histogram,
    )  # fmt: skip
    return counts, tally_of(words.size, lanes, counts, histogram)
