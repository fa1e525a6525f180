"""Derive planes again from a dense tile, whatever was recorded: block scales by amax, codes under given scales."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.checks import kernels, slots
from convertkit.checks.arrays import flat, source_words
from convertkit.checks.reference import SCALE_UNITS

Bytes = NDArray[np.uint8]

SCALE_VALUES: NDArray[np.float32] = SCALE_UNITS.astype(np.float32) * np.float32(2.0**-9)
"""Magnitudes of the scale bytes."""


def words_of(source: NDArray[Any], dtype: str) -> NDArray[np.uint32]:
    """The values of a tile as flat FP32 bits, padded with zeros to whole chunks."""
    bits, shift = source_words(source, dtype)
    words = np.empty(-(-bits.size // slots.CHUNK) * slots.CHUNK, np.uint32)
    kernels.widen(bits, shift, words)
    return words


def peaks_of(words: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Largest magnitude of each block."""
    one, two = np.empty_like(words), np.empty_like(words)
    peaks = np.empty(words.size // 16, np.uint32)
    kernels.block_peaks(words, one, two, peaks)
    return peaks.view(np.float32)


def amax_scales(
    peaks: NDArray[np.float32], encoder: np.float32, *, least: int = 1, rule: int = slots.AMAX_RULE, narrow: int = 0
) -> Bytes:
    """Block scales by the largest magnitudes, none below the byte ``least``; ``encoder`` has the sense of ``rule``."""
    work, scales = np.empty_like(peaks), np.empty(peaks.size, np.uint8)
    with np.errstate(all="ignore"):
        if rule == slots.AMAX_RULE:
            kernels.derive_amax_scales(peaks, np.float32(6.0) * encoder, work, scales)
        else:
            kernels.derive_llmcompressor_scales(peaks, encoder, narrow, work, scales)
    return np.maximum(scales, np.uint8(least))


def codes_under(words: NDArray[np.uint32], scales: Bytes, encoder: np.float32, *, rule: int = slots.AMAX_RULE) -> Bytes:
    """Packed codes of a tile under block scales: quotients in FP32, ties to even."""
    values = SCALE_VALUES[scales & 0x7F]
    with np.errstate(all="ignore"):
        divisors = (values / encoder if rule == slots.LLMCOMPRESSOR_RULE else values * encoder).astype(np.float32)
    tops = np.full(scales.size, np.inf, np.float32)
    out = np.empty(16 * scales.size, np.uint8)
    kernels.round_to_codes(words.view(np.float32)[: out.size], divisors, tops, out)
    pairs = out.view("<u2")
    return ((pairs & np.uint16(15)) | (pairs >> np.uint16(4))).astype(np.uint8)


def stored_differences(source: NDArray[Any], codes: Bytes, scales: Bytes, table: NDArray[Any]) -> NDArray[np.bool_]:
    """Where 16-bit elements differ from those that planes decode to by a table [256, 16]; by block [n, 16]."""
    bits = flat(source, "<u2")
    decoded = np.empty(bits.size, np.uint16)
    kernels.decode(flat(codes, "u1"), flat(scales, "u1"), table, decoded)
    differs: NDArray[np.bool_] = (decoded != bits).reshape(-1, 16)
    return differs
