"""Manifests and indexes that another tool, a bad link or an attacker left: the command line refuses each with its
code, status and the names involved, in text and in JSON, and touches nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from convertkit.cli.main import main
from tests.release.makers import TENSORS, model, put, safetensors, sha256, sharded

ZERO = "0" * 64


@dataclass(frozen=True)
class Case:
    """``make`` fills a folder that holds a sound model; ``names`` must occur in what the user is told."""

    id: str
    make: Callable[[Path], object]
    code: str | None
    status: int
    names: tuple[str, ...] = field(default=())


def digests(root: Path) -> dict[str, str]:
    return {name: sha256((root / name).read_bytes()) for name in ("config.json", "model.safetensors")}


def lines(root: Path) -> str:
    return "".join(f"{digest}  {name}\n" for name, digest in digests(root).items())


def sums(
    change: Callable[[str], str | bytes] = lambda text: text, after: Callable[[Path], object] = lambda root: None
) -> Callable[[Path], None]:
    """Write SHA256SUMS with its text changed, then do something to the folder."""

    def make(root: Path) -> None:
        text = change(lines(root))
        put(root, {"SHA256SUMS": text.encode() if isinstance(text, str) else text})
        after(root)

    return make


def manifest(change: Callable[[dict[str, Any]], object], text: Callable[[str], str] = str) -> Callable[[Path], None]:
    """Write MANIFEST.json with its document changed, then its text."""

    def make(root: Path) -> None:
        files = [
            {"path": name, "size": (root / name).stat().st_size, "sha256": digest}
            for name, digest in digests(root).items()
        ]
        tensors = [
            {"file": "model.safetensors", "name": name, "dtype": dtype, "shape": shape, "sha256": sha256(data)}
            for name, (dtype, shape, data) in TENSORS.items()
        ]
        document: dict[str, Any] = {"schema": "convertkit.manifest/1", "files": files, "tensors": tensors}
        change(document)
        put(root, {"MANIFEST.json": text(json.dumps(document)).encode()})

    return make


def flip(root: Path) -> None:
    data = bytearray((root / "model.safetensors").read_bytes())
    data[-1] ^= 1
    put(root, {"model.safetensors": bytes(data)})


def adds(files: Mapping[str, bytes]) -> Callable[[Path], object]:
    return lambda root: put(root, files)


def link(root: Path) -> None:
    put(root.parent, {"outside.json": (root / "config.json").read_bytes()})
    (root / "config.json").unlink()
    (root / "config.json").symlink_to("../outside.json")


def fifo(root: Path) -> None:
    (root / "config.json").unlink()
    os.mkfifo(root / "config.json")


def shards(total: int | None = None, more: Mapping[str, bytes] | None = None) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        (root / "model.safetensors").unlink()
        put(sharded(root, total), more or {})

    return make


CASES = (
    Case("ok", sums(), None, 0),
    Case("changed", sums(after=flip), "E_DIGEST", 1, ("model.safetensors",)),
    Case("missing", sums(lambda text: text + f"{ZERO}  gone.bin\n"), "E_FILE_MISSING", 1, ("gone.bin",)),
    Case("extra", sums(after=adds({"evil.py": b""})), "E_FILE_EXTRA", 1, ("evil.py",)),
    Case("extra-hidden", sums(after=adds({".evil": b""})), "E_FILE_EXTRA", 1, (".evil",)),
    Case("extra-git", sums(after=adds({".git/hooks/x": b""})), "E_FILE_EXTRA", 1, (".git",)),
    Case("extra-pickle", sums(after=adds({"pytorch_model.bin": b""})), "E_FILE_EXTRA", 1, ("pytorch_model.bin",)),
    Case("extra-fifo", sums(after=lambda root: os.mkfifo(root / "pipe")), "E_FILE_EXTRA", 1, ("pipe",)),
    Case("extra-escape", sums(after=adds({"a\x1b[31mb": b""})), "E_FILE_EXTRA", 1, ("a\\x1b[31mb",)),
    Case("case", sums(lambda text: text.replace("config", "CONFIG")), "E_FILE_MISSING", 1, ("CONFIG.json",)),
    Case("link-out", sums(after=link), "E_PATH_ESCAPE", 3, ("config.json",)),
    Case("fifo", sums(after=fifo), "E_NOT_REGULAR", 3, ("config.json",)),
    Case("dotdot", sums(lambda text: f"{ZERO}  ../x\n"), "E_MANIFEST_PATH", 3, ("../x",)),
    Case("absolute", sums(lambda text: f"{ZERO}  /etc/hostname\n"), "E_MANIFEST_PATH", 3, ("/etc/hostname",)),
    Case("backslash", sums(lambda text: f"{ZERO}  ..\\x\n"), "E_MANIFEST_PATH", 3, ("SHA256SUMS",)),
    Case("self", sums(lambda text: text + f"{ZERO}  SHA256SUMS\n"), "E_MANIFEST_PATH", 3, ("SHA256SUMS",)),
    Case("twice", sums(lambda text: text + text), "E_MANIFEST_DUP", 3, ("config.json", "model.safetensors")),
    Case("twice-differs", sums(lambda text: text + f"{ZERO}  config.json\n"), "E_MANIFEST_DUP", 3, ("config.json",)),
    Case("empty", sums(lambda text: ""), "E_MANIFEST_EMPTY", 3, ("SHA256SUMS",)),
    Case("comment", sums(lambda text: "# nothing\n"), "E_MANIFEST_EMPTY", 3, ("SHA256SUMS",)),
    Case("short-hex", sums(lambda text: text[1:]), "E_MANIFEST_LINE", 3, ("SHA256SUMS", "line 1")),
    Case("md5", sums(lambda text: text + f"{ZERO[:32]}  x\n"), "E_MANIFEST_LINE", 3, ("SHA256SUMS", "line 3")),
    Case("bad-line", sums(lambda text: text + "not a line\n"), "E_MANIFEST_LINE", 3, ("SHA256SUMS", "line 3")),
    Case("cut", sums(lambda text: text[:-6]), "E_MANIFEST_LINE", 3, ("SHA256SUMS", "line 2")),
    Case("binary", sums(lambda text: b"\x00\xff" * 4096), "E_MANIFEST_LINE", 3, ("SHA256SUMS",)),
    Case("binary-mark", sums(lambda text: text.replace("  ", " *")), None, 0),
    Case("crlf", sums(lambda text: text.replace("\n", "\r\n")), None, 0),
    Case("upper-case", sums(lambda text: "".join(x[:64].upper() + x[64:] for x in text.splitlines(True))), None, 0),
    Case("json-ok", manifest(lambda d: None), None, 0),
    Case("json-size", manifest(lambda d: d["files"][0].update(size=1)), "E_SIZE", 1, ("config.json",)),
    Case("json-tensor", manifest(lambda d: d["tensors"][0].update(sha256=ZERO)), "E_TENSOR_DIGEST", 1, ("a.weight",)),
    Case("json-gone", manifest(lambda d: d["tensors"][0].update(name="q")), "E_TENSOR_MISSING", 1, ("q", "a.weight")),
    Case("json-next", manifest(lambda d: d.update(schema="convertkit.manifest/2")), "E_MANIFEST_SCHEMA", 3),
    Case("json-dotdot", manifest(lambda d: d["files"][0].update(path="../x")), "E_MANIFEST_PATH", 3, ("../x",)),
    Case("json-no-files", manifest(lambda d: d.update(files=[], tensors=[])), "E_MANIFEST_EMPTY", 3),
    Case("json-sha1", manifest(lambda d: d["files"][0].pop("sha256")), "E_MANIFEST_ALGO", 3, ("config.json",)),
    Case("json-twice", manifest(lambda d: None, lambda t: t[:-1] + ',"files":[]}'), "E_JSON_DUP_KEY", 3, ("files",)),
    Case("json-nan", manifest(lambda d: d.update(plan={"x": float("nan")})), "E_JSON", 3),
    Case("json-cut", manifest(lambda d: None, lambda t: t[:-9]), "E_JSON", 3),
    Case("json-deep", manifest(lambda d: None, lambda t: "[" * 100_000), "E_JSON", 3),
    Case("json-array", manifest(lambda d: None, lambda t: "[]"), "E_MANIFEST_SCHEMA", 3),
    Case("json-link", lambda root: os.symlink("/etc/hostname", root / "MANIFEST.json"), "E_PATH_ESCAPE", 3),
    Case("index-total", shards(1), "E_INDEX_TOTAL", 1, ("model.safetensors.index.json",)),
    Case("index-stale", shards(more={"model-00003-of-00003.safetensors": safetensors()}), "E_SHARD_UNLISTED", 1,
         ("model-00003-of-00003.safetensors",)),
    Case("index-single", shards(more={"model.safetensors": safetensors()}), "E_AMBIGUOUS_WEIGHTS", 3,
         ("model.safetensors",)),
    Case("index-torn", shards(more={"model-00002-of-00002.safetensors": b""}), "E_ST_TRUNCATED", 3,
         ("model-00002-of-00002.safetensors",)),
)  # fmt: skip


def state(root: Path) -> list[tuple[str, int, int]]:
    return sorted((str(path), path.lstat().st_size, path.lstat().st_mtime_ns) for path in root.rglob("*"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_verdict(case: Case, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = model(tmp_path / "model")
    case.make(root)
    before, begun = state(root), time.monotonic()
    status = main(["verify", str(root), "--json"])
    assert time.monotonic() - begun < 5
    out, err = capfd.readouterr()
    document = json.loads(out)
    errors = [item["code"] for item in document["findings"] if item["severity"] == "error"]
    assert (status, errors[:1]) == (case.status, [case.code] if case.code else [])
    assert (document["status"], err) == (status, "")
    assert main(["verify", str(root)]) == status
    shown = capfd.readouterr().out
    for name in case.names:
        assert name in shown
    assert "\x1b" not in shown
    assert state(root) == before


def test_the_real_command_ends_with_the_status(tmp_path: Path) -> None:
    for case in CASES[:2]:
        root = model(tmp_path / case.id)
        case.make(root)
        ran = subprocess.run(
            [sys.executable, "-m", "convertkit", "verify", str(root)], capture_output=True, check=False
        )
        assert (ran.returncode, ran.stderr) == (case.status, b"")


def test_coreutils_agrees_about_the_sound_ones(tmp_path: Path) -> None:
    for case in CASES:
        root = model(tmp_path / case.id)
        case.make(root)
        if case.status == 0 and (root / "SHA256SUMS").exists():
            command = ["sha256sum", "--strict", "--quiet", "-c", "SHA256SUMS"]
            assert subprocess.run(command, cwd=root, check=False).returncode == 0 or case.id == "crlf"
