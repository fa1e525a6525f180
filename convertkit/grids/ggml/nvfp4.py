"""NVFP4 between planes and ggml blocks: the same codes and block scales in another order, never decoded.

Format facts: ggml 0.25.3 ``ggml-common.h`` ``block_nvfp4`` (64 elements: four E4M3 scales, 32 bytes of codes) and
gguf 0.19.0 ``quants.NVFP4``. The scale of the whole tensor is a separate F32 tensor ``<name>.scale``, a multiplier.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from convertkit.grids.ggml import kernels

BLOCK = 64
BLOCK_BYTES = 36


def join_planes(codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Codes [rows, in/2] and block scales [rows, in/16] as blocks [rows, in/64*36]. in % 64 == 0."""
    rows = codes.shape[0]
    out = np.empty((codes.size * 2 // BLOCK, BLOCK_BYTES), np.uint8)
    flat = np.ascontiguousarray(codes).reshape(-1).view(np.uint64)
    kernels.join_nvfp4(flat, np.ascontiguousarray(scales).reshape(-1), out)
    return out.reshape(rows, -1)


def split_planes(blocks: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The inverse: codes [rows, in/2] and block scales [rows, in/16] of blocks [rows, in/64*36]."""
    rows = blocks.shape[0]
    flat = np.ascontiguousarray(blocks).reshape(-1, BLOCK_BYTES)
    codes = np.empty(flat.shape[0] * 4, np.uint64)
    scales = np.empty(flat.shape[0] * 4, np.uint8)
    kernels.split_nvfp4(flat, codes, scales)
    return codes.view(np.uint8).reshape(rows, -1), scales.reshape(rows, -1)
