"""Strings of a GGUF are looked at many at a time: each must be sound UTF-8 by itself."""

from __future__ import annotations

import struct

import pytest

from convertkit.containers.gguf_cursor import _scan_strings


def held(*strings: bytes) -> bytes:
    return b"".join(struct.pack("<Q", len(string)) + string for string in strings)


def test_whole_strings_are_stepped_over() -> None:
    data = held(b"one", b"", "zw\u00f6lf".encode(), b"\0", b"last")
    assert _scan_strings(data, 0, 0, 5) == (len(data), 5, False)
    assert _scan_strings(data[:-1], 0, 0, 5) == (len(data) - 12, 4, False)
    assert _scan_strings(data, 11, 1, 3) == (len(held(b"one", b"", b"zw\xc3\xb6lf")), 3, False)


@pytest.mark.parametrize(
    "pair", [(b"a\xc3", b"\xb6b"), (b"\xff", b"b"), (b"\xf0\x9f", b"\x98\x80"), (b"\xed\xa0\x80", b"")]
)
def test_the_first_bad_string_is_named(pair: tuple[bytes, bytes]) -> None:
    """A character that is cut in two is bad in both, although the bytes of both in a row are sound."""
    assert _scan_strings(held(b"good", *pair), 0, 7, 10) == (len(held(b"good")), 8, True)
