"""Storage types of tensors: the rows of the safetensors dtype list.

Names, bit widths and the order in which ``safetensors.save_file`` lays tensors out are those of
safetensors 0.8.0 (``Dtype`` in ``safetensors/src/tensor.rs``; the order was checked against files it wrote).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class DType:
    """One storage type. ``storage`` is the NumPy type that holds its raw little-endian bits."""

    name: str
    bits: int
    rank: int
    storage: str


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

FLOATS = ("BF16", "F16", "F32")
"""Dense float types that a weight may be quantized from or expanded to."""


def elements(shape: tuple[int, ...]) -> int:
    """Number of elements; a scalar ``()`` has one."""
    return prod(shape)


def size_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor in exact integers. Sub-byte tensors are whole bytes (the reader refuses others)."""
    return prod(shape) * DTYPES[dtype].bits // 8
