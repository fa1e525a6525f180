"""SHA256SUMS: read strictly, written in the one form that ``sha256sum --strict -c`` accepts.

Accepted line forms (coreutils 9.1, ``src/digest.c``): ``HEX  PATH``, ``HEX *PATH`` and the BSD tag
``SHA256 (PATH) = HEX``; upper-case digits, CRLF, comments that start with ``#`` and a leading ``./``. Everything
else is refused, where coreutils only warns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from convertkit.errors import ConvertError, Finding, finding, refusal, shown
from convertkit.release.paths import SUMS, path_fault
from convertkit.release.tree import byte_order

GNU_LINE = re.compile(r"(?P<sha256>[0-9A-Fa-f]{64}) [ *](?P<path>.+)", re.DOTALL)
BSD_LINE = re.compile(r"SHA256 \((?P<path>.+)\) = (?P<sha256>[0-9A-Fa-f]{64})", re.DOTALL)

MAX_FAULTS = 50
"""A file that is something else altogether is described by this many of its lines."""


def read_sums(data: bytes, file: str = SUMS) -> dict[str, str]:
    """Path (relative to the folder of the sums file) to lower-case hex digest; ``file`` is the sums file's own path.

    Raises ``ConvertError`` with every fault: ``E_MANIFEST_LINE``, ``E_MANIFEST_PATH``, ``E_MANIFEST_DUP``,
    ``E_MANIFEST_EMPTY``. No path is looked at on disk.
    """
    sums: dict[str, str] = {}
    faults: list[Finding] = []
    lines = data.split(b"\n")
    cut = lines.pop()
    for number, raw in enumerate(lines, start=1):
        line = raw.removesuffix(b"\r")
        if line.startswith(b"#"):
            continue
        fault = _read_line(line, number, file, sums)
        if fault is not None:
            faults.append(fault)
    if cut:
        faults.append(_line_fault(len(lines) + 1, file, "the last line has no line feed; the file may be cut"))
    if faults:
        raise ConvertError(faults[:MAX_FAULTS])
    if not sums:
        raise refusal("E_MANIFEST_EMPTY", "no file is listed, so nothing could be verified", file=file)
    return sums


def _read_line(line: bytes, number: int, file: str, sums: dict[str, str]) -> Finding | None:
    """Add one line to ``sums``, or say what is wrong with it."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        return _line_fault(number, file, "not valid UTF-8")
    match = GNU_LINE.fullmatch(text) or BSD_LINE.fullmatch(text)
    if match is None:
        return _line_fault(number, file, f"not 64 hex digits, two spaces and a path: '{shown(text)}'")
    path = match["path"].removeprefix("./")
    fault = "a list of sums cannot hold its own digest" if path == file.rpartition("/")[2] else path_fault(path)
    if fault is not None:
        return finding(
            "E_MANIFEST_PATH", "error", f"line {number}: {fault}: '{shown(path)}'", file=file,
            fix="list only paths inside the folder, written with /",
        )  # fmt: skip
    if path in sums:
        return finding("E_MANIFEST_DUP", "error", f"line {number}: '{shown(path)}' is listed twice", file=file)
    sums[path] = match["sha256"].lower()
    return None


def _line_fault(number: int, file: str, message: str) -> Finding:
    return finding(
        "E_MANIFEST_LINE", "error", f"line {number}: {message}", file=file, fix="fetch the file again, or write it anew"
    )


def unsafe_names(paths: Iterable[str]) -> list[Finding]:
    """``E_NAME_UNSAFE`` for every path that must not be listed."""
    faults = ((path, path_fault(path)) for path in paths)
    return [
        finding("E_NAME_UNSAFE", "error", fault, file=path, fix="rename the file") for path, fault in faults if fault
    ]


def write_sums(sums: Mapping[str, str]) -> bytes:
    """``HEX  PATH`` lines sorted by the bytes of the path, each ended by a line feed.

    The SHA-256 of these bytes pins the whole release. Raises ``E_NAME_UNSAFE`` for paths that cannot be listed.
    """
    faults = unsafe_names(sums)
    if faults:
        raise ConvertError(faults)
    return "".join(f"{sums[path]}  {path}\n" for path in sorted(sums, key=byte_order)).encode()
