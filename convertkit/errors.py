"""Findings and the one exception that carries them to the user.

A *finding* is anything worth saying about a checkpoint: a stable code, a severity, where it is, and
how to cure it. Code that cannot go on raises ``ConvertError`` with one or more findings; code that can
go on returns findings. Codes, their exit status and their meaning are rows of ``codes.CODES``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from convertkit.codes import CODES

Severity = Literal["error", "warning", "note"]

MAX_SHOWN = 120
"""Names from a file are cut at this many characters in messages."""

MAX_MESSAGE = 2_000
"""Messages that quote what a file says are cut at this many characters."""

MAX_FAULTS = 50
"""Faults of one kind of thing in one file that are listed; a file that is something else altogether has millions."""

MAX_LISTED = 20
"""Names that the data of one finding holds; beside them it holds how many there are."""

_UNSAFE_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def shown(name: object) -> str:
    """A name from an untrusted file as safe text: control, bidi and surrogate characters escaped, cut."""
    text = str(name)
    safe = "".join(
        ch if unicodedata.category(ch) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") else ascii(ch)[1:-1]
        for ch in text[: MAX_SHOWN + 1]
    )
    return safe if len(text) <= MAX_SHOWN else safe[:MAX_SHOWN] + "…"


def plain(message: str) -> str:
    """A message as one safe line: characters that steer a terminal are escaped, what is very long is cut."""
    text = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…"
    return _UNSAFE_TEXT.sub(lambda match: ascii(match[0])[1:-1], text)


def check_text(text: str, what: str) -> None:
    """Raises E_USAGE for words that cannot be written as UTF-8: bytes of a command line that are not UTF-8."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise refusal("E_USAGE", f"{what} is not UTF-8: '{shown(text)}'")


@dataclass(frozen=True, slots=True)
class Where:
    """Place of a finding; ``file`` is relative to the checkpoint folder, ``offset`` in bytes from its start."""

    file: str | None = None
    tensor: str | None = None
    key: str | None = None
    offset: int | None = None

    def __str__(self) -> str:
        parts = [shown(self.file)] if self.file is not None else []
        if self.tensor is not None:
            parts.append(f"tensor '{shown(self.tensor)}'")
        if self.key is not None:
            parts.append(f"key '{shown(self.key)}'")
        if self.offset is not None:
            parts.append(f"byte {self.offset}")
        return ", ".join(parts)

    def as_json(self) -> dict[str, Any]:
        pairs = {"file": self.file, "tensor": self.tensor, "key": self.key, "offset": self.offset}
        return {name: value for name, value in pairs.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found. ``code`` is a row of ``codes.CODES``; ``data`` holds JSON values only."""

    code: str
    severity: Severity
    message: str
    where: Where = Where()
    fix: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        place = str(self.where)
        text = f"{self.code}: {self.message}" + (f" [{place}]" if place else "")
        return text + (f"\n  fix: {self.fix}" if self.fix else "")

    def as_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity,
            "where": self.where.as_json(),
            "message": self.message,
            "fix": self.fix,
            "data": dict(self.data),
        }


def finding(
    code: str,
    severity: Severity,
    message: str,
    *,
    file: str | None = None,
    tensor: str | None = None,
    key: str | None = None,
    offset: int | None = None,
    fix: str = "",
    data: Mapping[str, Any] | None = None,
) -> Finding:
    """A finding with its place spelled as keywords. The code must be a row of ``CODES``."""
    if code not in CODES:
        raise KeyError(f"finding code {code} is not in codes.CODES")
    return Finding(code, severity, plain(message), Where(file, tensor, key, offset), plain(fix), data or {})


class ConvertError(Exception):
    """Work stops here: at least one finding of severity error, and the exit status of the first."""

    def __init__(self, findings: Iterable[Finding], status: int | None = None) -> None:
        self.findings = tuple(findings)
        if not self.findings:
            raise ValueError("ConvertError needs a finding")
        self.status = CODES[self.findings[0].code].status if status is None else status
        super().__init__("\n".join(str(item) for item in self.findings))

    @property
    def code(self) -> str:
        return self.findings[0].code


def refusal(code: str, message: str, *, status: int | None = None, **place: Any) -> ConvertError:
    """A ``ConvertError`` of one finding; keywords as for ``finding``. Use as ``raise refusal(...)``."""
    return ConvertError([finding(code, "error", message, **place)], status)


def raise_all(findings: Iterable[Finding]) -> None:
    """Raise one ``ConvertError`` with all the findings, if there are any."""
    gathered = tuple(findings)
    if gathered:
        raise ConvertError(gathered)
