"""What lies in a folder, found without opening anything and without following links to folders."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from convertkit.errors import refusal, shown


@dataclass(frozen=True)
class Tree:
    """``files`` are paths of files and of links to files, sorted as bytes; ``odd`` maps every other path (FIFO,
    device, link to a folder) to what it is. Names that are not UTF-8 hold surrogates."""

    files: tuple[str, ...]
    odd: Mapping[str, str]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(sorted((*self.files, *self.odd), key=byte_order))


def byte_order(path: str) -> bytes:
    """Sort key: the bytes of the path, as ``LC_ALL=C sort`` compares."""
    return path.encode("utf-8", "surrogateescape")


def walk(root: Path) -> Tree:
    """Every entry below ``root`` except folders. Raises ``E_NOT_FOUND``, ``E_NOT_REGULAR`` or ``E_READ``."""
    if not root.is_dir():
        code = "E_NOT_REGULAR" if os.path.lexists(root) else "E_NOT_FOUND"
        raise refusal(code, f"not a folder: {shown(root)}", fix="name the folder of the release")
    files: list[str] = []
    odd: dict[str, str] = {}
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(root / folder) as entries:
                found = list(entries)
        except OSError as error:
            raise refusal("E_READ", f"cannot list the folder: {error.strerror}", file=folder or ".") from None
        for entry in found:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                folders.append(path)
            elif entry.is_symlink() and os.path.isdir(
                root / path
            ):  # False for a link to itself, where entry.is_dir fails
                odd[path] = "a link to a folder"
            elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
                files.append(path)
            else:
                odd[path] = "not a regular file"
    return Tree(tuple(sorted(files, key=byte_order)), dict(sorted(odd.items())))
