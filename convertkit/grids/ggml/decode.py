"""Decode ggml blocks to FP32, value for value as ggml's reference does (``dequantize_row_*``, ggml 0.25.3).

Vectors of NumPy over whole tiles; each block type is one function from block bytes to values [blocks, elements].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from convertkit.dtypes import BLOCK_TYPES
from convertkit.grids.ggml.encode import E2M1_DOUBLED, halved_e8m0

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def decode_rows(data: Bytes, dtype: str) -> Floats:
    """Bytes [rows, bytes of a row] of a block type as FP32 values [rows, width]; a damaged scale gives NaN."""
    row = BLOCK_TYPES[dtype]
    blocks = np.ascontiguousarray(data).reshape(-1, row.bits // 8)
    with np.errstate(invalid="ignore", over="ignore"):
        values = DECODERS[dtype](blocks)
    return np.ascontiguousarray(values, dtype=np.float32).reshape(data.shape[0], -1)


def _half(blocks: Bytes, first: int) -> Floats:
    """The FP16 at byte ``first`` of each block, as a column."""
    return np.ascontiguousarray(blocks[:, first : first + 2]).view(np.float16).astype(np.float32)


def _nibbles(data: Bytes) -> NDArray[np.int32]:
    """Low nibbles of all bytes of a block, then the high ones."""
    return np.concatenate([data & 15, data >> 4], axis=1).astype(np.int32)


def _fifth_bits(blocks: Bytes, first: int) -> NDArray[np.int32]:
    bits = np.unpackbits(blocks[:, first : first + 4], axis=1, bitorder="little")
    return bits.astype(np.int32) << 4


def _q8_0(blocks: Bytes) -> Floats:
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _half(blocks, 0)


def _q4_0(blocks: Bytes) -> Floats:
    return (_nibbles(blocks[:, 2:]) - 8).astype(np.float32) * _half(blocks, 0)


def _q4_1(blocks: Bytes) -> Floats:
    return _nibbles(blocks[:, 4:]).astype(np.float32) * _half(blocks, 0) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return (codes - 16).astype(np.float32) * _half(blocks, 0)


def _q5_1(blocks: Bytes) -> Floats:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return codes.astype(np.float32) * _half(blocks, 0) + _half(blocks, 2)


def _mxfp4(blocks: Bytes) -> Floats:
    return E2M1_DOUBLED[_nibbles(blocks[:, 1:])] * halved_e8m0(blocks[:, 0])[:, None]


def _k_scales(packed: Bytes) -> tuple[Floats, Floats]:
    """Eight 6-bit scales and eight 6-bit minima from 12 bytes (ggml ``get_scale_min_k4``)."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=1)
    minima = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _k_ranged(blocks: Bytes, codes: NDArray[np.int32]) -> Floats:
    """Q4_K and Q5_K: eight runs of 32 codes, each with its scale and minimum."""
    scales, minima = _k_scales(blocks[:, 4:16])
    d = scales * _half(blocks, 0)
    m = minima * _half(blocks, 2)
    return (d[:, :, None] * codes.astype(np.float32) - m[:, :, None]).reshape(blocks.shape[0], 256)


def _k_nibbles(data: Bytes) -> NDArray[np.int32]:
    """128 bytes as eight runs of 32: of each 32 bytes first the low nibbles, then the high ones."""
    parts = data.reshape(-1, 4, 1, 32)
    both = np.concatenate([parts & 15, parts >> 4], axis=2)
    return both.reshape(-1, 8, 32).astype(np.int32)


def _q4_k(blocks: Bytes) -> Floats:
    return _k_ranged(blocks, _k_nibbles(blocks[:, 16:144]))


def _q5_k(blocks: Bytes) -> Floats:
    run = np.arange(8, dtype=np.uint8)[None, :, None]
    fifth = ((blocks[:, None, 16:48] >> run) & 1).astype(np.int32) << 4
    return _k_ranged(blocks, _k_nibbles(blocks[:, 48:176]) | fifth)


def _q6_k(blocks: Bytes) -> Floats:
    """Two halves of 128 elements: low nibbles in 64 bytes, two high bits in 32, sixteen int8 scales."""
    low = blocks[:, :128].reshape(-1, 2, 64)
    high = blocks[:, 128:192].reshape(-1, 2, 32)
    codes = np.stack(
        [
            (low[:, :, :32] & 15) | ((high & 3) << 4),
            (low[:, :, 32:] & 15) | (((high >> 2) & 3) << 4),
            (low[:, :, :32] >> 4) | (((high >> 4) & 3) << 4),
            (low[:, :, 32:] >> 4) | ((high >> 6) << 4),
        ],
        axis=2,
    )
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32) * _half(blocks, 208)
    values = (codes.astype(np.int32) - 32).astype(np.float32).reshape(-1, 16, 16)
    return (scales[:, :, None] * values).reshape(blocks.shape[0], 256)


DECODERS: Mapping[str, Callable[[Bytes], Floats]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "MXFP4": _mxfp4,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
"""Block types that can be decoded; NVFP4 is re-spelled as planes instead."""
