"""``hf://org/name[@revision][/sub/folder]``: where a checkpoint is on the hub, and where a cached one came from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from convertkit.errors import refusal, shown

SCHEME = "hf://"
PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
REVISION = r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}"
ADDRESS = re.compile(rf"hf://(?P<repo>{PART}/{PART})(?:@(?P<revision>{REVISION}))?(?P<folder>(?:/[^/]+)*)/?")
SNAPSHOT = re.compile(rf"models--(?P<org>{PART})--(?P<name>{PART})")
COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class Address:
    """A folder of a model repository; ``revision`` is a branch, tag or commit."""

    repo: str
    revision: str
    folder: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.repo}@{self.revision}" + (f"/{self.folder}" if self.folder else "")


def is_address(text: str) -> bool:
    """Whether a word names a repository on the hub and no path."""
    return text.startswith(SCHEME)


def parse_address(text: str) -> Address:
    """Raises ``E_USAGE`` for what is no address, or a folder that leads out of the repository."""
    match = ADDRESS.fullmatch(text)
    parts = match["folder"].strip("/").split("/") if match is not None else []
    if match is None or any(part in (".", "..") or "\\" in part for part in parts):
        raise refusal("E_USAGE", f"'{shown(text)}' is not an address on the hub",
                      fix="hf://org/name[@revision][/sub/folder]")  # fmt: skip
    return Address(match["repo"], match["revision"] or "main", "/".join(part for part in parts if part))


def origin_of(root: Path) -> dict[str, str]:
    """Repository and commit of a folder in a hub cache, by its path; empty for any other folder.

    The cache lies as ``models--ORG--NAME/snapshots/COMMIT/`` (huggingface_hub, ``file_download.py``).
    """
    parts = root.absolute().parts
    for place in range(len(parts) - 3, -1, -1):
        match = SNAPSHOT.fullmatch(parts[place])
        if match is not None and parts[place + 1] == "snapshots" and COMMIT.fullmatch(parts[place + 2]):
            return {"repo": f"hf:{match['org']}/{match['name']}", "revision": parts[place + 2]}
    return {}
