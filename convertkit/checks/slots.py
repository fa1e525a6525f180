"""Where compiled kernels put their counts and sums, and the words they are called with.

Apart from the kernels, so that what reads evidence does not have to load them.
"""

from __future__ import annotations

from convertkit.checks.tiles import LANES

CHUNK = 2 * LANES
"""Elements of a chunk: the element at i and the one at i + ``LANES`` are added, then the pair goes to lane i."""

SUMS = 4
"""Groups of ``LANES`` lanes: squares of the reference, of the candidate, of the error; largest error."""

NO_RULE, AMAX_RULE, LLMCOMPRESSOR_RULE = 0, 1, 2
KEEP_F32, TO_BF16, TO_F16 = 0, 1, 2

WRONG_CODES, WRONG_SCALES, CHANGED, NONFINITE, FLUSHED, SATURATED, AMAX_BITS = range(7)
COUNTS = 7
"""Positions in the ``counts`` array of ``measure_planes``, and their number."""

DIFFERING, ZERO_SIGNS, NEGATIVE_ZEROS, MINUS_CODES, EMPTIED, LOST, LOST_ZERO_SIGNS = range(7)
EXPAND_COUNTS = 7
"""Positions in the ``counts`` array of ``check_expanded``, and their number."""
