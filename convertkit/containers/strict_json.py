"""JSON from checkpoints, read strictly, and the one spelling of JSON that convertkit writes.

Python's parser lets through what two readers would understand differently: duplicate keys, ``NaN``,
numbers that overflow to infinity, halves of surrogate pairs, other encodings. All of that is refused here.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from convertkit.errors import refusal, shown

MAX_DEPTH = 64
"""Nesting that no real config needs; deeper files are refused before anything recurses over them."""

MAX_INTEGER = 10**100
"""Integers beyond are refused: nothing is counted in them, and sums of their digits take ever longer."""

SURROGATE = re.compile("[\ud800-\udfff]")
SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class Duplicate:
    """Stands for an object that held one key twice, so that the caller can name the object."""

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        self.key = key


@contextmanager
def paused_gc() -> Iterator[None]:
    """No garbage collection while very many small objects are made; they are all kept, so it finds nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def unique_pairs(pairs: list[tuple[str, Any]]) -> Any:
    """``object_pairs_hook``: the dict, or a ``Duplicate`` naming the first key that occurs twice."""
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return Duplicate(key)
        seen.add(key)
    return made


def parse_json(data: bytes, file: str) -> Any:
    """The value in ``data``; ``file`` names it in errors.

    Raises ``ConvertError`` with ``E_JSON`` (not UTF-8, not JSON, too deep, a number that is not finite or has more
    than a hundred digits, text that no UTF-8 file can hold) or ``E_JSON_DUP_KEY``.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise refusal("E_JSON", "not valid UTF-8", file=file, offset=error.start, fix="save it as UTF-8") from None
    try:
        with paused_gc():
            value = json.loads(text, object_pairs_hook=unique_pairs)
    except RecursionError:
        raise refusal("E_JSON", f"nested deeper than {MAX_DEPTH} levels", file=file) from None
    except ValueError as error:
        raise refusal("E_JSON", f"not JSON: {shown(error)}", file=file, fix="restore the original file") from None
    _check(value, file, SURROGATE_ESCAPE.search(text) is not None)
    return value


def _check(root: Any, file: str, escapes: bool) -> None:
    """Refuse duplicates, numbers out of range and depth, without recursion; with ``escapes`` also lone surrogates."""
    stack: list[tuple[Any, str, int]] = [(root, "", 0)]
    while stack:
        value, key, depth = stack.pop()
        if isinstance(value, Duplicate):
            raise refusal(
                "E_JSON_DUP_KEY",
                f"key '{shown(value.key)}' occurs twice in one object",
                file=file,
                key=value.key,
                fix="remove one of the two; readers disagree about which one counts",
            )
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            raise refusal("E_JSON", f"number of key '{shown(key)}' is not finite", file=file, key=key)
        if type(value) is int and abs(value) > MAX_INTEGER:
            raise refusal("E_JSON", f"number of key '{shown(key)}' has more than 100 digits", file=file, key=key)
        if escapes and any(SURROGATE.search(text) for text in (key, value) if isinstance(text, str)):
            raise refusal("E_JSON", "a text holds half of a surrogate pair", file=file, key=key)
        if depth > MAX_DEPTH:
            raise refusal("E_JSON", f"nested deeper than {MAX_DEPTH} levels", file=file)
        if isinstance(value, dict):
            stack.extend((item, name, depth + 1) for name, item in value.items())
        elif isinstance(value, list):
            stack.extend((item, key, depth + 1) for item in value)


def dump_json(value: Any) -> bytes:
    """``value`` as UTF-8 JSON: two-space indent, sorted keys, one final newline; the same bytes everywhere."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8")


def dump_config(value: Any) -> bytes:
    """A config of other tools: as ``dump_json``, but keys stay in the order in which the source had them."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")
