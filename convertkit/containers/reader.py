"""Reading tensors of an opened checkpoint: positioned reads into the caller's buffers, from any thread."""

from __future__ import annotations

import os
from bisect import bisect_right
from operator import itemgetter
from types import TracebackType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from convertkit.checkpoint import Checkpoint, TensorRef
from convertkit.containers.files import open_regular, read_into, stamp_of
from convertkit.containers.shards import json_object
from convertkit.dtypes import DTYPES
from convertkit.errors import refusal

PRESENT = ".convertkit-present.json"
"""Beside weights of which only parts were fetched: for each file the ranges of bytes that are there."""


class Bytes(Protocol):
    """Where the bytes of a checkpoint's weight files come from."""

    def read_into(self, file: str, offset: int, buffer: memoryview) -> None: ...

    def fd(self, file: str) -> int:
        """An open file with all of its bytes."""
        ...

    def assert_unchanged(self) -> None:
        """Raises E_CHANGED if the bytes are not those whose header was read."""
        ...

    def close(self) -> None: ...


class OpenFiles:
    """The weight files of a checkpoint, open. Files are read, never mapped, so memory stays that of the buffers."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._files = checkpoint.files
        self._fds: dict[str, int] = {}
        self._present = _present(checkpoint)
        try:
            for file in checkpoint.files:
                self._fds[file.name] = open_regular(checkpoint.root, file.name)
            self.assert_unchanged()
        except BaseException:
            self.close()
            raise

    def read_into(self, file: str, offset: int, buffer: memoryview) -> None:
        self._require(file, offset, offset + len(buffer))
        read_into(self._fds[file], offset, buffer, file)

    def fd(self, file: str) -> int:
        if self._present is not None:
            self._require(file, 0, os.fstat(self._fds[file]).st_size)
        return self._fds[file]

    def assert_unchanged(self) -> None:
        for file in self._files:
            if stamp_of(self._fds[file.name]) != file.stamp:
                raise refusal(
                    "E_CHANGED",
                    "the file changed after its header was read",
                    file=file.name,
                    fix="run again when nothing writes to the source",
                )

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def _require(self, file: str, start: int, end: int) -> None:
        """``E_HUB_PARTIAL`` if the bytes are a hole where nothing was fetched."""
        if self._present is not None and start < end:
            parts = self._present.get(file, [])
            place = bisect_right(parts, start, key=itemgetter(0)) - 1
            if place < 0 or parts[place][1] < end:
                raise refusal(
                    "E_HUB_PARTIAL", "only headers and small tensors were fetched", file=file,
                    fix="download the repository (hf download) and name its folder",
                )  # fmt: skip


class Reader:
    """Tensors of a checkpoint by name or place; ``stored`` is where their bytes come from, its open files if none is
    given."""

    def __init__(self, checkpoint: Checkpoint, stored: Bytes | None = None) -> None:
        self.checkpoint = checkpoint
        self._stored = OpenFiles(checkpoint) if stored is None else stored

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._stored.close()

    def fd(self, file: str) -> int:
        return self._stored.fd(file)

    def read_into(self, ref: TensorRef, first_byte: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the tensor's bytes from its byte ``first_byte`` on."""
        self._stored.read_into(ref.file, ref.start + first_byte, buffer)

    def bytes_of(self, name: str) -> bytes:
        """All bytes of a (small) tensor."""
        ref = self.checkpoint.tensors[name]
        buffer = bytearray(ref.size_bytes)
        self.read_into(ref, 0, memoryview(buffer))
        return bytes(buffer)

    def array(self, name: str) -> npt.NDArray[np.generic]:
        """A (small) tensor as an array of its storage type and shape; BF16 and FP8 come as raw bits."""
        spec = self.checkpoint.tensors[name].spec
        return np.frombuffer(self.bytes_of(name), dtype=DTYPES[spec.dtype].storage).reshape(spec.shape)

    def f32_bits(self, ref: TensorRef) -> int:
        """The bits of the one FP32 number that ``ref`` points at: F32 of shape [] or [1], or a value inside of a
        longer tensor."""
        buffer = bytearray(4)
        self.read_into(ref, 0, memoryview(buffer))
        return int.from_bytes(buffer, "little")

    def assert_unchanged(self) -> None:
        """``E_CHANGED`` if a file is not the one whose header was read."""
        self._stored.assert_unchanged()


def _present(checkpoint: Checkpoint) -> dict[str, list[tuple[int, int]]] | None:
    """The ranges that are there, sorted and apart, or None where files are whole. Raises E_JSON for what is no such
    list: any folder may hold a file of that name."""
    if not os.path.lexists(checkpoint.root / PRESENT):
        return None
    document = json_object(checkpoint.root, PRESENT)
    for parts in document.values():
        pairs = parts if isinstance(parts, list) else [None]
        if not all(isinstance(pair, list) and [type(end) for end in pair] == [int, int] for pair in pairs):
            raise refusal("E_JSON", "no list of the bytes that were fetched", file=PRESENT, fix="remove the file")
    return {name: sorted((first, last) for first, last in parts) for name, parts in document.items()}
