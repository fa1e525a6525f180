"""Side files: what travels beside the weights, whole and unread. Tokenizers are small, ``.pt`` files need not be."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from convertkit.containers.files import open_regular, stamp_of
from convertkit.conversion.failures import write_failure
from convertkit.conversion.staging import Staging
from convertkit.conversion.stop import Stop
from convertkit.errors import ConvertError, Finding, raise_all, refusal

STEP_BYTES = 16 << 20
"""Most bytes in one system call, so that a signal is heard soon."""


def side_bytes(root: Path, names: Iterable[str]) -> int:
    """Bytes of all side files together. Raises what stands in the way of reading any of them, before work begins:
    the codes of ``open_regular``."""
    total = 0
    faults: list[Finding] = []
    for name in names:
        try:
            fd = open_regular(root, name)
        except ConvertError as error:
            faults.extend(error.findings)
            continue
        total += os.fstat(fd).st_size
        os.close(fd)
    raise_all(faults)
    return total


def copy_side_file(root: Path, name: str, staging: Staging, stop: Stop) -> None:
    """Copy ``root/name`` into the staged output, byte for byte, without holding it in memory.

    A new file is made: what is there may be a hard link to a user's file. ``publish`` makes it durable. Raises
    ``ConvertError``: the codes of ``open_regular``, E_CHANGED, E_NO_SPACE, E_WRITE, E_INTERRUPTED.
    """
    syscalls, path = staging.syscalls, staging.files / name
    source = open_regular(root, name)
    try:
        before = stamp_of(source)
        with suppress(FileNotFoundError):
            syscalls.unlink(str(path))
        target = syscalls.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            done = 0
            while done < before.size_bytes and stamp_of(source).size_bytes > done:
                stop.check()
                done += syscalls.copy_range(source, done, target, done, min(STEP_BYTES, before.size_bytes - done))
        finally:
            syscalls.close(target)
        if stamp_of(source) != before:
            raise refusal("E_CHANGED", "the file changed while it was copied", file=name,
                          fix="run again when nothing writes to the source")  # fmt: skip
    except OSError as error:
        raise write_failure(error, path) from error
    finally:
        os.close(source)
