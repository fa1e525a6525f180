"""Changing the headers and small files of a checkpoint where it lies: journaled, and old or new after any end.

Beside the files a change makes one folder::

    .convertkit-edit.new/    being written: nothing has begun, it is simply removed
    .convertkit-edit/        edit.json and the bytes of every header and small file, before and after, fsynced
    .convertkit-edit.done/   all is done, it is simply removed
    .convertkit-edit.spare   a file that is about to take the name of another

From the rename to ``.convertkit-edit`` on the change can be finished, or taken back, from the journal alone: a
weight file has one of two sizes, which says whether its payload has been moved, and its header is written whole
again. Payload bytes are never written; they are moved by the filesystem, or copied to a new file that takes the
name of the old one in one step. What is not covered: power loss while the filesystem moves blocks, which Linux does
not promise to be one step; compare tensor digests (``--prove``, ``verify``) after that.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from convertkit.checkpoint import WeightFile
from convertkit.containers.files import read_small
from convertkit.containers.folder import EDIT_FOLDER
from convertkit.conversion.edit_journal import (
    DONE,
    FRESH,
    Edit,
    FileEdit,
    HeaderEdit,
    Side,
    broken,
    close_journal,
    read_journal,
    write_journal,
    write_synced,
)
from convertkit.conversion.exclusive import locked
from convertkit.conversion.failures import write_failure
from convertkit.conversion.stop import Stop
from convertkit.conversion.syscalls import (
    KERNEL,
    UNSUPPORTED,
    Syscalls,
    copy_step,
    remove_tree,
    sync_folder,
    write_all,
)
from convertkit.errors import ConvertError, Finding, finding, refusal, shown

COPY_BYTES = 16 << 20
SPARE = EDIT_FOLDER + ".spare"


@dataclass(frozen=True, slots=True)
class Moved:
    """How the header of a file was written: ``in place``, ``blocks moved`` or ``rewritten``."""

    name: str
    method: str


def header_room(file: WeightFile, block_bytes: int, slack_bytes: int, text_bytes: int) -> int:
    """Length of a new header of ``text_bytes`` of JSON and ``slack_bytes`` of room: the old one if that is long enough,
    else as many whole blocks more as are needed, so that the payload can be moved without being written."""
    old = file.data_start - 8
    missing = max(0, text_bytes + slack_bytes - old)
    return old + -(-missing // block_bytes) * block_bytes


def carry_out_edit(
    root: Path, edit: Edit, stop: Stop, check: Callable[[], None], syscalls: Syscalls = KERNEL
) -> tuple[Moved, ...]:
    """Make the change, then ``check`` it; after an error of either everything is as it was. The caller holds
    ``locked``.

    Raises ``ConvertError``: E_NO_SPACE, E_WRITE, E_INTERRUPTED."""
    try:
        write_journal(root, edit, syscalls)
    except OSError as error:
        with suppress(OSError):  # nothing has been changed yet
            remove_tree(syscalls, root / FRESH)
        with suppress(OSError):
            if os.path.lexists(root / EDIT_FOLDER):
                close_journal(root, syscalls)
        raise write_failure(error, root) from error
    try:
        moved = _bring(root, edit, "new", stop, syscalls)
        check()
    except (OSError, ConvertError) as error:
        _take_back(root, edit, syscalls)
        if isinstance(error, OSError):
            raise write_failure(error, root) from error
        raise
    try:
        close_journal(root, syscalls)
    except OSError as error:  # the change is whole; the next run tidies up
        raise write_failure(error, root) from error
    return moved


def _take_back(root: Path, edit: Edit, syscalls: Syscalls) -> None:
    """Everything as it was. Raises E_EDIT_UNFINISHED, and leaves the journal, where that fails too."""
    try:
        _bring(root, edit, "old", Stop(), syscalls)
        close_journal(root, syscalls)
    except OSError as error:
        message = f"the change failed and cannot be taken back now: {error.strerror}"
        fix = f"mend that, then run `convertkit fix-keys {shown(root)} --in-place --undo`"
        raise refusal("E_EDIT_UNFINISHED", message, file=EDIT_FOLDER, fix=fix) from error


def recover(root: Path, side: Side, syscalls: Syscalls = KERNEL) -> tuple[Finding, ...]:
    """Bring what a killed run left to its end: to the ``new`` state, or back to the ``old``. The caller holds
    ``locked``. Raises E_EDIT_BROKEN if a file is in neither state."""
    try:
        for name in (FRESH, DONE):
            remove_tree(syscalls, root / name)
        if not os.path.lexists(root / EDIT_FOLDER):
            return ()
        edit = read_journal(root)
        with ExitStack() as locks:
            for folder in dict.fromkeys((root / file.name).parent.resolve() for file in edit.files if file.is_above):
                locks.enter_context(locked(folder))
            _bring(root, edit, side, Stop(), syscalls)
            close_journal(root, syscalls)
    except OSError as error:
        raise write_failure(error, root) from error
    what = "finished" if side == "new" else "taken back"
    return (finding("W_EDIT_RECOVERED", "warning", f"an earlier change in place was interrupted; it is {what} now"),)


def _bring(root: Path, edit: Edit, side: Side, stop: Stop, syscalls: Syscalls) -> tuple[Moved, ...]:
    """Bring every file to one state, whatever state each is in. Doing it twice does no harm."""
    for name in (*(header.name for header in edit.headers), *(file.name for file in edit.files)):
        if os.path.lexists(root / name) and not stat.S_ISREG(os.lstat(root / name).st_mode):
            raise broken(name, "it is no regular file any more")
    for header in edit.headers:
        if not os.path.lexists(root / header.name):
            raise broken(header.name, "the file is gone")
        size = os.stat(root / header.name).st_size
        if size not in (header.size_bytes("old"), header.size_bytes("new")):
            raise broken(header.name, f"the file has {size:,} bytes")
    moved = tuple(_bring_header(root, header, side, stop, syscalls) for header in edit.headers)
    for file in edit.files:
        _bring_file(root, file, side, syscalls)
    for folder in dict.fromkeys((root, *((root / file.name).parent for file in edit.files))):
        sync_folder(syscalls, str(folder))
    return moved


def _spare(path: Path, syscalls: Syscalls) -> Path:
    """A free name beside ``path`` for what is to take its name. The same for every file: a name made from that of a
    file could be too long."""
    spare = path.parent / SPARE
    with suppress(FileNotFoundError):
        syscalls.unlink(str(spare))
    return spare


def _bring_header(root: Path, edit: HeaderEdit, side: Side, stop: Stop, syscalls: Syscalls) -> Moved:
    path, method = root / edit.name, "in place"
    spare = _spare(path, syscalls)
    fd = syscalls.open(str(path), os.O_RDWR)
    try:
        missing = edit.size_bytes(side) - os.fstat(fd).st_size
        if missing:
            try:
                syscalls.shift(fd, missing)
            except OSError as error:
                if error.errno not in UNSUPPORTED:
                    raise
                _rewrite(fd, path, spare, edit, side, stop, syscalls)
                return Moved(edit.name, "rewritten")
            syscalls.fsync(fd)
            method = "blocks moved"
        write_all(syscalls, fd, memoryview(edit.prefix(side)), 0)
        syscalls.fsync(fd)
    finally:
        syscalls.close(fd)
    return Moved(edit.name, method)


def _rewrite(fd: int, path: Path, spare: Path, edit: HeaderEdit, side: Side, stop: Stop, syscalls: Syscalls) -> None:
    """A new file with the other header and a copy of the payload takes the name in one step."""
    source = len(edit.prefix("old" if side == "new" else "new"))
    target = len(edit.prefix(side))
    out = syscalls.open(str(spare), os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        os.fchmod(out, stat.S_IMODE(os.fstat(fd).st_mode))
        syscalls.allocate(out, edit.size_bytes(side))
        syscalls.truncate(out, edit.size_bytes(side))
        write_all(syscalls, out, memoryview(edit.prefix(side)), 0)
        done = 0
        while done < edit.payload_bytes:
            stop.check()
            step = copy_step(source + done, edit.payload_bytes - done, COPY_BYTES)
            done += syscalls.copy_range(fd, source + done, out, target + done, step)
        syscalls.fsync(out)
    except BaseException:
        with suppress(OSError):
            syscalls.unlink(str(spare))
        raise
    finally:
        syscalls.close(out)
    syscalls.rename(str(spare), str(path), "plain")
    sync_folder(syscalls, str(path.parent))


def _bring_file(root: Path, edit: FileEdit, side: Side, syscalls: Syscalls) -> None:
    path, data = root / edit.name, edit.new if side == "new" else edit.old
    if edit.is_above and not _is_either(path, edit):
        return  # the manifest above was written anew in the meantime: it is not ours to change
    if data is None:
        with suppress(FileNotFoundError):
            syscalls.unlink(str(path))
        return
    spare = _spare(path, syscalls)
    mode = os.stat(path).st_mode if os.path.exists(path) else None
    write_synced(spare, data, syscalls)
    if mode is not None:
        os.chmod(spare, stat.S_IMODE(mode))
    syscalls.rename(str(spare), str(path), "plain")


def _is_either(path: Path, edit: FileEdit) -> bool:
    """Whether a file holds what it held before the change, or what it is to hold after it."""
    try:
        found = read_small(path.parent, path.name) if os.path.lexists(path) else None
    except ConvertError:
        return False
    return found in (edit.old, edit.new)
