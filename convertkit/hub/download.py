"""A folder of a repository on this machine: whole, in the hub's own cache, or headers and small tensors only."""

from __future__ import annotations

import atexit
import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from convertkit.checkpoint import TensorRef
from convertkit.containers.folder import WEIGHTS
from convertkit.containers.gguf_parts import SUFFIX
from convertkit.containers.reader import PRESENT
from convertkit.containers.safetensors import read_header
from convertkit.errors import ConvertError, Finding, finding, refusal, shown
from convertkit.hub.address import Address, parse_address
from convertkit.hub.listing import RemoteFile, client, commit_of, list_files, said
from convertkit.release.paths import MANIFEST, ROWS, SUMS

SMALL_FILE_BYTES = 32 << 20
"""Files other than weights that are larger stay on the hub where only headers are wanted."""

FIRST_BYTES = 1 << 18
SMALL_TENSOR_BYTES = 1 << 16
JOIN_BYTES = 1 << 17
"""Ranges that lie closer than this are fetched as one."""

MOST_BYTES = 16 << 20
"""Of small tensors; those beyond are not fetched, and reading them says so."""

Range = tuple[int, int]


def fetch(text: str, *, headers_only: bool = False, recursive: bool = False) -> Path:
    """The folder that an ``hf://`` address names, on this machine.

    Whole, it lies in the hub's cache (its links are followed, never written through), an interrupted download goes on
    where it stopped, and every LFS file is compared with its published SHA-256. With ``headers_only`` a temporary
    folder holds JSON files, and weight files with header and small tensors in their places; what else is read of them
    is refused (E_HUB_PARTIAL). ``recursive`` brings subfolders too.

    Raises ``ConvertError``: E_USAGE, E_BACKEND, E_NOT_FOUND, E_HUB, E_HUB_DIGEST, and for headers the codes of
    ``read_header``.
    """
    address = parse_address(text)
    if _offline():
        return _cached(address)
    commit = commit_of(address)
    files = list_files(address, commit, recursive=recursive)
    if headers_only:
        return _headers(address, commit, files)
    return _whole(address, commit, files)


def _offline() -> bool:
    return bool(client().constants.HF_HUB_OFFLINE)


def _cached(address: Address) -> Path:
    """The folder as an earlier download left it, known by its config. Whether it is whole is for the reader to say."""
    name = f"{address.folder}/config.json" if address.folder else "config.json"
    with said(address):
        found = client().try_to_load_from_cache(address.repo, name, revision=address.revision)
    if not isinstance(found, str):
        raise refusal("E_HUB", f"{address} is not in the cache, and the hub is not asked (HF_HUB_OFFLINE)")
    return Path(found).parent


def _whole(address: Address, commit: str, files: Sequence[RemoteFile]) -> Path:
    if not files:
        raise refusal("E_NOT_FOUND", f"there are no files in {address}", fix="check the folder")
    wanted = [glob.escape(file.path) for file in files]
    with said(address):
        root = Path(client().snapshot_download(address.repo, revision=commit, allow_patterns=wanted))
    for file in files:
        _require_commit(address, commit, root / file.path)
    faults = list(_digest_faults(root, files))
    if faults:
        raise ConvertError(faults)
    return root / address.folder


def _require_commit(address: Address, commit: str, place: Path) -> None:
    """``E_HUB`` unless the cache holds the file under this commit: the client files it under the one that the server
    names beside the bytes (``X-Repo-Commit``; huggingface_hub 2.4, ``file_download.py``)."""
    if commit not in place.parts or not place.is_file():
        raise refusal("E_HUB", f"{address}: the hub did not send '{shown(place.name)}' of the commit {commit}",
                      fix="try again later, and check that this is a hub")  # fmt: skip


def _digest_faults(root: Path, files: Iterable[RemoteFile]) -> Iterable[Finding]:
    for file in files:
        if file.sha256 is None:
            continue
        digest = hashlib.sha256()
        with open(root / file.path, "rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
        if digest.hexdigest() != file.sha256:
            yield finding(
                "E_HUB_DIGEST", "error", "the bytes are not those that the hub states", file=file.path,
                fix="remove the file's blob from the cache and run again",
                data={"expected": file.sha256, "found": digest.hexdigest()},
            )  # fmt: skip


def write_listing(text: str) -> tuple[Path, Path]:
    """A whole repository folder and, as a temporary file, the list of what the hub says it holds."""
    address = parse_address(text)
    commit = commit_of(address)
    files = list_files(address, commit, recursive=True)
    root = _whole(address, commit, files)
    start = f"{address.folder}/" if address.folder else ""
    rows = [{**file.as_json(), "path": file.path.removeprefix(start)} for file in files]
    place = _temporary(address) / "hub-files.json"
    place.write_text(json.dumps(rows), encoding="utf-8")
    return root, place


def fetch_small(text: str) -> tuple[Path, tuple[RemoteFile, ...]]:
    """A temporary folder with the files of a repository that are not in LFS, and its manifests; and the list of all of
    them, paths from the folder of the address. Of the others the hub states size and SHA-256."""
    address = parse_address(text)
    commit = commit_of(address)
    files = list_files(address, commit, recursive=True)
    start = f"{address.folder}/" if address.folder else ""
    folder = _temporary(address)
    listed = []
    for file in files:
        path = file.path.removeprefix(start)
        listed.append(replace(file, path=path))
        if file.sha256 is None or path in (MANIFEST, SUMS, ROWS):
            with said(address):
                found = Path(client().hf_hub_download(address.repo, file.path, revision=commit))
            _require_commit(address, commit, found)
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(found, folder / path)
    return folder, tuple(listed)


def _temporary(address: Address) -> Path:
    """A folder that goes when the process ends."""
    base = Path(tempfile.mkdtemp(prefix="convertkit-hub-"))
    atexit.register(shutil.rmtree, base, ignore_errors=True)
    folder = base / (address.folder.rpartition("/")[2] or address.repo.rpartition("/")[2])
    folder.mkdir()
    return folder


def _headers(address: Address, commit: str, files: Sequence[RemoteFile]) -> Path:
    _refuse_gguf(address, files)
    folder = _temporary(address)
    present: dict[str, list[Range]] = {}
    for file in files:
        name = file.path.rpartition("/")[2]
        if name.endswith(WEIGHTS):
            present[name] = _sparse(address, commit, file, folder / name)
        elif file.size_bytes <= SMALL_FILE_BYTES and not name.startswith("."):
            with said(address):
                found = Path(client().hf_hub_download(address.repo, file.path, revision=commit))
            _require_commit(address, commit, found)
            shutil.copyfile(found, folder / name)
    (folder / PRESENT).write_text(json.dumps(present), encoding="utf-8")
    return folder


def _refuse_gguf(address: Address, files: Sequence[RemoteFile]) -> None:
    """``E_HUB_PARTIAL`` where all weights are GGUF: their headers are long, and are not read by parts."""
    large = [file.path for file in files if file.path.endswith(SUFFIX) and file.size_bytes > SMALL_FILE_BYTES]
    if large and not any(file.path.endswith(WEIGHTS) for file in files):
        raise refusal("E_HUB_PARTIAL", f"{address}: GGUF files are not read by parts", file=large[0],
                      fix="download the file (hf download) and name it")  # fmt: skip


def _sparse(address: Address, commit: str, file: RemoteFile, place: Path) -> list[Range]:
    """A file of the full size with the parts that were fetched; the rest is a hole. The parts, sorted."""
    url = client().hf_hub_url(address.repo, file.path, revision=commit)
    with place.open("w+b") as stream:
        stream.truncate(file.size_bytes)
        done = [_fill(address, url, stream, (0, min(FIRST_BYTES, file.size_bytes)))]
        stream.flush()
        length = int.from_bytes(os.pread(stream.fileno(), 8, 0), "little")
        if done[0][1] < 8 + length <= min(file.size_bytes, 8 + (100 << 20)):
            done.append(_fill(address, url, stream, (done[0][1], 8 + length)))
        stream.flush()
        refs = list(read_header(stream.fileno(), place.name).tensors.values())
        end = 8 + length
        done += [_fill(address, url, stream, part) for part in _small(refs, end)]
    return sorted(done)


def _small(refs: Iterable[TensorRef], first: int) -> list[Range]:
    """Ranges of the small tensors, neighbours joined, at most ``MOST_BYTES`` together."""
    joined: list[Range] = []
    total = 0
    for ref in sorted(refs, key=lambda ref: ref.start):
        start, end = max(ref.start, first), ref.start + ref.size_bytes
        if ref.size_bytes > SMALL_TENSOR_BYTES or start >= end:
            continue
        if joined and start - joined[-1][1] <= JOIN_BYTES:
            start, before = joined[-1][0], joined.pop()
            total -= before[1] - before[0]
        if total + end - start > MOST_BYTES:
            break
        joined.append((start, end))
        total += end - start
    return joined


def _fill(address: Address, url: str, stream: Any, part: Range) -> Range:
    """Fetch the bytes of ``part`` and put them into their place. Raises ``E_HUB`` unless exactly those came."""
    start, end = part
    utils = client().utils
    headers = {**utils.build_hf_headers(), "Range": f"bytes={start}-{end - 1}"}
    data = bytearray()
    with said(address), utils.http_stream_backoff("GET", url, headers=headers, follow_redirects=True) as response:
        if response.status_code != 206:
            utils.hf_raise_for_status(response)
            raise refusal("E_HUB", f"{address}: the server sends whole files only (status {response.status_code})")
        stated = response.headers.get("Content-Range", "")
        if not stated.startswith(f"bytes {start}-{end - 1}/"):
            raise refusal("E_HUB", f"{address}: the server sent other bytes than asked for ('{shown(stated)}')")
        for chunk in response.iter_bytes():
            data += chunk
            if len(data) > end - start:
                break
    if len(data) != end - start:
        raise refusal("E_HUB", f"{address}: {len(data)} bytes came instead of {end - start}", fix="try again later")
    stream.seek(start)
    stream.write(data)
    return part
