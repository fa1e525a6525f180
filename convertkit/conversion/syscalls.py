"""The operating system calls that change the disk, in one place, so that tests can make each of them fail.

Everything under ``convert`` that writes goes through a ``Syscalls`` object. The calls mean what the functions
of ``os`` of the same name mean and raise ``OSError``; ``allocate``, ``shift`` and ``rename`` are the Linux calls that
``os`` lacks (``fallocate(2)``, ``renameat2(2)``), ``copy_range`` is ``copy_file_range(2)`` that keeps holes.
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
    def copy_range(self, source: int, source_offset: int, fd: int, offset: int, count: int) -> int: ...
    def shift(self, fd: int, size_bytes: int) -> None: ...
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


_COLLAPSE_RANGE, _ZERO_RANGE, _INSERT_RANGE = 0x08, 0x10, 0x20
"""Modes of ``fallocate(2)`` (Linux ``falloc.h``)."""


def _fallocate(fd: int, mode: int, start: int, size_bytes: int) -> bool:
    """``fallocate``; False where kernel or filesystem do not know the mode, or the range does not fit it."""
    import ctypes

    if not hasattr(_libc(), "fallocate"):
        return False
    while _libc().fallocate(fd, mode, ctypes.c_int64(start), ctypes.c_int64(size_bytes)) != 0:
        if ctypes.get_errno() == errno.EINTR:
            continue
        if ctypes.get_errno() in UNSUPPORTED:
            return False
        raise _failure()
    return True


def _hole_bytes(fd: int, offset: int, count: int) -> int:
    """Bytes from ``offset``, at most ``count``, that the file does not store because they are zero."""
    if not hasattr(os, "SEEK_DATA"):
        return 0
    try:
        return min(os.lseek(fd, offset, os.SEEK_DATA) - offset, count)
    except OSError as error:
        return count if error.errno == errno.ENXIO and os.fstat(fd).st_size >= offset + count else 0


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
        if size_bytes:
            _fallocate(fd, 0, 0, size_bytes)

    def truncate(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def copy_range(self, source: int, source_offset: int, fd: int, offset: int, count: int) -> int:
        """Copy up to ``count`` bytes between open files; how many. Shared blocks (reflink) where the filesystem has
        them and the offsets are aligned, no reading where the source has a hole, a plain copy otherwise."""
        hole = _hole_bytes(source, source_offset, count)
        if hole and _fallocate(fd, _ZERO_RANGE, offset, hole):
            return hole
        try:
            copied = os.copy_file_range(source, fd, count, source_offset, offset)
        except OSError as error:
            if error.errno not in (*UNSUPPORTED, errno.EXDEV, errno.EPERM, errno.EBADF):
                raise
            data = os.pread(source, min(count, 4 << 20), source_offset)
            copied = os.pwrite(fd, data, offset) if data else 0
        if copied <= 0:
            raise OSError(errno.EIO, "the source became shorter")
        return copied

    def shift(self, fd: int, size_bytes: int) -> None:
        """Insert so many bytes at the start of a file, or remove them (negative), without moving what follows.

        Whole blocks of the filesystem only. ``OSError`` with an errno of ``UNSUPPORTED`` where it cannot."""
        if not _fallocate(fd, _INSERT_RANGE if size_bytes > 0 else _COLLAPSE_RANGE, 0, abs(size_bytes)):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

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


BLOCK_BYTES = 4096
"""Filesystems (ext4, xfs, btrfs) share and shift whole blocks only, of at least this size: ``FICLONERANGE``,
``FALLOC_FL_INSERT_RANGE``."""


def copy_step(source_offset: int, left: int, most: int) -> int:
    """How many bytes to copy next, so that all but the first and the last piece are whole blocks."""
    over = source_offset % BLOCK_BYTES
    if over:
        return min(BLOCK_BYTES - over, left)
    return min(most, left - left % BLOCK_BYTES or left)


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
