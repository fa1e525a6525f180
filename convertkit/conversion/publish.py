"""Publishing: the staged output gets its final name in one step, durable before and after."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from convertkit.conversion.carry import Carried, carry_over, entries, rescue
from convertkit.conversion.failures import write_failure
from convertkit.conversion.staging import Staging
from convertkit.conversion.stop import Stop
from convertkit.conversion.syscalls import UNSUPPORTED, Syscalls, remove_tree, sync_folder
from convertkit.errors import Finding, finding, refusal, shown

__all__ = ["Carried", "Published", "carry_over", "publish"]


@dataclass(frozen=True, slots=True)
class Published:
    """The output is there. ``findings`` say what could not be tidied up; they do not make it any less complete."""

    out: Path
    replaced: bool
    findings: tuple[Finding, ...]


def publish(staging: Staging, stop: Stop) -> Published:
    """Give the staged output its final name; from then on signals are too late. Nothing of staging is left.

    Files and folders are fsynced first, the parent folder after the rename. Raises ``ConvertError``:
    E_OUT_EXISTS (status 5) if something took the name during the run (it is left alone), E_WRITE, E_NO_SPACE.
    """
    place, syscalls = staging.place, staging.syscalls
    if staging.tensors_done != staging.tensors_planned:
        raise refusal("E_INTERNAL", "an unfinished output was about to be published")
    replaces_folder = place.existing == "old" and place.kind == "folder"
    if replaces_folder and staging.old_names is None:
        raise refusal("E_INTERNAL", "an old output was about to be replaced without carrying over")
    source = staging.files if place.kind == "folder" else staging.files / place.out.name
    try:
        _sync_tree(syscalls, staging.files, stop)
        stop.check()
        _rename(staging, source)
        staging.published = True
    except OSError as error:
        raise write_failure(error, place.out) from error
    try:
        sync_folder(syscalls, str(place.parent))
    except OSError as error:
        raise write_failure(error, place.parent) from error
    return Published(place.out, place.existing == "old", tuple(_tidy(staging)))


def _sync_tree(syscalls: Syscalls, root: Path, stop: Stop) -> None:
    """fsync every regular file, then every folder, deepest first."""
    folders = [root]
    for name, is_folder in entries(root):
        stop.check()
        path = root / name
        if is_folder:
            folders.append(path)
        elif path.is_file() and not path.is_symlink():
            fd = syscalls.open(str(path), os.O_RDONLY)
            try:
                syscalls.fsync(fd)
            finally:
                syscalls.close(fd)
    for folder in reversed(folders):
        sync_folder(syscalls, str(folder))


def _rename(staging: Staging, source: Path) -> None:
    place, syscalls = staging.place, staging.syscalls
    old, new = str(source), str(place.out)
    try:
        if place.existing == "old" and os.path.lexists(new):
            # one file over another is one step anyway; folders are swapped
            syscalls.rename(old, new, "exchange" if place.kind == "folder" else "plain")
        elif place.existing == "empty" and os.path.lexists(new):
            syscalls.rename(old, new, "plain")  # rename(2) replaces a folder only while it is empty
        else:
            _rename_new(syscalls, old, new)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR):
            raise refusal(
                "E_OUT_EXISTS", f"'{shown(place.out.name)}' appeared during the run and is left as it is",
                fix="choose another name, or replace it with --force",
            ) from error  # fmt: skip
        raise


def _rename_new(syscalls: Syscalls, old: str, new: str) -> None:
    try:
        syscalls.rename(old, new, "noreplace")
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        # no such flag here (NFS, FUSE): we hold the lock, so only a stranger could take the name in between
        if os.path.lexists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new) from None
        syscalls.rename(old, new, "plain")


def _tidy(staging: Staging) -> Iterator[Finding]:
    """Remove the staging folder and the old output that was swapped into it."""
    try:
        if staging.old_names is not None and staging.files.is_dir():
            yield from rescue(staging)
        remove_tree(staging.syscalls, staging.base)
    except OSError as error:
        yield finding(
            "W_LEFT_BEHIND", "warning",
            f"'{shown(staging.base.name)}' could not be removed ({error.strerror}); the output is complete",
            fix=f"see what is in it, then: rm -r '{staging.base}'",
        )  # fmt: skip
