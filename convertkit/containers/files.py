"""Opening files of an untrusted folder: regular files only, links only inside the folder, nothing blocks."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from convertkit.checkpoint import FileStamp
from convertkit.errors import refusal

MAX_JSON_BYTES = 256 * 1024 * 1024
"""Largest JSON file that is read: an index of a million tensors is far below."""

HUB_PREFIXES = ("models--", "datasets--")
"""How folders of a hub cache begin (huggingface_hub 1.33)."""

MANY_FILES = "raise the limit on open files (ulimit -n), or use fewer, larger shards"


def stamp_of(fd: int) -> FileStamp:
    """Identity, size and mtime of an open file."""
    info = os.fstat(fd)
    return FileStamp(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)


def resolved(root: Path, name: str) -> Path:
    """Real path of ``root/name``; a link may end in ``root`` or, in a hub cache, in the ``blobs`` beside it.

    Raises ``E_NOT_FOUND``, ``E_PATH_LOOP`` or ``E_PATH_ESCAPE``.
    """
    path = root / name
    try:
        real = path.resolve(strict=True)
        home = root.resolve(strict=True)
    except FileNotFoundError:
        raise refusal("E_NOT_FOUND", "no such file", file=name) from None
    except (RuntimeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ELOOP, None):
            raise refusal("E_READ", f"cannot be reached: {error.strerror}", file=name) from None
        raise refusal("E_PATH_LOOP", "symbolic link leads back to itself", file=name) from None
    if real.is_relative_to(home) or _in_hub_blobs(home, real):
        return real
    raise refusal(
        "E_PATH_ESCAPE",
        "symbolic link leads out of the folder",
        file=name,
        fix="put a copy of the file there instead of the link",
    )


def _in_hub_blobs(home: Path, real: Path) -> bool:
    """Hub cache layout: ``models--ORG--NAME/snapshots/REV/FILE`` links to ``models--ORG--NAME/blobs/DIGEST``."""
    cache = _hub_cache(home)
    return cache is not None and real.is_relative_to(cache / "blobs")


def in_hub_cache(folder: Path) -> bool:
    """Whether a folder, links followed, is a snapshot in a hub cache or its ``blobs``."""
    real = folder.resolve()
    return _hub_cache(real) is not None or (real.name == "blobs" and real.parent.name.startswith(HUB_PREFIXES))


def _hub_cache(home: Path) -> Path | None:
    for parent in home.parents:
        if parent.name == "snapshots" and parent.parent.name.startswith(HUB_PREFIXES):
            return parent.parent
    return None


def open_regular(root: Path, name: str) -> int:
    """File descriptor of the regular file ``root/name`` for reading; never blocks on a FIFO or device.

    Raises ``E_NOT_REGULAR`` and ``E_READ`` besides those of ``resolved``.
    """
    real = resolved(root, name)
    try:
        fd = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise refusal("E_NOT_REGULAR", "not a regular file", file=name) from None
        fix = MANY_FILES if error.errno == errno.EMFILE else ""
        raise refusal("E_READ", f"cannot be opened: {error.strerror}", file=name, fix=fix) from None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise refusal("E_NOT_REGULAR", "not a regular file", file=name, fix="replace it by the file itself")


def read_exactly(fd: int, offset: int, size: int, name: str) -> bytes:
    """``size`` bytes from ``offset``; ``E_CHANGED`` if the file became shorter, ``E_READ`` on an I/O error."""
    buffer = bytearray(size)
    read_into(fd, offset, memoryview(buffer), name)
    return bytes(buffer)


def read_into(fd: int, offset: int, buffer: memoryview, name: str) -> None:
    """Fill ``buffer`` from ``offset``; errors as for ``read_exactly``. Thread safe."""
    done = 0
    while done < len(buffer):
        try:
            got = os.preadv(fd, [buffer[done:]], offset + done)
        except OSError as error:
            raise refusal("E_READ", f"read failed: {error.strerror}", file=name, offset=offset + done) from None
        if not got:
            raise refusal("E_CHANGED", "file became shorter while it was read", file=name, offset=offset + done)
        done += got


def read_small(root: Path, name: str, limit: int = MAX_JSON_BYTES) -> bytes:
    """Whole content of a small file; ``E_JSON`` if it is larger than ``limit`` (only JSON is read this way)."""
    fd = open_regular(root, name)
    try:
        size = os.fstat(fd).st_size
        if size > limit:
            raise refusal("E_JSON", f"{size:,} bytes are more than the limit of {limit:,}", file=name)
        return read_exactly(fd, 0, size, name)
    finally:
        os.close(fd)
