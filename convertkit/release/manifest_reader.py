"""Reading MANIFEST.json strictly. Every fault is named; nothing that it lists is opened here."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from convertkit.containers.files import read_small
from convertkit.containers.strict_json import parse_json
from convertkit.dtypes import STORED_TYPES
from convertkit.errors import ConvertError, Finding, finding, refusal, shown
from convertkit.release.manifest import SCHEMA, EarlierRelease, FileEntry, Manifest, TensorEntry, content_id
from convertkit.release.paths import MANIFEST, OWN_FILES, ROWS, SUMS, join, path_fault
from convertkit.release.sums import MAX_FAULTS, read_sums

HEX = re.compile(r"[0-9A-Fa-f]{64}")
FAMILY = SCHEMA.rpartition("/")[0]
SCHEMA_FIX = "fetch the file again, or write it anew with `convertkit manifest`"


@dataclass(frozen=True)
class ReadManifest:
    """A manifest and what its bytes are: its own digest, and the entry of its rows file if it has one."""

    manifest: Manifest
    sha256: str
    rows: FileEntry | None


def read_manifest(root: Path, folder: str = "") -> ReadManifest:
    """The manifest in ``root/folder``, with its rows file; paths inside it stay relative to ``folder``.

    Raises ``ConvertError``: ``E_JSON``, ``E_JSON_DUP_KEY``, ``E_MANIFEST_SCHEMA``, ``E_MANIFEST_PATH``,
    ``E_MANIFEST_DUP``, ``E_MANIFEST_EMPTY``, ``E_MANIFEST_ALGO``, ``E_MANIFEST_CONFLICT`` (rows file or content id
    are not those it states), ``E_FILE_MISSING`` (no rows file) and the codes of ``open_regular``.
    """
    return parse_manifest(read_small(root, join(folder, MANIFEST)), join(folder, MANIFEST), _rows_reader(root, folder))


def _rows_reader(root: Path, folder: str) -> Callable[[str], bytes]:
    def read_rows(name: str) -> bytes:
        if not os.path.lexists(root / folder / name):
            raise refusal("E_FILE_MISSING", "the manifest's list of tensors is not there", file=join(folder, name),
                          fix="fetch it again")  # fmt: skip
        return read_small(root, join(folder, name))

    return read_rows


def parse_manifest(data: bytes, file: str, read_rows: Callable[[str], bytes] | None = None) -> ReadManifest:
    """The manifest in ``data``, called ``file`` in findings. Without ``read_rows`` a rows file is not looked at."""
    document = parse_json(data, file)
    if not isinstance(document, dict):
        raise refusal("E_MANIFEST_SCHEMA", "the file does not hold a JSON object", file=file, fix=SCHEMA_FIX)
    if document.get("schema") != SCHEMA:
        raise _unknown_schema(document.get("schema"), file)
    faults: list[Finding] = []
    pending = _pending(document.get("pending", []), file, faults)
    files = (*_files(document.get("files"), file, faults, "files", empty=bool(pending)), *pending)
    for path in {entry.path for entry in pending} & {entry.path for entry in files[: len(files) - len(pending)]}:
        _fault(faults, f"'{shown(path)}' is listed and pending", file, "pending", "E_MANIFEST_DUP")
    rows = _rows_entry(document, file, faults)
    tensor_rows = document.get("tensors", [])
    if rows is not None and read_rows is not None and not faults:
        tensor_rows = _rows_of(read_rows(rows.path), rows, document["tensors_file"]["count"], file)
    listed = {entry.path for entry in files}
    tensors = _tensors(tensor_rows, listed, file, faults)
    source = _source(document.get("source"), file, faults)
    plan = _object(document.get("plan", {}), "plan", file, faults)
    supersedes = _supersedes(document.get("supersedes", []), file, faults)
    if faults:
        raise ConvertError(faults[:MAX_FAULTS])
    manifest = Manifest(files, tensors, source, plan, supersedes)
    if rows is None or read_rows is not None:
        _check_content_ids(document, manifest, file)
    return ReadManifest(manifest, hashlib.sha256(data).hexdigest(), rows)


def _unknown_schema(schema: Any, file: str) -> ConvertError:
    if isinstance(schema, str) and schema.startswith(FAMILY + "/"):
        message = f"'{shown(schema)}' is newer than this convertkit reads ({SCHEMA})"
        fix = "use the convertkit version that wrote it, or a newer one"
    else:
        message = f"not a convertkit manifest: its schema is {shown(schema)}, not {SCHEMA}"
        fix = "remove or rename it, then write one with `convertkit manifest`"
    return refusal("E_MANIFEST_SCHEMA", message, file=file, key="schema", fix=fix)


def _fault(faults: list[Finding], message: str, file: str, key: str, code: str = "E_MANIFEST_SCHEMA") -> None:
    fix = SCHEMA_FIX if code == "E_MANIFEST_SCHEMA" else ""
    faults.append(finding(code, "error", message, file=file, key=key, fix=fix))


def _object(value: Any, key: str, file: str, faults: list[Finding]) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    _fault(faults, f"'{key}' is not an object", file, key)
    return {}


def _pending(value: Any, file: str, faults: list[Finding]) -> tuple[FileEntry, ...]:
    """Files whose digest has not been taken since they were changed in place: path and size."""
    if not isinstance(value, list) or any(not isinstance(item, dict) or "sha256" in item for item in value):
        _fault(faults, "'pending' is not a list of files without digests", file, "pending")
        return ()
    found = _files([{**item, "sha256": "0" * 64} for item in value], file, faults, "pending", empty=True)
    return tuple(replace(entry, sha256="") for entry in found)


def _files(
    value: Any, file: str, faults: list[Finding], key: str, *, sized: bool = True, empty: bool = False
) -> tuple[FileEntry, ...]:
    """The entries of a list of files, each with a safe and unique path; at least one unless ``empty``."""
    if not isinstance(value, list):
        _fault(faults, f"'{key}' is not a list", file, key)
        return ()
    if not value and not empty:
        _fault(faults, f"'{key}' is empty, so nothing could be verified", file, key, "E_MANIFEST_EMPTY")
    entries: dict[str, FileEntry] = {}
    for item in value:
        entry = _file(item, file, faults, key, sized)
        if entry is None:
            continue
        if entry.path in entries:
            _fault(faults, f"'{shown(entry.path)}' is listed twice", file, key, "E_MANIFEST_DUP")
        entries[entry.path] = entry
    return tuple(entries.values())


def _file(item: Any, file: str, faults: list[Finding], key: str, sized: bool) -> FileEntry | None:
    if not isinstance(item, dict) or not isinstance(item.get("path"), str):
        _fault(faults, f"an entry of '{key}' has no path", file, key)
        return None
    path, size, sha256 = item["path"], item.get("size"), item.get("sha256")
    own = key in ("files", "pending") and path in (MANIFEST, SUMS)
    wrong = "a manifest cannot list itself or the sums" if own else path_fault(path)
    if wrong is not None:
        _fault(faults, f"{wrong}: '{shown(path)}'", file, key, "E_MANIFEST_PATH")
        return None
    if sha256 is None:
        _fault(faults, f"'{shown(path)}' has no SHA-256 digest", file, key, "E_MANIFEST_ALGO")
        return None
    if not isinstance(sha256, str) or not HEX.fullmatch(sha256):
        _fault(faults, f"the digest of '{shown(path)}' is not 64 hex digits", file, key)
        return None
    if not (type(size) is int and size >= 0) and (sized or size is not None):
        _fault(faults, f"the size of '{shown(path)}' is not a whole number of bytes", file, key)
        return None
    return FileEntry(path, size, sha256.lower())


def _rows_entry(document: Mapping[str, Any], file: str, faults: list[Finding]) -> FileEntry | None:
    value = document.get("tensors_file")
    if value is None:
        return None
    entry = _file(value, file, faults, "tensors_file", True)
    if entry is None:
        return None
    if entry.path != ROWS or type(value.get("count")) is not int or "tensors" in document:
        _fault(faults, f"'tensors_file' is not {ROWS} with a count, or stands beside 'tensors'", file, "tensors_file")
    return entry


def _rows_of(data: bytes, rows: FileEntry, count: int, file: str) -> list[Any]:
    """The rows of the rows file, whose bytes must be those that the manifest states."""
    if len(data) != rows.size_bytes or hashlib.sha256(data).hexdigest() != rows.sha256:
        raise refusal("E_MANIFEST_CONFLICT", f"the bytes of {rows.path} are not those that {file} states",
                      file=rows.path, fix="fetch both again")  # fmt: skip
    lines = data.splitlines()
    values = parse_json(b"[" + b",".join(lines) + b"]", rows.path)
    if len(values) != len(lines) or len(values) != count:
        raise refusal("E_MANIFEST_CONFLICT", f"{rows.path} holds {len(values):,} rows, {file} states {count:,}",
                      file=rows.path)  # fmt: skip
    assert isinstance(values, list)
    return values


def _tensors(value: Any, listed: set[str], file: str, faults: list[Finding]) -> tuple[TensorEntry, ...]:
    if not isinstance(value, list):
        _fault(faults, "'tensors' is not a list", file, "tensors")
        return ()
    entries: dict[tuple[str, str], TensorEntry] = {}
    for item in value:
        if not _is_tensor(item):
            _fault(faults, f"an entry of 'tensors' is malformed: {shown(item)}", file, "tensors")
            continue
        entry = TensorEntry(item["file"], item["name"], item["dtype"], tuple(item["shape"]), item["sha256"].lower())
        if entry.file not in listed:
            _fault(faults, f"tensor '{shown(entry.name)}' is in '{shown(entry.file)}', which is not listed", file,
                   "tensors")  # fmt: skip
        if (entry.file, entry.name) in entries:
            _fault(faults, f"tensor '{shown(entry.name)}' of '{shown(entry.file)}' is listed twice", file, "tensors",
                   "E_MANIFEST_DUP")  # fmt: skip
        entries[entry.file, entry.name] = entry
    return tuple(entries.values())


def _is_tensor(item: Any) -> bool:
    return (
        isinstance(item, dict)
        and all(isinstance(item.get(key), str) for key in ("file", "name", "dtype", "sha256"))
        and item["dtype"] in STORED_TYPES
        and HEX.fullmatch(item["sha256"]) is not None
        and isinstance(item.get("shape"), list)
        and all(type(size) is int and size >= 0 for size in item["shape"])
    )


def _source(value: Any, file: str, faults: list[Finding]) -> tuple[Mapping[str, Any], ...]:
    """Source files may carry more than path, size and digest (a repository, a revision): kept as they are."""
    if value is None:
        return ()
    items = _object(value, "source", file, faults).get("files", [])
    if items:
        _files(items, file, faults, "source")
    return tuple(items) if isinstance(items, list) else ()


def _supersedes(value: Any, file: str, faults: list[Finding]) -> tuple[EarlierRelease, ...]:
    if not isinstance(value, list):
        _fault(faults, "'supersedes' is not a list", file, "supersedes")
        return ()
    releases = []
    for item in value:
        release = _object(item, "supersedes", file, faults)
        digests = [release.get("manifest_sha256"), release.get("sums_sha256")]
        if not all(digest is None or (isinstance(digest, str) and HEX.fullmatch(digest)) for digest in digests):
            _fault(faults, "a digest in 'supersedes' is not 64 hex digits", file, "supersedes")
        files = _files(release.get("files"), file, faults, "supersedes", sized=False)
        releases.append(EarlierRelease(digests[0], digests[1], files))
    return tuple(releases)


def _check_content_ids(document: Mapping[str, Any], manifest: Manifest, file: str) -> None:
    for key, named in (("content_id", False), ("content_id_named", True)):
        if key in document and document[key] != content_id(manifest.tensors, named=named):
            raise refusal("E_MANIFEST_CONFLICT", f"'{key}' is not that of the listed tensors", file=file, key=key,
                          fix=SCHEMA_FIX)  # fmt: skip


def read_earlier(path: Path) -> tuple[EarlierRelease, ...]:
    """The release that ``--supersedes`` names (a folder, its MANIFEST.json or its SHA256SUMS), and after it those
    that it superseded itself.

    In a folder both files are read and must agree. Raises the codes of ``read_manifest`` and ``read_sums``,
    ``E_NOT_FOUND`` and, for a folder without either, ``E_MANIFEST_MISSING`` with status 3.
    """
    root, names = (path, (MANIFEST, SUMS)) if path.is_dir() else (path.parent, (path.name,))
    data = {name: read_small(root, name) for name in names if os.path.lexists(root / name)}
    if not data:
        code = "E_MANIFEST_MISSING" if path.is_dir() else "E_NOT_FOUND"
        raise refusal(code, f"no {MANIFEST} or {SUMS} of an earlier release there: {shown(path)}", status=3,
                      fix="name the folder, MANIFEST.json or SHA256SUMS of the earlier release")  # fmt: skip
    manifest_sha256 = sums_sha256 = None
    files: dict[str, FileEntry] = {}
    before: tuple[EarlierRelease, ...] = ()
    for name, content in data.items():
        digest = hashlib.sha256(content).hexdigest()
        if content.lstrip().startswith(b"{"):
            manifest_sha256 = digest
            earlier = parse_manifest(content, name).manifest
            files.update((entry.path, entry) for entry in earlier.files if not entry.is_pending)
            before = earlier.supersedes
        else:
            sums_sha256 = digest
            _add_sums(read_sums(content, name), files, name)
    return (EarlierRelease(manifest_sha256, sums_sha256, tuple(files[path] for path in sorted(files))), *before)


def _add_sums(sums: Mapping[str, str], files: dict[str, FileEntry], name: str) -> None:
    """Files that only the sums know; the manifest's own files are not part of what is superseded."""
    differing = [path for path, sha256 in sums.items() if path in files and files[path].sha256 != sha256]
    if differing:
        raise refusal("E_MANIFEST_CONFLICT", f"{MANIFEST} and {name} of the earlier release disagree about "
                      f"'{shown(differing[0])}'", file=name, key=differing[0], status=3)  # fmt: skip
    for path, sha256 in sums.items():
        if path not in OWN_FILES:
            files.setdefault(path, FileEntry(path, None, sha256))
