"""The writer's header gives the bytes of ``safetensors.save_file`` for the same tensors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from convertkit.checkpoint import TensorSpec
from convertkit.containers.safetensors import encode_header, read_header

NUMPY = {"F32": np.float32, "F16": np.float16, "U8": np.uint8, "I64": np.int64, "BOOL": np.bool_, "I8": np.int8}


@pytest.mark.parametrize("metadata", [{}, {"format": "pt"}])
@pytest.mark.parametrize(
    "rows",
    [
        [("b", "F32", (2, 3)), ("a", "F32", (1,)), ("z", "U8", (5,)), ("y", "I64", ()), ("x", "F16", (3, 0))],
        [("layers.10.w", "F16", (4,)), ("layers.2.w", "F16", (4,)), ("é", "BOOL", (3,)), ('q"\\/', "I8", (2, 2))],
        [("only", "F32", (7,))],
    ],
)
def test_header_equals_save_file(
    tmp_path: Path, rows: list[tuple[str, str, tuple[int, ...]]], metadata: dict[str, str]
) -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        name: np.arange(int(np.prod(shape))).reshape(shape).astype(NUMPY[dtype]) for name, dtype, shape in rows
    }
    save_file(arrays, tmp_path / "theirs.safetensors", metadata=metadata or None)
    theirs = (tmp_path / "theirs.safetensors").read_bytes()
    header = encode_header([TensorSpec(*row) for row in rows], metadata)
    ours = header.prefix + b"".join(arrays[spec.name].tobytes() for spec in header.order)
    assert ours == theirs
    assert header.size_bytes == len(theirs)


def test_starts_are_where_the_reader_finds_the_tensors(tmp_path: Path) -> None:
    specs = [TensorSpec("a", "U8", (3,)), TensorSpec("b", "F32", (2,)), TensorSpec("c", "BF16", (1, 5))]
    header = encode_header(specs, {"format": "pt", "another": "1"}, slack_bytes=100)
    path = tmp_path / "x.safetensors"
    path.write_bytes(header.prefix + bytes(header.size_bytes - len(header.prefix)))
    fd = os.open(path, os.O_RDONLY)
    try:
        read = read_header(fd, path.name)
    finally:
        os.close(fd)
    assert {name: ref.start for name, ref in read.tensors.items()} == dict(header.starts)
    assert {name: ref.spec for name, ref in read.tensors.items()} == {spec.name: spec for spec in specs}
    assert read.metadata == {"another": "1", "format": "pt"}
    assert len(header.prefix) % 8 == 0
