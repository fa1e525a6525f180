"""Paths of a release: which names can be listed safely, which files are the manifest's own, and globs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from convertkit.containers.safetensors import UNSAFE_IN_NAMES

MANIFEST = "MANIFEST.json"
SUMS = "SHA256SUMS"
ROWS = "MANIFEST.rows.jsonl"
OWN_FILES = (ROWS, MANIFEST, SUMS)
"""Files that ``manifest`` writes, in the order in which it writes them: the sums come last and mark completeness."""

CARD, PAGE = "README.md", "REPORT.html"
"""The model card and the page of all reports, in the root of a release."""

NEVER_LISTED = (".git", ".cache")
"""Folders, at any depth, that belong to tools and not to a release."""

HUB_EXTRAS = (".gitattributes", ".cache/huggingface/*")
"""Globs of the files that a download from the hub adds to a folder; ``verify --hub`` accepts them."""

SIGNATURES = "*.sig"
DRIVE = re.compile(r"[A-Za-z]:")


def path_fault(path: str) -> str | None:
    """Why a path must not be listed or opened, or None. Nothing on disk is looked at."""
    if not path:
        return "the path is empty"
    if path.startswith("/") or DRIVE.match(path):
        return "the path is absolute"
    if "\\" in path:
        return "the path holds a backslash"
    if UNSAFE_IN_NAMES.search(path):
        return "the path holds control, direction or undecodable characters"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "the path has an empty, '.' or '..' part"
    return None


def is_never_listed(path: str) -> bool:
    """Whether the path is, or lies below, a folder of ``NEVER_LISTED``."""
    return any(part in NEVER_LISTED for part in path.split("/"))


def is_signature(path: str) -> bool:
    """Top-level ``*.sig``: signs the sums, so the sums cannot list it."""
    return "/" not in path and fnmatchcase(path, SIGNATURES)


def matches(path: str, globs: Iterable[str]) -> bool:
    """Whether a glob matches the whole path. ``*`` also crosses ``/``; a final ``/`` means everything below.

    This is how ``hf download --include`` reads its patterns (huggingface_hub 1.33, ``utils/_paths.py``), so one
    pattern selects the same files for the download and for its verification.
    """
    return any(fnmatchcase(path, glob + "*" if glob.endswith("/") else glob) for glob in globs)


def selected(path: str, only: Iterable[str]) -> bool:
    """Whether ``--only`` patterns choose a path: one matches it and none of those written with ``!`` does.

    With nothing but ``!`` patterns, or with none, everything else is chosen.
    """
    wanted = [glob for glob in only if not glob.startswith("!")]
    unwanted = [glob[1:] for glob in only if glob.startswith("!")]
    return (not wanted or matches(path, wanted)) and not matches(path, unwanted)


def join(folder: str, name: str) -> str:
    """Path of ``name`` in ``folder``; the empty folder is the root."""
    return f"{folder}/{name}" if folder else name


def folder_of(path: str) -> str:
    """The folder of a relative path; empty for one in the root."""
    return path.rpartition("/")[0]
