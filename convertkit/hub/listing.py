"""What a repository holds at one commit, asked once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from convertkit.errors import ConvertError, refusal, shown
from convertkit.hub.address import Address
from convertkit.release.paths import path_fault

NEEDS = "pip install huggingface_hub"

MOST_BYTES = 1 << 42
"""Of one file; a list that states more is malformed."""

CLOSED = (401, 403, 404)
"""Statuses that waiting does not change."""


@dataclass(frozen=True)
class RemoteFile:
    """A file: path inside the repository, size in bytes, git's SHA-1 of it, SHA-256 if it is in LFS."""

    path: str
    size_bytes: int
    blob: str
    sha256: str | None

    def as_json(self) -> dict[str, Any]:
        """As a row of the hub's own file list, which ``verify --from`` reads."""
        lfs = {} if self.sha256 is None else {"lfs": {"oid": self.sha256, "size": self.size_bytes}}
        return {"type": "file", "path": self.path, "size": self.size_bytes, "oid": self.blob, **lfs}


def client() -> Any:
    """The module huggingface_hub. Raises ``E_BACKEND``."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise refusal("E_BACKEND", "hf:// needs the package huggingface_hub", fix=NEEDS) from None
    return huggingface_hub


@contextmanager
def said(address: Address) -> Iterator[None]:
    """Turn what the client raises into findings: E_NOT_FOUND (3) for what is not there, E_HUB (4) for the rest."""
    errors = client().errors
    try:
        yield
    except ConvertError:
        raise
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise _failed(address, error) from error
        message = f"not on the hub, or not for you: {address}"
        raise refusal("E_NOT_FOUND", message, fix="check name and revision") from error
    except Exception as error:  # network errors of whatever HTTP client is beneath
        raise _failed(address, error) from error


def _failed(address: Address, error: Exception) -> ConvertError:
    first = (str(error).splitlines() or [""])[0]
    status = getattr(getattr(error, "response", None), "status_code", None)
    fix = "check the name, and HF_TOKEN for what is not open to all" if status in CLOSED else "try again later"
    return refusal("E_HUB", f"{address}: {type(error).__name__}: {shown(first)}", fix=fix)


def commit_of(address: Address) -> str:
    """The commit that the revision means now: 40 hex digits."""
    with said(address):
        return str(client().HfApi().model_info(address.repo, revision=address.revision).sha)


def list_files(address: Address, commit: str, *, recursive: bool) -> list[RemoteFile]:
    """Files in the folder of the address, below it too if ``recursive``, sorted by path."""
    with said(address):
        rows = client().HfApi().list_repo_tree(
            address.repo, address.folder or None, recursive=recursive, revision=commit
        )  # fmt: skip
        files = [
            _sound(RemoteFile(row.path, row.size, row.blob_id, None if row.lfs is None else row.lfs.sha256), address)
            for row in rows
            if type(row).__name__ == "RepoFile"
        ]
    return sorted(files, key=lambda file: file.path.encode("utf-8", "surrogateescape"))


def _sound(file: RemoteFile, address: Address) -> RemoteFile:
    """The row, unless it says what no file can have: the client passes on whatever the server sent."""
    sized = type(file.size_bytes) is int and 0 <= file.size_bytes <= MOST_BYTES
    named = isinstance(file.path, str) and path_fault(file.path) is None
    if not (sized and named and (file.sha256 is None or isinstance(file.sha256, str))):
        raise refusal("E_HUB", f"{address}: the list of files is malformed at '{shown(str(file.path))}'",
                      fix="check that this is a hub")  # fmt: skip
    return file
