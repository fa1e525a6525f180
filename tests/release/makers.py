"""Small releases for tests, made without convertkit's own writers."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TENSORS: dict[str, tuple[str, tuple[int, ...], bytes]] = {
    "a.weight": ("F32", (2, 4), bytes(range(32))),
    "b.weight": ("BF16", (8,), bytes(range(100, 116))),
    "c.empty": ("F32", (0, 3), b""),
}


def safetensors(tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]] = TENSORS) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    payload = b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [len(payload), len(payload) + len(data)],
        }
        payload += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


def put(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def model(root: Path, more: Mapping[str, bytes] | None = None) -> Path:
    """A folder with one weight file of three tensors, a config and what ``more`` holds."""
    root.mkdir(parents=True, exist_ok=True)
    return put(root, {"model.safetensors": safetensors(), "config.json": b'{"model_type": "llama"}\n', **(more or {})})


def sharded(root: Path, total: int | None = None) -> Path:
    """Two shards and their index."""
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    first = {"a.weight": TENSORS["a.weight"]}
    second = {"b.weight": TENSORS["b.weight"]}
    index = {
        "metadata": {"total_size": 48 if total is None else total},
        "weight_map": {"a.weight": names[0], "b.weight": names[1]},
    }
    files = {
        names[0]: safetensors(first),
        names[1]: safetensors(second),
        "model.safetensors.index.json": json.dumps(index).encode(),
        "config.json": b"{}\n",
    }
    root.mkdir(parents=True, exist_ok=True)
    return put(root, files)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
