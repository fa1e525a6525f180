"""Row tiles, and running pieces of work side by side with the same result for any number of workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

TILE_BYTES = 1 << 22
"""Bytes of a dense tile: enough for the disk and the hash, and a few of them still fit the caches."""
DEVICE_TILE_BYTES = 1 << 24
"""The same for a tile that goes to a device and back, which costs some Python each time."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def row_tiles(rows: int, row_bytes: int, tile_bytes: int = TILE_BYTES) -> Iterator[tuple[int, int]]:
    """Half-open row ranges of about ``tile_bytes`` each, at least one row."""
    step = max(1, tile_bytes // max(row_bytes, 1))
    for first in range(0, rows, step):
        yield first, min(rows, first + step)


def byte_chunks(size_bytes: int, chunk_bytes: int = TILE_BYTES) -> Iterator[tuple[int, int]]:
    """(offset, length) pieces of a run of bytes."""
    for offset in range(0, size_bytes, chunk_bytes):
        yield offset, min(chunk_bytes, size_bytes - offset)


class Buffers(threading.local):
    """Scratch arrays of each thread, kept between tiles so that no tile allocates. ``pinned`` ones are those that a
    CUDA device reads and writes by itself."""

    def __init__(self, pinned: bool = False) -> None:
        self._pinned = pinned
        self._arrays: dict[str, npt.NDArray[np.uint8]] = {}

    def take(self, use: str, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """A C-contiguous array for ``use``; its content is what the last tile left."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        held = self._arrays.get(use)
        if held is None or held.size < size:
            held = self._arrays[use] = self._made(max(size, 64))
        return held[:size].view(dtype).reshape(shape)

    def _made(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        if not self._pinned:
            return np.empty(size_bytes, np.uint8)
        from convertkit.backends.cuda import pinned_array

        return pinned_array(size_bytes)


def bytes_view(array: npt.NDArray[Any]) -> memoryview:
    """The bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def in_parallel(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> list[Result]:
    """``[work(item) for item in items]`` on a thread pool; the first failure stops what has not begun.

    Of several failures the one of the earliest item is raised, so that messages do not depend on timing.
    """
    if workers <= 1 or len(items) <= 1:
        return [work(item) for item in items]
    pool = ThreadPoolExecutor(workers, thread_name_prefix="convertkit")
    try:
        futures = [pool.submit(work, item) for item in items]
        wait(futures, return_when=FIRST_EXCEPTION)
    finally:  # all are done, or one failed, or a signal came where nothing listens for it
        pool.shutdown(cancel_futures=True)
    failures = [future.exception() for future in futures if not future.cancelled()]
    first = next((failure for failure in failures if failure is not None), None)
    if first is not None:
        raise first
    return [future.result() for future in futures]
