"""Replacing the few small files of a release one by one, each whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from convertkit.conversion.failures import write_failure
from convertkit.conversion.syscalls import KERNEL, Syscalls, sync_folder, write_all
from convertkit.release.paths import OWN_FILES


def _partial_name(name: str) -> str:
    """Name of a file while it is written; one that a killed run left is never listed and is written over."""
    return f".{name}.partial"


PARTIAL_NAMES = frozenset(_partial_name(name) for name in OWN_FILES)


def replace_files(root: Path, contents: Mapping[str, bytes], syscalls: Syscalls = KERNEL) -> None:
    """Write ``contents`` (name to bytes) into ``root`` in the given order: write beside, fsync, rename.

    A name that is a link is replaced itself; what it points to is left alone. Raises ``E_NO_SPACE`` or ``E_WRITE``
    with every file still whole, those before the failing one new, the others old.
    """
    for name, data in contents.items():
        partial = root / _partial_name(name)
        try:
            _write(partial, data, syscalls)
            syscalls.rename(str(partial), str(root / name), "plain")
        except OSError as error:
            with contextlib.suppress(OSError):
                syscalls.unlink(str(partial))
            raise write_failure(error, root / name, len(data)) from None
    _sync(root, syscalls)


def remove_file(root: Path, name: str, syscalls: Syscalls = KERNEL) -> None:
    """Remove a file if it is there; raises ``E_WRITE``."""
    try:
        syscalls.unlink(str(root / name))
    except FileNotFoundError:
        return
    except OSError as error:
        raise write_failure(error, root / name) from None
    _sync(root, syscalls)


def _sync(root: Path, syscalls: Syscalls) -> None:
    try:
        sync_folder(syscalls, str(root))
    except OSError as error:
        raise write_failure(error, root) from None


def _write(path: Path, data: bytes, syscalls: Syscalls) -> None:
    with contextlib.suppress(FileNotFoundError):
        syscalls.unlink(str(path))
    fd = syscalls.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        write_all(syscalls, fd, memoryview(data), 0)
        syscalls.fsync(fd)
    finally:
        syscalls.close(fd)
