"""A hub of the tests' own on loopback: models, trees, redirects to a store, byte ranges, and faults on demand.

Files that end in ``.safetensors`` are in LFS. ``faults`` maps a path to what goes wrong with it.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "org/drafter"


@dataclass
class Hub:
    """The folder that is served as ``org/drafter``, faults by path, digests that are known without reading, bytes sent
    and requests by path."""

    root: Path
    faults: dict[str, str] = field(default_factory=dict)
    known: dict[Path, tuple[int, str, str]] = field(default_factory=dict)
    sent_bytes: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    address: str = ""

    def digests(self, path: Path) -> tuple[int, str, str]:
        """Size, git's SHA-1 and SHA-256 of a file, unless ``known`` says them."""
        return self.known.get(path) or digests(path)

    def tree(self, folder: str, recursive: bool) -> list[dict[str, Any]]:
        base, rows = self.root / folder, []
        for path in sorted(base.rglob("*") if recursive else base.iterdir()):
            name = path.relative_to(self.root).as_posix()
            if path.is_dir():
                rows.append({"type": "directory", "path": name, "oid": "0" * 40, "size": 0})
                continue
            size, blob, sha256 = self.digests(path)
            row: dict[str, Any] = {"type": "file", "path": name, "oid": blob, "size": size}
            if name.endswith(".safetensors"):
                row["lfs"] = {"oid": sha256, "size": size, "pointerSize": 135}
            rows.append(row)
        return rows


def digests(path: Path) -> tuple[int, str, str]:
    size = path.stat().st_size
    blob, sha256 = hashlib.sha1(b"blob %d\0" % size), hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            blob.update(chunk)
            sha256.update(chunk)
    return size, blob.hexdigest(), sha256.hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests[f"{self.command} {path}"] += 1
        if self.hub.faults.get("closed", "") != "":
            return self._json({"error": "no"}, int(self.hub.faults["closed"]))
        if path.startswith(f"/api/models/{REPO}/tree/{COMMIT}"):
            folder = path.removeprefix(f"/api/models/{REPO}/tree/{COMMIT}").strip("/")
            return self._json(self.hub.tree(folder, "recursive=True" in self.path or "recursive=true" in self.path))
        if path in (f"/api/models/{REPO}", *(f"/api/models/{REPO}/revision/{name}" for name in ("main", COMMIT))):
            return self._json({"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": [
                {"rfilename": row["path"]} for row in self.hub.tree("", True) if row["type"] == "file"]})  # fmt: skip
        match = re.fullmatch(rf"/{REPO}/resolve/{COMMIT}/(.+)", path)
        store = re.fullmatch(r"/store/(.+)", path)
        if match is not None and (self.hub.root / match[1]).is_file():
            return self._resolve(match[1])
        if store is not None:
            return self._file(store[1])
        return self._json({"error": "not found"}, 404, {"X-Error-Code": "RepoNotFound"})

    def _resolve(self, name: str) -> None:
        if self.hub.faults.get(name) == "429" and self.hub.requests[f"refused {name}"] < 2:
            self.hub.requests[f"refused {name}"] += 1
            return self._json({"error": "slow down"}, 429, {"Retry-After": "0"})
        size, blob, sha256 = self.hub.digests(self.hub.root / name)
        commit = self.hub.faults.get("commit", COMMIT)
        head = {"X-Repo-Commit": commit, "ETag": f'"{blob}"', "Accept-Ranges": "bytes"}
        if not name.endswith(".safetensors"):
            return self._file(name, head)
        head |= {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(size)}
        store = self.hub.address.replace("127.0.0.1", "localhost")  # another host, as the hub's store is
        head["Location"] = f"{store}/store/{name}"
        return self._send(302, b"", head)

    def _file(self, name: str, head: dict[str, str] | None = None) -> None:
        place, fault = self.hub.root / name, self.hub.faults.get(name, "")
        size = place.stat().st_size
        match = re.fullmatch(r"bytes=([0-9]+)-([0-9]*)", self.headers.get("Range", ""))
        start, end = 0, size
        if match is not None and fault != "no ranges":
            start, end = int(match[1]), min(size, int(match[2]) + 1 if match[2] else size)
        with place.open("rb") as stream:
            stream.seek(start)
            data = stream.read(end - start) if self.command == "GET" else b""
        if fault == "wrong" and data:
            data = bytes([data[0] ^ 1]) + data[1:]
        partial = match is not None and fault != "no ranges"
        shift = fault == "elsewhere"
        more = {"Content-Range": f"bytes {start + shift}-{end - 1 + shift}/{size}"} if partial else {}
        cut = fault == "cut" and self.hub.requests[f"cut {name}"] < 1 and len(data) > 1000
        self.hub.requests[f"cut {name}"] += cut
        self._send(206 if more else 200, data[: len(data) // 2] if cut else data, {**(head or {}), **more}, end - start)

    def _json(self, document: Any, status: int = 200, head: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(document).encode(), {"Content-Type": "application/json", **(head or {})})

    def _send(self, status: int, data: bytes, head: dict[str, str], length: int | None = None) -> None:
        self.send_response(status)
        for name, value in head.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)
            self.hub.sent_bytes += len(data)
            if length is not None and len(data) < length:
                self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serve(root: Path, **faults: str) -> Iterator[Hub]:
    """Serve the folder until the block ends."""
    hub = Hub(root, dict(faults))
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
