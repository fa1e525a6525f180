"""Whether a folder may be changed where it lies: nobody else sees its files, writes them, or changes it too."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from convertkit.containers.files import in_hub_cache
from convertkit.containers.folder import EDIT_FOLDER
from convertkit.errors import ConvertError, Finding, finding, refusal, shown


def refuse_shared(root: Path, names: Sequence[str]) -> None:
    """Raise E_NOT_IN_PLACE with every file that others see too: links, second names, files of a hub cache; and
    E_OUT_LOCKED for one that somebody has open for writing."""
    faults = []
    if in_hub_cache(root):
        faults.append(_not_here("the folder belongs to a download cache, whose files are shared by name", None))
    for name in names:
        status = os.lstat(root / name)
        if stat.S_ISLNK(status.st_mode):
            faults.append(_not_here("the file is a symbolic link; what it leads to may be shared", name))
        elif not stat.S_ISREG(status.st_mode):
            faults.append(_not_here("not a regular file", name))
        elif status.st_nlink > 1:
            faults.append(
                _not_here(f"the file has {status.st_nlink} names (hard links), all of which would change", name)
            )
        elif not os.access(root / name, os.W_OK):
            faults.append(finding("E_WRITE", "error", "the file is not writable", file=name))
        elif _has_writer(root / name):
            faults.append(finding("E_OUT_LOCKED", "error", "another process has the file open for writing", file=name))
    if faults:
        raise ConvertError(faults)


def _not_here(message: str, file: str | None) -> Finding:
    return finding("E_NOT_IN_PLACE", "error", message, file=file, fix="write a new output: convertkit fix-keys SRC OUT")


def _has_writer(path: Path) -> bool:
    """Whether the kernel refuses a read lease because somebody writes; False where it gives no leases."""
    try:
        import fcntl

        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (ImportError, OSError):
        return False
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except (AttributeError, OSError) as error:
        return isinstance(error, OSError) and error.errno == errno.EAGAIN
    finally:
        os.close(fd)
    return False


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold the folder against other changes in place. Raises E_OUT_LOCKED, E_NOT_FOUND."""
    import fcntl

    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        fix = "name the folder that holds the weights"
        raise refusal("E_NOT_FOUND", f"not a folder: {shown(root)} ({error.strerror})", fix=fix) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise refusal("E_OUT_LOCKED", "another run is changing this folder in place", fix="wait for it") from None
    finally:
        os.close(fd)


@contextmanager
def locked_above(folder: Path) -> Iterator[None]:
    """``locked`` for a folder whose manifest is to follow a change below it. Raises E_EDIT_UNFINISHED as well."""
    with locked(folder):
        if os.path.lexists(folder / EDIT_FOLDER):
            message = "a change in place of the folder above, whose manifest lists this one, was interrupted"
            fix = f"convertkit fix-keys {shown(folder)} --in-place --recover"
            raise refusal("E_EDIT_UNFINISHED", message, file=EDIT_FOLDER, fix=fix)
        yield
