"""How a size is said and read back."""

from __future__ import annotations

import re
from fractions import Fraction

UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(B|kB|MB|GB|TB)")


def size_text(size_bytes: int) -> str:
    """``3848862208`` as ``3.85 GB``: three digits, powers of 1000."""
    unit = next((name for name, factor in reversed(UNITS.items()) if size_bytes >= factor), "B")
    if unit == "B":
        return f"{size_bytes} B"
    value = Fraction(size_bytes, UNITS[unit])
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{float(value):.{digits}f} {unit}"


def size_fits(text: str, size_bytes: int) -> bool:
    """Whether ``1.93 GB`` is ``size_bytes`` to the digits that it states. False for what is no size."""
    match = SIZE.fullmatch(text.strip())
    if match is None:
        return False
    stated, factor = Fraction(match[1]), UNITS[match[2]]
    digits = len(match[1].partition(".")[2])
    return bool(abs(stated * factor - size_bytes) * 2 * 10**digits <= factor)
