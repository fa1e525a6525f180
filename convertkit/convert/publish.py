"""Publishing: the staged folder gets its final name in one step, durable before and after.

What an old output holds besides what is written anew goes along (``--force``): see ``carry_over``.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from convertkit.containers.folder import NOT_SIDE_FILES
from convertkit.containers.strict_json import parse_json
from convertkit.convert.failures import write_failure
from convertkit.convert.staging import Staging, remove_tree
from convertkit.convert.stop import Stop
from convertkit.convert.syscalls import UNSUPPORTED, Syscalls, sync_folder
from convertkit.errors import ConvertError, Finding, finding, refusal, shown

SUMS = "SHA256SUMS"
MANIFEST = "MANIFEST.json"
MANIFEST_MAX_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Carried:
    """Files of an old output that are kept in the new one, or gone with it (relative names, sorted by folder)."""

    carried: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Published:
    """The output is there. ``findings`` say what could not be tidied up; they do not make it any less complete."""

    out: Path
    replaced: bool
    findings: tuple[Finding, ...]


def carry_over(staging: Staging) -> Carried:
    """Bring the user's own files of an output that is being replaced into the staging folder.

    Replaced or removed are weights, indexes, config, quantization files, reports and manifests (top level, as
    ``containers.folder.NOT_SIDE_FILES`` lists them), files that the old manifest or ``SHA256SUMS`` lists, and
    files of which the new output has one of the same name. Everything else is carried over: as hard links
    (same bytes, owner, mode and time, no space), as copies where the filesystem has no links. Call it after
    the files of the new output are written and before its manifest is made. Nothing is carried without an old
    output. Raises ``ConvertError`` E_WRITE, E_NO_SPACE.
    """
    old = staging.place.out
    if staging.place.existing != "old" or staging.place.kind != "folder":
        return Carried()
    listed = _listed(old)
    carried: list[str] = []
    removed: list[str] = []
    try:
        for name, is_folder in _entries(old):
            target = staging.files / name
            if is_folder:
                continue
            if _is_ours(name) or name in listed or os.path.lexists(target):
                removed.append(name)
            else:
                _make_folders(staging, name)
                _link_or_copy(staging.syscalls, old / name, target)
                carried.append(name)
    except OSError as error:
        raise write_failure(error, staging.files) from error
    for code, names, what in (("W_CARRIED", carried, "carried over"), ("W_REPLACED", removed, "replaced or removed")):
        if names:
            message = f"{len(names)} files of the old output are {what}: {_some(names)}"
            staging.findings.append(finding(code, "note", message, data={"files": names}))
    return Carried(tuple(carried), tuple(removed))


def _some(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shown(name) for name in names[:most]) + more


def _entries(root: Path) -> Iterator[tuple[str, bool]]:
    """Everything below ``root`` in sorted order, as (relative name, is a folder). Links are not followed."""
    for base, folders, files in os.walk(root, onerror=_raise):
        folders.sort()
        relative = os.path.relpath(base, root)
        links = {name for name in folders if os.path.islink(os.path.join(base, name))}
        for name in sorted((*folders, *files)):
            yield os.path.normpath(os.path.join(relative, name)), name in folders and name not in links


def _raise(error: OSError) -> None:
    raise error


def _is_ours(name: str) -> bool:
    return "/" not in name and any(re.fullmatch(pattern, name) for pattern, _ in NOT_SIDE_FILES)


def _listed(folder: Path) -> set[str]:
    """Names in the old manifest and sums. A manifest that cannot be read lists nothing: then more is carried over."""
    names: set[str] = set()
    with suppress(OSError, ConvertError):
        document = parse_json(_read(folder / MANIFEST), MANIFEST)
        rows = document.get("files") if isinstance(document, dict) else None
        paths = [row.get("path") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        names.update(path for path in paths if isinstance(path, str))
    with suppress(OSError, UnicodeDecodeError):
        for line in _read(folder / SUMS).decode().splitlines():
            match = re.fullmatch(r"[0-9A-Fa-f]{64} [ *](.+)", line)
            if match:
                names.add(os.path.normpath(match[1]))
    return names


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(MANIFEST_MAX_BYTES)


def _make_folders(staging: Staging, name: str) -> None:
    for parent in reversed(Path(name).parents[:-1]):
        target = staging.files / parent
        if not target.is_dir():
            staging.syscalls.mkdir(str(target))
            with suppress(OSError):
                os.chmod(target, os.stat(staging.place.out / parent).st_mode & 0o7777)


def _link_or_copy(syscalls: Syscalls, old: Path, new: Path) -> None:
    try:
        syscalls.link(str(old), str(new))
    except OSError as error:
        if error.errno not in (*UNSUPPORTED, errno.EPERM, errno.EMLINK, errno.EXDEV):
            raise
        if not (old.is_symlink() or old.is_file()):  # a FIFO or socket holds nothing
            return
        shutil.copy2(old, new, follow_symlinks=False)


def publish(staging: Staging, stop: Stop) -> Published:
    """Give the staged output its final name; from then on signals are too late. Nothing of staging is left.

    Files and folders are fsynced first, the parent folder after the rename. Raises ``ConvertError``:
    E_OUT_EXISTS (status 5) if something took the name during the run (it is left alone), E_WRITE, E_NO_SPACE.
    """
    place, syscalls = staging.place, staging.syscalls
    if staging.tensors_done != staging.tensors_planned:
        raise refusal("E_INTERNAL", "an unfinished output was about to be published")
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
    for name, is_folder in _entries(root):
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
        remove_tree(staging.syscalls, staging.base)
    except OSError as error:
        yield finding(
            "W_LEFT_BEHIND", "warning",
            f"'{shown(staging.base.name)}' could not be removed ({error.strerror}); the output is complete",
            fix=f"rm -r '{staging.base}'",
        )  # fmt: skip
