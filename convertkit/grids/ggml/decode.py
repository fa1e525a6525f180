"""Decode ggml blocks to FP32, value for value as ggml does."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from convertkit.dtypes import BLOCK_TYPES
from convertkit.grids.ggml import kernels_decode
from convertkit.grids.ggml.encode import E2M1_DOUBLED, halved_e8m0

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def decode_rows(data: Bytes, dtype: str) -> Floats:
    """Bytes [rows, bytes of a row] of a block type as FP32 values [rows, width]; a damaged scale gives NaN.

    ``dtype`` is one of ``types.DECODED_TYPES``; NVFP4 is re-spelled as planes instead.
    """
    row = BLOCK_TYPES[dtype]
    blocks = np.ascontiguousarray(data).reshape(-1, row.bits // 8)
    out = np.empty((blocks.shape[0], row.block), np.float32)
    _decode(blocks, dtype, out)
    return out.reshape(data.shape[0], -1)


def _half(blocks: Bytes, first: int) -> Floats:
    """The FP16 at byte ``first`` of each block."""
    return np.ascontiguousarray(blocks[:, first : first + 2]).view(np.float16).astype(np.float32).reshape(-1)


def _decode(blocks: Bytes, dtype: str, out: Floats) -> None:
    if dtype == "Q8_0":
        kernels_decode.q8_0(blocks, _half(blocks, 0), out)
    elif dtype == "Q4_0":
        kernels_decode.symmetric(blocks, _half(blocks, 0), out, 2, 0, 8)
    elif dtype == "Q5_0":
        kernels_decode.symmetric(blocks, _half(blocks, 0), out, 6, 2, 16)
    elif dtype == "Q4_1":
        kernels_decode.ranged(blocks, _half(blocks, 0), _half(blocks, 2), out, 4, 0)
    elif dtype == "Q5_1":
        kernels_decode.ranged(blocks, _half(blocks, 0), _half(blocks, 2), out, 8, 4)
    elif dtype == "MXFP4":
        kernels_decode.mxfp4(blocks, halved_e8m0(blocks[:, 0]), E2M1_DOUBLED, out)
    elif dtype in ("Q4_K", "Q5_K"):
        kernels_decode.k_ranged(blocks, _half(blocks, 0), _half(blocks, 2), out, dtype == "Q5_K")
    elif dtype == "Q6_K":
        kernels_decode.q6_k(blocks, _half(blocks, 208), out)
    else:
        raise ValueError(f"{dtype} is not decoded here")
