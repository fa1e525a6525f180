"""Compiled loops between NVFP4 blocks as a GGUF holds them and codes and block scales as planes, nibble by nibble.

Element e of a group of 16 is nibble e // 8 of byte e % 8 in a block, and nibble e % 2 of byte e // 2 in planes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from convertkit.checks.kernels import U1, compiled, given, made


@compiled(types.int64(given(U1, 2), given(U1), given(U1)))
def differing_blocks(blocks: Any, codes: Any, scales: Any) -> Any:
    """Elements and scales of ``blocks`` [n, 36] that are not those of ``codes`` [n * 32] and ``scales`` [n * 4]."""
    wrong = np.int64(0)
    for b in range(blocks.shape[0]):
        for group in range(4):
            wrong += np.int64(blocks[b, group] != scales[4 * b + group])
            mine, yours = 4 + 8 * group, 32 * b + 8 * group
            for j in range(8):
                byte = blocks[b, mine + j]
                shift = np.uint8(4 * (j & 1))
                low = (codes[yours + j // 2] >> shift) & np.uint8(15)
                high = (codes[yours + 4 + j // 2] >> shift) & np.uint8(15)
                wrong += np.int64(byte & np.uint8(15) != low) + np.int64(byte >> np.uint8(4) != high)
    return wrong


@compiled(types.void(given(U1, 2), made(U1), made(U1)))
def take_apart(blocks: Any, codes: Any, scales: Any) -> None:
    """Fill ``codes`` [n * 32] and ``scales`` [n * 4] from ``blocks`` [n, 36]."""
    for b in range(blocks.shape[0]):
        for group in range(4):
            scales[4 * b + group] = blocks[b, group]
            mine, yours = 4 + 8 * group, 32 * b + 8 * group
            for i in range(4):
                even, odd = blocks[b, mine + 2 * i], blocks[b, mine + 2 * i + 1]
                codes[yours + i] = (even & np.uint8(15)) | np.uint8(odd << np.uint8(4))
                codes[yours + 4 + i] = (even >> np.uint8(4)) | (odd & np.uint8(240))
