"""What an old output holds besides what is written anew goes along when it is replaced (``--force``)."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from convertkit.containers.files import read_small
from convertkit.containers.folder import NOT_SIDE_FILES
from convertkit.containers.strict_json import parse_json
from convertkit.conversion.failures import write_failure
from convertkit.conversion.place import Place
from convertkit.conversion.staging import Staging
from convertkit.conversion.syscalls import UNSUPPORTED, Syscalls
from convertkit.errors import ConvertError, Finding, finding, shown

SUMS = "SHA256SUMS"
MANIFEST = "MANIFEST.json"
CARRIED_KEY = "carried_over"
"""Parameter of a manifest's plan: files that were the user's and went along when the output was replaced."""


@dataclass(frozen=True, slots=True)
class Carried:
    """Files of an old output that are kept in the new one, or gone with it (relative names, sorted by folder)."""

    carried: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


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
    known = staging.old_names = set()
    try:
        for name, is_folder in entries(old):
            target = staging.files / name
            if is_folder:
                continue
            known.add(name)
            if _is_ours(name) or name in listed or os.path.lexists(target):
                removed.append(name)
            else:
                _make_folders(staging.syscalls, old, staging.files, name)
                link_or_copy(staging.syscalls, old / name, target)
                carried.append(name)
    except OSError as error:
        raise write_failure(error, staging.files) from error
    for code, names, what in (("W_CARRIED", carried, "carried over"), ("W_REPLACED", removed, "replaced or removed")):
        if names:
            message = f"{len(names)} files of the old output are {what}: {_some(names)}"
            staging.findings.append(finding(code, "note", message, data={"files": names}))
    return Carried(tuple(carried), tuple(removed))


def leftovers(place: Place) -> frozenset[str]:
    """The user's own files and other entries of an old output, which ``carry_over`` will bring along unless the new
    output has the same name. Raises ``ConvertError`` E_WRITE."""
    if place.existing != "old" or place.kind != "folder":
        return frozenset()
    listed = _listed(place.out)
    try:
        found = [name for name, is_folder in entries(place.out) if not is_folder]
    except OSError as error:
        raise write_failure(error, place.out) from error
    return frozenset(name for name in found if not _is_ours(name) and name not in listed)


def _some(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shown(name) for name in names[:most]) + more


def entries(root: Path) -> Iterator[tuple[str, bool]]:
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
    kept: set[str] = set()
    with suppress(OSError, ConvertError):
        document = parse_json(read_small(folder, MANIFEST), MANIFEST)
        rows = document.get("files") if isinstance(document, dict) else None
        paths = [row.get("path") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        names.update(path for path in paths if isinstance(path, str))
        kept = _carried_before(document)
    with suppress(OSError, ConvertError, UnicodeDecodeError):
        for line in read_small(folder, SUMS).decode().splitlines():
            match = re.fullmatch(r"[0-9A-Fa-f]{64} [ *](.+)", line)
            if match:
                names.add(os.path.normpath(match[1]))
    return names - kept


def _carried_before(document: object) -> set[str]:
    """Listed files that an earlier ``--force`` carried over: they stay the user's."""
    found = document
    for key in ("plan", "parameters", CARRIED_KEY):
        found = found.get(key) if isinstance(found, dict) else None
    return {name for name in found if isinstance(name, str)} if isinstance(found, list) else set()


def _make_folders(syscalls: Syscalls, old: Path, new: Path, name: str) -> None:
    """The folders of ``name`` in ``new``, with the modes they have in ``old``."""
    for parent in reversed(Path(name).parents[:-1]):
        if not (new / parent).is_dir():
            syscalls.mkdir(str(new / parent))
            with suppress(OSError):
                os.chmod(new / parent, os.stat(old / parent).st_mode & 0o7777)


def link_or_copy(syscalls: Syscalls, old: Path, new: Path) -> None:
    """Give a file a second name, or copy it where the filesystem has no hard links. Raises ``OSError``."""
    try:
        syscalls.link(str(old), str(new))
    except OSError as error:
        if error.errno not in (*UNSUPPORTED, errno.EPERM, errno.EMLINK, errno.EXDEV):
            raise
        if not (old.is_symlink() or old.is_file()):  # a FIFO or socket holds nothing
            return
        shutil.copy2(old, new, follow_symlinks=False)


def rescue(staging: Staging) -> Iterator[Finding]:
    """Move what was put into the old output after ``carry_over`` looked into the new one, before the old is removed.

    Nothing is replaced. Raises ``OSError`` if something cannot be moved: then the old output must stay.
    """
    old, new = staging.files, staging.place.out
    late = [name for name, is_folder in entries(old) if not is_folder and name not in (staging.old_names or ())]
    for name in late:
        _make_folders(staging.syscalls, old, new, name)
        staging.syscalls.rename(str(old / name), str(new / name), "noreplace")
    if late:
        message = f"files were put into the output while it was replaced; they are kept, unlisted: {_some(late)}"
        fix = "run `convertkit manifest` to list them, or remove them"
        yield finding("W_CARRIED", "warning", message, fix=fix, data={"files": late})
