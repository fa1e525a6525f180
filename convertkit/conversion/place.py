"""Where an output goes, and every reason to refuse that place, found before any weight is read.

Files and folders are compared by device and inode, so another spelling of a path, a symbolic link, a bind
mount or a hard link does not hide that the output is the source.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Literal

from convertkit.errors import ConvertError, refusal, shown

Kind = Literal["folder", "file"]
Identity = tuple[int, int]

NAME_MAX_BYTES = 255
"""Longest file name on Linux filesystems."""

SPACE_PERCENT = 101
"""The output's size is exact; the hundredth more covers block rounding and the folders' own blocks."""


MAX_LOOKED_AT = 10_000
"""Entries of an existing output that are compared with the source when it is refused anyway: it may be a whole disk."""


@dataclass(frozen=True, slots=True)
class Place:
    """A checked destination. ``out`` has no symbolic link in it.

    ``existing``: nothing is there, an ``empty`` folder is (it is replaced), or an ``old`` output is that
    ``--force`` allows to replace.
    """

    out: Path
    kind: Kind
    existing: Literal["absent", "empty", "old"] = "absent"

    @property
    def parent(self) -> Path:
        return self.out.parent

    @property
    def lock(self) -> Path:
        return self.parent / f".{self._stem}.lock"

    @property
    def partial_prefix(self) -> str:
        return f".{self._stem}.partial-"

    def partial(self, fingerprint: str) -> Path:
        """The staging folder of the plan with this fingerprint: the same for every run of it, so found again."""
        return self.parent / (self.partial_prefix + sha256(fingerprint.encode()).hexdigest()[:12])

    @property
    def _stem(self) -> str:
        name = os.fsencode(self.out.name)
        fits = len(name) + len(".partial-") + 13 <= NAME_MAX_BYTES
        return self.out.name if fits else sha256(name).hexdigest()[:32]


def check_place(out: Path, sources: Sequence[Path], *, force: bool, kind: Kind = "folder") -> Place:
    """The place to write ``out``, or a refusal. Reads no file and changes nothing.

    An empty folder counts as absent: nothing in it can be lost, and ``mktemp -d`` makes one. A symbolic link
    is followed, so with ``force`` what it leads to is replaced and the link stays.

    Raises ``ConvertError``: E_OUT_IS_IN, E_OUT_INSIDE_IN, E_OUT_EXISTS (status 5), E_OUT_PARENT (status 4).
    """
    real = Path(os.path.realpath(out))
    for source in sources:
        _refuse_alias(real, source, force)
    existing = _existing(out, real, force, kind)
    _refuse_parent(real.parent)
    return Place(real, kind, existing)


def check_space(place: Place, needed_bytes: int, *, reuse: str | None = None) -> None:
    """Refuse a disk that is known to be too small: ``needed_bytes`` and 1 % against what is free (``f_bavail``).

    ``reuse`` is the fingerprint of a plan to be resumed: the blocks of its staged files are counted as free.
    Raises ``ConvertError`` E_NO_SPACE (status 4).
    """
    space = os.statvfs(place.parent)
    if space.f_blocks == 0:  # the filesystem does not say (some FUSE ones)
        return
    staged = _allocated_bytes(place.partial(reuse)) if reuse is not None else 0
    free = space.f_bavail * space.f_frsize + staged
    needed = needed_bytes * SPACE_PERCENT // 100
    if needed > free:
        raise refusal(
            "E_NO_SPACE", f"the output needs {needed:,} bytes and the disk of '{shown(place.parent)}' has {free:,}",
            fix="free some space or write elsewhere", data={"needed_bytes": needed, "free_bytes": free},
        )  # fmt: skip


def _allocated_bytes(folder: Path) -> int:
    sizes = [os.lstat(path).st_blocks * 512 for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return sum(sizes)


def _identity(path: Path | str) -> Identity | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _lineage(path: Path) -> set[Identity]:
    """The path and the folders above it that exist."""
    found = (_identity(step) for step in (path, *path.parents))
    return {item for item in found if item is not None}


def _tree(folder: Path) -> Iterator[tuple[str, Identity, bool]]:
    """Every entry in a folder as (path, identity, is a folder); links to folders are not entered."""
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(base, name)
            identity = _identity(path)
            if identity is not None:
                yield path, identity, name in folders


def _refuse_alias(out: Path, source: Path, force: bool) -> None:
    """Refuse equality of the two, of any file in them, and one inside the other."""
    source = Path(os.path.realpath(source))
    if _identity(source) is None:  # not there: opening it says so
        return
    if out == source or _identity(out) == _identity(source):
        raise _is_in(out, "is the source")
    below_source = list(_tree(source)) if source.is_dir() else []
    below_out = list(islice(_tree(out), None if force else MAX_LOOKED_AT)) if out.is_dir() else []
    if source.is_dir() and _lineage(out) & _folders(source, below_source):
        raise _inside(out, source, "the output lies inside the source")
    if out.is_dir() and _lineage(source if source.is_dir() else source.parent) & _folders(out, below_out):
        raise _inside(out, source, "the source lies inside the output")
    source_files = {identity for _, identity, folder in below_source if not folder} | {_identity(source)}
    for path, identity, folder in below_out:
        if not folder and identity in source_files:
            raise _is_in(out, f"shares the file '{shown(os.path.relpath(path, out))}' with the source")
    if out.is_file() and _identity(out) in source_files:
        raise _is_in(out, "is a file of the source")


def _folders(root: Path, below: list[tuple[str, Identity, bool]]) -> set[Identity]:
    own = {item for item in [_identity(root)] if item is not None}
    return own | {identity for _, identity, folder in below if folder}


def _is_in(out: Path, what: str) -> ConvertError:
    return refusal("E_OUT_IS_IN", f"the output '{shown(out.name)}' {what}", fix="write to a new folder")


def _inside(out: Path, source: Path, what: str) -> ConvertError:
    return refusal(
        "E_OUT_INSIDE_IN", f"{what} ('{shown(out.name)}', '{shown(source.name)}')",
        fix="write beside the source; to publish both in one folder, move the finished folder in and run"
        " `convertkit manifest` on the whole",
    )  # fmt: skip


def _existing(out: Path, real: Path, force: bool, kind: Kind) -> Literal["absent", "empty", "old"]:
    try:
        status = os.lstat(real)
    except OSError:
        if os.path.lexists(out) and not force:
            raise _exists(out, "is a symbolic link that leads nowhere", "remove the link, or use --force") from None
        return "absent"
    if real == real.parent:
        raise _exists(out, "is the root of the filesystem", "write to a new folder")
    right_kind = stat.S_ISDIR(status.st_mode) if kind == "folder" else stat.S_ISREG(status.st_mode)
    if not right_kind:
        raise _exists(out, f"exists and is not a {kind}", "choose another name")
    if kind == "folder":
        if os.path.ismount(real):
            raise _exists(out, "is a mount point and cannot be replaced", "write to a folder inside it")
        if not os.listdir(real):
            return "empty"
    if not force:
        raise _exists(out, "exists", "choose another name, or replace it with --force")
    _refuse_mounts(real)
    return "old"


def _refuse_mounts(folder: Path) -> None:
    """A mounted folder in an old output can be neither carried over nor removed."""
    device = os.lstat(folder).st_dev
    for base, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(base, name)
            if not os.path.islink(path) and (os.lstat(path).st_dev != device or os.path.ismount(path)):
                raise _exists(folder, f"holds the mounted folder '{shown(name)}'", "unmount it first")


def _exists(out: Path, what: str, fix: str) -> ConvertError:
    return refusal("E_OUT_EXISTS", f"the output '{shown(out.name)}' {what}", fix=fix)


def _refuse_parent(parent: Path) -> None:
    if not parent.is_dir():
        raise refusal("E_OUT_PARENT", f"there is no folder '{shown(parent)}' to write in", fix=f"mkdir -p {parent}")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise refusal("E_OUT_PARENT", f"the folder '{shown(parent)}' is not writable", fix="write elsewhere")
