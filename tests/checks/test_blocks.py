"""Blocks and planes of NVFP4: the compiled loops against one line of NumPy per idea."""

from __future__ import annotations

import numpy as np

from convertkit.checks.gguf_rows import block_planes
from convertkit.checks.kernels_blocks import differing_blocks
from convertkit.grids.ggml.nvfp4 import join_planes


def test_blocks_come_apart_into_the_planes_they_were_made_of() -> None:
    random = np.random.default_rng(1)
    codes, scales = random.integers(0, 256, (6, 96), np.uint8), random.integers(0, 256, (6, 12), np.uint8)
    blocks = join_planes(codes, scales)
    apart = block_planes(blocks)
    assert np.array_equal(apart[0], codes)
    assert np.array_equal(apart[1], scales)
    each = blocks.reshape(-1, 36)
    low_first = np.concatenate([each[:, 4:].reshape(-1, 4, 8) & 15, each[:, 4:].reshape(-1, 4, 8) >> 4], axis=2)
    assert np.array_equal(np.stack([codes & 15, codes >> 4], axis=2).reshape(-1), low_first.reshape(-1))


def test_every_differing_nibble_and_scale_is_counted() -> None:
    random = np.random.default_rng(2)
    codes, scales = random.integers(0, 256, 32 * 9, np.uint8), random.integers(0, 256, 4 * 9, np.uint8)
    blocks = join_planes(codes.reshape(9, 32), scales.reshape(9, 4)).reshape(9, 36)
    assert differing_blocks(blocks, codes, scales) == 0
    for place in range(36):
        changed = blocks.copy()
        changed[4, place] ^= 0x11
        assert differing_blocks(changed, codes, scales) == (1 if place < 4 else 2)
