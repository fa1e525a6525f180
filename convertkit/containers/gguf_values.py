"""Metadata values of GGUF files: typed, compact, and spelled back byte for byte.

Format facts: ggml 0.25.3 ``gguf.h`` and gguf 0.19.0 ``GGUFValueType``. Arrays of numbers are NumPy arrays and
arrays of strings keep their encoded bytes, so that a vocabulary of 250,000 tokens costs little until it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

KINDS: tuple[str, ...] = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "array", "u64", "i64", "f64")
"""Names of the value types, each at its number."""

NUMBER_FORMATS: Mapping[str, str] = {
    "u8": "<B", "i8": "<b", "u16": "<H", "i16": "<h", "u32": "<I", "i32": "<i", "f32": "<f", "bool": "<?",
    "u64": "<Q", "i64": "<q", "f64": "<d",
}  # fmt: skip
NUMBER_STORAGE: Mapping[str, str] = {
    "u8": "|u1", "i8": "|i1", "u16": "<u2", "i16": "<i2", "u32": "<u4", "i32": "<i4", "f32": "<f4", "bool": "|u1",
    "u64": "<u8", "i64": "<i8", "f64": "<f8",
}  # fmt: skip
INTEGER_KINDS = frozenset({"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"})


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number, truth value or string."""

    kind: str
    value: int | float | bool | str


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """An array of numbers or truth values."""

    kind: str
    items: npt.NDArray[Any]

    def __len__(self) -> int:
        return int(self.items.size)

    def tolist(self) -> list[Any]:
        return [bool(item) for item in self.items] if self.kind == "bool" else list(self.items.tolist())


@dataclass(frozen=True, slots=True)
class Strings:
    """An array of strings, still in its encoded form: ``count`` times a 64-bit length and that many bytes of UTF-8."""

    count: int
    raw: bytes

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[str]:
        position = 0
        for _ in range(self.count):
            (length,) = struct.unpack_from("<Q", self.raw, position)
            position += 8 + length
            yield self.raw[position - length : position].decode()


@dataclass(frozen=True, slots=True)
class Arrays:
    """An array of arrays. ggml reads none; the format allows them."""

    items: tuple[Numbers | Strings, ...]

    def __len__(self) -> int:
        return len(self.items)


Value = Scalar | Numbers | Strings | Arrays


def u32(value: int) -> Scalar:
    return Scalar("u32", value)


def f32(value: float) -> Scalar:
    return Scalar("f32", float(np.float32(value)))


def truth(value: bool) -> Scalar:
    return Scalar("bool", bool(value))


def text(value: str) -> Scalar:
    return Scalar("str", value)


def numbers(kind: str, items: Iterable[float]) -> Numbers:
    return Numbers(kind, np.array(list(items), dtype=NUMBER_STORAGE[kind]))


def strings(items: Sequence[str]) -> Strings:
    return Strings(len(items), b"".join(_string(item) for item in items))


def plain(value: Value) -> Any:
    """The value as Python objects."""
    if isinstance(value, Scalar):
        return value.value
    if isinstance(value, Numbers):
        return value.tolist()
    return list(value) if isinstance(value, Strings) else [plain(item) for item in value.items]


def same(a: Value, b: Value) -> bool:
    """Whether two values have the same types and bits."""
    return encode_value(a) == encode_value(b)


def _string(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def encode_value(value: Value) -> bytes:
    """Type and payload as they stand in a file."""
    if isinstance(value, Scalar):
        head = struct.pack("<I", KINDS.index(value.kind))
        if isinstance(value.value, str):
            return head + _string(value.value)
        return head + struct.pack(NUMBER_FORMATS[value.kind], value.value)
    return struct.pack("<I", KINDS.index("array")) + _encode_items(value)


def _encode_items(value: Numbers | Strings | Arrays) -> bytes:
    if isinstance(value, Numbers):
        data = np.ascontiguousarray(value.items, dtype=NUMBER_STORAGE[value.kind]).tobytes()
        return struct.pack("<IQ", KINDS.index(value.kind), len(value)) + data
    if isinstance(value, Strings):
        return struct.pack("<IQ", KINDS.index("str"), value.count) + value.raw
    return struct.pack("<IQ", KINDS.index("array"), len(value)) + b"".join(_encode_items(item) for item in value.items)


def encode_pair(key: str, value: Value) -> bytes:
    """One key with its type and payload, as they stand in a file."""
    return _string(key) + encode_value(value)
