"""Calibrations out of nothing: hidden states and tokens from the demo's integer generator.

The states of a layer depend on the seed and the layer's id alone, so that a drafter which taps other layers gets
other states. They have the heavier tails of trained networks, and a size per channel that spans a factor of 16, since
the states of real models differ by channel. Tokens are drawn evenly. Nothing is said about accept lengths with them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from convertkit.demo.values import dense, key_of, values, words
from convertkit.forward.calibration import Calibration

POSITIONS = 128
UNIT = 1 << 24
"""A standard deviation of one, in the generator's units."""


def generated_calibration(
    layers: Sequence[int], width: int, vocabulary: int, *, positions: int = POSITIONS, seed: int = 0
) -> Calibration:
    """One sequence of ``positions`` for the target layers given: ``width`` wide, tokens below ``vocabulary``."""
    tokens = (words(key_of(seed, "tokens", "sequence"), 0, positions) % np.uint64(vocabulary)).astype(np.int64)
    zeros = np.zeros(positions, np.int64)
    return Calibration(
        {layer: _states(layer, positions, width, seed) for layer in sorted(set(layers))},
        tokens,
        np.arange(positions),
        zeros,
        zeros.astype(np.bool_),
        "generated",
        "F32",
        "generated",
        {"seed": str(seed)},
    )


def _states(layer: int, positions: int, width: int, seed: int) -> NDArray[np.float32]:
    """Hidden states of one layer, F32 [positions, width]: exact products of the generator's numbers."""
    stream = dense(seed, f"hidden states {layer}", "BF16", mean=0, std=UNIT)
    bits = values(stream, 0, positions * width).astype(np.uint32) << np.uint32(16)
    powers = (words(key_of(seed, "channel sizes", str(layer)), 0, width) % np.uint64(5)).astype(np.float32)
    sizes = np.exp2(powers - np.float32(2.0))
    made: NDArray[np.float32] = bits.view(np.float32).reshape(positions, width) * sizes
    return made
