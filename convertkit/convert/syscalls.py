"""The operating system calls that change the disk, in one place, so that tests can make each of them fail.

Everything under ``convert`` that writes goes through a ``Syscalls`` object. The calls mean what the functions
of ``os`` of the same name mean and raise ``OSError``; ``allocate`` and ``rename`` are the Linux calls that
``os`` lacks (``fallocate(2)``, ``renameat2(2)``).
"""

from __future__ import annotations

import errno
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol

How = Literal["noreplace", "exchange", "plain"]
"""``rename``: fail if the new name exists, swap the two names, or rename(2) as it is."""

UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""What a kernel or a filesystem answers that does not know a call or a flag (NFS, FUSE, macOS)."""

_AT_FDCWD = -100
_FLAGS: dict[How, int] = {"noreplace": 1, "exchange": 2, "plain": 0}
_RENAMEAT2_NUMBERS = {"x86_64": 316, "aarch64": 276, "riscv64": 276}
"""``__NR_renameat2`` for C libraries without a wrapper (Linux ``asm/unistd_64.h``, ``asm-generic/unistd.h``)."""


class Syscalls(Protocol):
    """The calls. Tests count, fail, shorten or kill at any of them."""

    def open(self, path: str, flags: int) -> int: ...
    def close(self, fd: int) -> None: ...
    def pwrite(self, fd: int, data: memoryview, offset: int) -> int: ...
    def allocate(self, fd: int, size_bytes: int) -> None: ...
    def truncate(self, fd: int, size_bytes: int) -> None: ...
    def fsync(self, fd: int) -> None: ...
    def fdatasync(self, fd: int) -> None: ...
    def mkdir(self, path: str) -> None: ...
    def rename(self, old: str, new: str, how: How) -> None: ...
    def link(self, old: str, new: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def rmdir(self, path: str) -> None: ...


@cache
def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _failure(path: str | None = None) -> OSError:
    import ctypes

    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), path)


class Kernel:
    """The real calls. Files are made 0666 and folders 0777, both less the umask."""

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o666)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def allocate(self, fd: int, size_bytes: int) -> None:
        """Reserve the blocks now, so that a full disk shows before the work and no file has holes.

        Not ``os.posix_fallocate``: where the filesystem cannot reserve, glibc writes every block instead.
        """
        if size_bytes == 0 or not hasattr(_libc(), "fallocate"):
            return
        import ctypes

        size, start = ctypes.c_int64(size_bytes), ctypes.c_int64(0)
        while _libc().fallocate(fd, 0, start, size) != 0:
            if ctypes.get_errno() == errno.EINTR:
                continue
            if ctypes.get_errno() in UNSUPPORTED:
                return
            raise _failure()

    def truncate(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        getattr(os, "fdatasync", os.fsync)(fd)

    def mkdir(self, path: str) -> None:
        os.mkdir(path, 0o777)

    def rename(self, old: str, new: str, how: How) -> None:
        if how == "plain":
            os.rename(old, new)
            return
        libc, names = _libc(), (os.fsencode(old), os.fsencode(new))
        if hasattr(libc, "renameat2"):
            failed = libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _FLAGS[how])
        elif platform.system() == "Linux" and platform.machine() in _RENAMEAT2_NUMBERS:
            number = _RENAMEAT2_NUMBERS[platform.machine()]
            failed = libc.syscall(number, _AT_FDCWD, names[0], _AT_FDCWD, names[1], _FLAGS[how])
        else:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), new)
        if failed:
            raise _failure(new)

    def link(self, old: str, new: str) -> None:
        os.link(old, new, follow_symlinks=False)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)


KERNEL: Syscalls = Kernel()


def sync_folder(syscalls: Syscalls, path: str) -> None:
    """Make the names in a folder durable. Filesystems that cannot fsync a folder (EINVAL) keep them anyway."""
    fd = syscalls.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        syscalls.fsync(fd)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    finally:
        syscalls.close(fd)


def write_all(syscalls: Syscalls, fd: int, data: memoryview, offset: int) -> None:
    """``pwrite`` until every byte is written; a call that writes nothing is an I/O error."""
    while data.nbytes:
        count = syscalls.pwrite(fd, data, offset)
        if count <= 0:
            raise OSError(errno.EIO, "the file takes no more bytes")
        data, offset = data[count:], offset + count


def write_new(syscalls: Syscalls, path: str, data: bytes) -> None:
    """Write a small file that must not exist yet. It is not fsynced here."""
    fd = syscalls.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        write_all(syscalls, fd, memoryview(data), 0)
    finally:
        syscalls.close(fd)


def remove_tree(syscalls: Syscalls, path: Path) -> None:
    """Remove a folder or file. Links are removed, never followed. Raises ``OSError``."""
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        syscalls.unlink(str(path))
        return
    for entry in sorted(os.scandir(path), key=lambda item: item.name):
        remove_tree(syscalls, Path(entry.path))
    syscalls.rmdir(str(path))
