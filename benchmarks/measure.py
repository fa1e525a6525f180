"""Processes and what stands beside them: seconds, memory, hashing, ``sha256sum``, ``cp``.

Two units: what hashlib needs for SHA-256 in one thread (it uses a processor's SHA instructions where they are), and
what ``sha256sum`` of this machine needs, which is what people run by hand. The former is never the slower by much and
often several times as fast, so a ratio to it is the stricter one.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BLOCK_BYTES = 1 << 20
MIB = 1 << 20


@dataclass(frozen=True)
class Measured:
    """One process: seconds on the wall and of CPU, peak memory in bytes, exit status, its JSON document."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    status: int
    document: Mapping[str, Any] = field(default_factory=dict)


def measure(words: Sequence[str], *, environment: Mapping[str, str] | None = None) -> Measured:
    """Run a command to its end. Its standard output is parsed if it is one JSON document.

    Linux starts a process's peak at that of the process it was forked from, so a benchmark that states peaks imports
    nothing large. Byte code is cached, as that of an installed package is.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        process = subprocess.Popen(words, stdout=output, stderr=errors, cwd=ROOT, env={**given, **(environment or {})})
        _, wait_status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(wait_status)
        output.seek(0)
        errors.seek(0)
        text = output.read()
        if process.returncode not in (0, 1):
            raise SystemExit(
                f"{' '.join(words)}: status {process.returncode}\n{errors.read().decode(errors='replace')}"
            )
    document = json.loads(text) if text.startswith(b"{") else {}
    return Measured(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, process.returncode, document)


def convertkit(*words: str) -> Measured:
    """Run ``convertkit`` with the interpreter that runs this file; stage times are asked for."""
    return measure([sys.executable, "-m", "convertkit", *words], environment={"CONVERTKIT_TIMINGS": "1"})


def generate(kind: str, folder: Path, scale: str, *more: str) -> Measured:
    """Make a drafter in a process of its own, so that its memory is nobody else's."""
    return measure([sys.executable, "-m", "convertkit.demo", kind, str(folder), "--scale", scale, *more])


def copy(source: Path, target: Path) -> Measured:
    """``cp`` of every byte, without the filesystem's help."""
    return measure(["cp", "-r", "--reflink=never", str(source), str(target)])


def files_in(path: Path) -> list[Path]:
    """The file itself, or all files below a folder, sorted."""
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def hash_seconds(paths: Sequence[Path]) -> float:
    """Seconds that hashlib needs for every file below ``paths``, in one thread."""
    buffer = memoryview(bytearray(BLOCK_BYTES))
    start = time.perf_counter()
    for path in (file for given in paths for file in files_in(given)):
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as stream:
            while read := stream.readinto(buffer):
                digest.update(buffer[:read])
    return time.perf_counter() - start


def sha256sum_seconds(paths: Sequence[Path]) -> float:
    """Seconds that ``sha256sum`` needs for every file below ``paths``."""
    made = measure(["sha256sum", *(str(file) for path in paths for file in files_in(path))])
    if made.status:
        raise SystemExit(f"sha256sum: status {made.status}")
    return made.seconds


def prepare_cache(paths: Sequence[Path], cold: bool) -> None:
    """Drop the files from the page cache, or read them into it, once earlier writes have reached the disk."""
    os.sync()
    if not cold:
        hash_seconds(paths)
        return
    for path in (file for given in paths for file in files_in(given)):
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
