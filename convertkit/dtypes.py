"""Storage types of tensors: the rows of the safetensors dtype list, and the block types of ggml.

Names, bit widths and the order in which ``safetensors.save_file`` lays tensors out are those of
safetensors 0.8.0 (``Dtype`` in ``safetensors/src/tensor.rs``; the order was checked against files it wrote).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class DType:
    """One storage type. ``storage`` is the NumPy type that holds its raw little-endian bits.

    ``bits`` are those of one element, or of one block of ``block`` elements of a row.
    """

    name: str
    bits: int
    rank: int
    storage: str
    block: int = 1


_ROWS = (
    # name, bits, storage; in the order of the safetensors writer (widest first, then as declared there)
    ("U64", 64, "<u8"),
    ("I64", 64, "<i8"),
    ("F64", 64, "<f8"),
    ("C64", 64, "<c8"),
    ("F32", 32, "<f4"),
    ("U32", 32, "<u4"),
    ("I32", 32, "<i4"),
    ("BF16", 16, "<u2"),
    ("F16", 16, "<f2"),
    ("U16", 16, "<u2"),
    ("I16", 16, "<i2"),
    ("F8_E8M0", 8, "|u1"),
    ("F8_E4M3", 8, "|u1"),
    ("F8_E5M2", 8, "|u1"),
    ("I8", 8, "|i1"),
    ("U8", 8, "|u1"),
    ("F4", 4, "|u1"),
    ("BOOL", 8, "|u1"),
)

DTYPES: dict[str, DType] = {name: DType(name, bits, rank, storage) for rank, (name, bits, storage) in enumerate(_ROWS)}

_BLOCKS = (
    # name, elements and bytes of a block: gguf 0.19.0 ``GGML_QUANT_SIZES`` (gguf/constants.py)
    ("Q4_0", 32, 18),
    ("Q4_1", 32, 20),
    ("Q5_0", 32, 22),
    ("Q5_1", 32, 24),
    ("Q8_0", 32, 34),
    ("Q8_1", 32, 40),
    ("Q2_K", 256, 84),
    ("Q3_K", 256, 110),
    ("Q4_K", 256, 144),
    ("Q5_K", 256, 176),
    ("Q6_K", 256, 210),
    ("Q8_K", 256, 292),
    ("IQ2_XXS", 256, 66),
    ("IQ2_XS", 256, 74),
    ("IQ3_XXS", 256, 98),
    ("IQ1_S", 256, 50),
    ("IQ4_NL", 32, 18),
    ("IQ3_S", 256, 110),
    ("IQ2_S", 256, 82),
    ("IQ4_XS", 256, 136),
    ("IQ1_M", 256, 56),
    ("TQ1_0", 256, 54),
    ("TQ2_0", 256, 66),
    ("MXFP4", 32, 17),
    ("NVFP4", 64, 36),
    ("Q1_0", 128, 18),
)

BLOCK_TYPES: dict[str, DType] = {
    name: DType(name, size * 8, len(DTYPES) + rank, "|u1", block) for rank, (name, block, size) in enumerate(_BLOCKS)
}
"""Types of GGUF files whose rows are made of blocks; no safetensors file holds them."""

STORED_TYPES: dict[str, DType] = {**DTYPES, **BLOCK_TYPES}

FLOATS = ("BF16", "F16", "F32")
"""Dense float types that a weight may be quantized from or expanded to."""

FLOAT_WORDS = {"bf16": "BF16", "f16": "F16", "f32": "F32"}
"""What options call them."""
TORCH_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
"""What configs call them."""


def elements(shape: tuple[int, ...]) -> int:
    """Number of elements; a scalar ``()`` has one."""
    return prod(shape)


def size_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor in exact integers. Readers refuse tensors that are not whole bytes or blocks."""
    row = STORED_TYPES[dtype]
    return prod(shape) // row.block * row.bits // 8
