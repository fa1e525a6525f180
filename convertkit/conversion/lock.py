"""The lock of a destination: one run at a time, told apart from whatever else may have that name."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from convertkit.conversion.failures import write_failure
from convertkit.conversion.place import Place
from convertkit.conversion.syscalls import Syscalls, write_all
from convertkit.errors import ConvertError, refusal, shown


def take_lock(place: Place, syscalls: Syscalls) -> int:
    """An open, locked ``.NAME.lock`` that holds our process id.

    Raises ``ConvertError``: E_OUT_LOCKED, E_OUT_EXISTS for something else of that name (it is left alone), E_WRITE.
    """
    path = str(place.lock)
    _refuse_foreign(place.lock)
    try:
        while True:
            fd = syscalls.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0))
            _lock(place, fd)
            # the run before us unlinks the file before it unlocks: what we locked may have no name any more
            if _is_named(fd, path):
                break
            syscalls.close(fd)
        try:
            syscalls.truncate(fd, 0)
            write_all(syscalls, fd, memoryview(f"{os.getpid()}\n".encode()), 0)
        except BaseException:
            drop_lock(place, fd, syscalls)
            raise
    except OSError as error:
        raise write_failure(error, place.lock) from error
    return fd


def _refuse_foreign(path: Path) -> None:
    """A lock is a small file with a process id: anything else is somebody's, and would be emptied and removed."""
    try:
        ours = stat.S_ISREG(os.lstat(path).st_mode) and re.fullmatch(rb"[0-9]{0,20}\n?", path.read_bytes()[:32])
    except FileNotFoundError:
        return
    except OSError:
        ours = None
    if not ours:
        raise refusal("E_OUT_EXISTS", f"'{shown(path.name)}' is in the way and no lock of convertkit",
                      fix="move it away, or write to another name")  # fmt: skip


def _lock(place: Place, fd: int) -> None:
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise _locked(place, holder) from None
    except BaseException:
        os.close(fd)
        raise


def _locked(place: Place, holder: str) -> ConvertError:
    return refusal(
        "E_OUT_LOCKED", f"another run (process {holder}) is writing '{shown(place.out.name)}'",
        fix="wait for it, or write to another name", data={"pid": holder},
    )  # fmt: skip


def _is_named(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def drop_lock(place: Place, fd: int, syscalls: Syscalls) -> None:
    """Remove the lock file, then let go of it: whoever waits for it sees that its name is gone."""
    with suppress(OSError):
        syscalls.unlink(str(place.lock))
    os.close(fd)
