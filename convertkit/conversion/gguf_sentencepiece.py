"""A sentencepiece model, read without its package.

Format facts: sentencepiece ``sentencepiece_model.proto`` (fields 1.1 piece, 1.2 score, 1.3 type, 3.3 dummy prefix).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from convertkit.errors import refusal

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Token types, the same numbers in sentencepiece and in GGUF."""


def adds_prefix(data: bytes) -> bool | None:
    """False if a sentencepiece model puts no space before a text (``normalizer_spec`` 3, ``add_dummy_prefix`` 3); None
    if it does, which llama.cpp assumes."""
    for field, value in _parsed(data):
        if field == 3 and isinstance(value, bytes) and dict(_parsed(value)).get(3, 1) == 0:
            return False
    return None


def sentencepieces(data: bytes) -> Iterator[tuple[str, float, int]]:
    """Piece, score and type of every entry of a sentencepiece model. Raises ``E_TOKENIZER`` if it is damaged."""
    for field, value in _parsed(data):
        if field == 1 and isinstance(value, bytes):
            row = dict(_parsed(value))
            score, kind, name = row.get(2, bytes(4)), row.get(3, NORMAL), row.get(1, b"")
            if not isinstance(score, bytes) or len(score) != 4 or not isinstance(name, bytes):
                raise _no_model()
            try:
                piece = name.decode()
            except UnicodeDecodeError as error:
                raise _no_model() from error
            yield piece, struct.unpack("<f", score)[0], kind if kind in range(NORMAL, BYTE + 1) else NORMAL


def _no_model() -> Exception:
    return refusal("E_TOKENIZER", "the file is not a sentencepiece model", file="tokenizer.model", fix="fetch it again")


def _parsed(data: bytes) -> Iterator[tuple[int, Any]]:
    try:
        yield from _fields(data)
    except (IndexError, ValueError) as error:
        raise _no_model() from error


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Fields of a protobuf message: numbers as int, the rest as bytes."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == 0:
            value, position = _varint(data, position)
            yield tag >> 3, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError("unknown wire type")
        length = {1: 8, 5: 4}.get(kind, 0)
        if kind == 2:
            length, position = _varint(data, position)
        if position + length > len(data):
            raise ValueError("cut")
        yield tag >> 3, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("number too long")
