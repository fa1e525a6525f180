"""A reading position in the header of a GGUF file that never goes past its end and never trusts a number in it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from convertkit.containers.files import read_exactly
from convertkit.containers.gguf_values import (
    KINDS,
    NUMBER_FORMATS,
    NUMBER_STORAGE,
    Arrays,
    Numbers,
    Scalar,
    Strings,
    Value,
)
from convertkit.errors import ConvertError, refusal

MAX_HEADER_BYTES = 256 * 1024 * 1024
MAX_LENGTH = 1 << 30
"""Longest string in bytes and longest array in elements, as in ggml 0.25.3 (``GGUF_MAX_STRING_LENGTH``)."""
MAX_NESTING = 2
STEP_BYTES = 1 << 20


@dataclass
class Cursor:
    """Reads little-endian values from byte ``position`` on; ``name`` is the file's in errors.

    The header's length is stated nowhere, so bytes are fetched as they are needed, each time twice as many.
    """

    fd: int
    size: int
    name: str
    position: int = 0
    _held: bytes = field(default=b"", repr=False)

    def fault(self, code: str, message: str, **place: Any) -> ConvertError:
        place.setdefault("offset", self.position)
        return refusal(code, message, file=self.name, **place)

    def need(self, count: int, key: str | None = None) -> None:
        """Hold ``count`` bytes from the position on. Raises E_GGUF_TRUNCATED, E_GGUF_HEADER_TOO_LARGE."""
        end = self.position + count
        if end > self.size:
            message = f"{count:,} bytes are needed, the file has {self.size - self.position:,} more"
            raise self.fault("E_GGUF_TRUNCATED", message, key=key, fix="fetch the file again")
        if end <= len(self._held):
            return
        if end > MAX_HEADER_BYTES:
            raise self.fault(
                "E_GGUF_HEADER_TOO_LARGE", f"the header is longer than {MAX_HEADER_BYTES:,} bytes", key=key
            )
        until = min(self.size, MAX_HEADER_BYTES, max(end, STEP_BYTES, 2 * len(self._held)))
        self._held += read_exactly(self.fd, len(self._held), until - len(self._held), self.name)

    def take(self, count: int, key: str | None = None) -> bytes:
        self.need(count, key)
        self.position += count
        return self._held[self.position - count : self.position]

    def unpack(self, form: str, key: str | None = None) -> tuple[Any, ...]:
        return struct.unpack(form, self.take(struct.calcsize(form), key))

    def string(self, key: str | None = None, limit: int = MAX_LENGTH, code: str = "E_GGUF_STRING") -> str:
        """A string of at most ``limit`` bytes. Raises ``code`` if it is longer, E_GGUF_STRING, E_GGUF_UTF8."""
        (length,) = self.unpack("<Q", key)
        if length > MAX_LENGTH:
            raise self.fault("E_GGUF_STRING", f"a string of {length:,} bytes; the limit is {MAX_LENGTH:,}", key=key)
        if length > limit and length <= self.size - self.position:
            raise self.fault(code, f"a string of {length:,} bytes; the limit is {limit:,}", key=key)
        data = self.take(length, key)
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            shown_key = key if key is not None else data.decode(errors="backslashreplace")
            raise self.fault("E_GGUF_UTF8", "the string is not valid UTF-8", key=shown_key,
                             offset=self.position - length + error.start) from None  # fmt: skip

    def value(self, key: str) -> Value:
        """A typed value. Raises E_GGUF_TYPE, E_GGUF_BOOL, E_GGUF_ARRAY and those of ``string``."""
        kind = self._kind(key)
        if kind == "array":
            return self._array(key, 1)
        if kind == "str":
            return Scalar(kind, self.string(key))
        if kind == "bool":
            (flag,) = self.unpack("<B", key)
            if flag > 1:
                raise self.fault("E_GGUF_BOOL", f"a truth value of {flag}", key=key)
            return Scalar(kind, bool(flag))
        return Scalar(kind, self.unpack(NUMBER_FORMATS[kind], key)[0])

    def _kind(self, key: str) -> str:
        number = int(self.unpack("<I", key)[0])
        if number >= len(KINDS):
            raise self.fault("E_GGUF_TYPE", f"value type {number} is unknown", key=key)
        return KINDS[number]

    def _array(self, key: str, depth: int) -> Numbers | Strings | Arrays:
        kind = self._kind(key)
        (count,) = self.unpack("<Q", key)
        if count > MAX_LENGTH:
            raise self.fault("E_GGUF_ARRAY", f"an array of {count:,} elements; the limit is {MAX_LENGTH:,}", key=key)
        if kind == "array":
            if depth == MAX_NESTING:
                raise self.fault("E_GGUF_ARRAY", f"arrays are nested more than {MAX_NESTING} deep", key=key)
            self._room(count, 12, key)
            inner = [self._array(key, depth + 1) for _ in range(count)]
            return Arrays(tuple(item for item in inner if not isinstance(item, Arrays)))
        if kind == "str":
            return self._strings(count, key)
        storage = np.dtype(NUMBER_STORAGE[kind])
        items = np.frombuffer(self.take(count * storage.itemsize, key), dtype=storage)
        if kind == "bool" and (items > 1).any():
            raise self.fault("E_GGUF_BOOL", "a truth value other than 0 and 1", key=key)
        return Numbers(kind, items)

    def _room(self, count: int, least_bytes: int, key: str) -> None:
        """Refuse a count that the rest of the file cannot hold before any of it is read."""
        if count * least_bytes > self.size - self.position:
            raise self.fault("E_GGUF_TRUNCATED", f"{count:,} elements do not fit in the rest of the file", key=key)

    def _strings(self, count: int, key: str) -> Strings:
        self._room(count, 8, key)
        first = self.position
        done = 0
        while done < count:
            self.need(8, key)
            position, done, fault = _scan_strings(self._held, self.position, done, count)
            if position == self.position and not fault:
                (length,) = struct.unpack_from("<Q", self._held, position)
                if length > MAX_LENGTH:
                    raise self.fault(
                        "E_GGUF_STRING", f"a string of {length:,} bytes; the limit is {MAX_LENGTH:,}", key=key
                    )
                self.need(8 + length, key)
            self.position = position
            if fault:
                raise self.fault("E_GGUF_UTF8", f"string {done} is not valid UTF-8", key=key)
        return Strings(count, self._held[first : self.position])


MAX_BATCH = 1 << 16
"""Strings that are looked at together: empty ones cost memory that the file does not have."""


def _scan_strings(held: bytes, position: int, done: int, count: int) -> tuple[int, int, bool]:
    """Step over the strings that lie whole in ``held``: the new position, how many are done, and bad UTF-8 if met."""
    unpack_from = struct.Struct("<Q").unpack_from
    last = len(held) - 8
    strings: list[bytes] = []
    left = min(count - done, MAX_BATCH)
    end = position
    while len(strings) < left and end <= last:
        start = end + 8
        after = start + unpack_from(held, end)[0]
        if after - 8 > last:
            break
        strings.append(held[start:after])
        end = after
    try:
        b"\0".join(strings).decode()  # a zero byte ends any character, so this is sound only if each string is
    except UnicodeDecodeError:
        sound = next(place for place, string in enumerate(strings) if not _is_utf8(string))
        return position + sum(8 + len(string) for string in strings[:sound]), done + sound, True
    return end, done + len(strings), False


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
