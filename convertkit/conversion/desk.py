"""What every worker needs: the source, where to stop, how far it is, and buffers of its own."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from numpy.typing import NDArray

from convertkit.checkpoint import TensorRef
from convertkit.containers.reader import Reader
from convertkit.conversion.stop import Stop
from convertkit.conversion.tiles import DEVICE_TILE_BYTES, TILE_BYTES, Buffers, bytes_view
from convertkit.progress import Progress


@dataclass(frozen=True)
class Desk:
    """What every worker needs."""

    reader: Reader
    stop: Stop
    progress: Progress
    buffers: Buffers
    device: str = "cpu"

    def rows(self, use: str, ref: TensorRef, first: int, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """``shape[0]`` rows of a stored tensor from row ``first`` on, as ``dtype`` (NumPy's name of its storage type).

        They lie in this thread's buffer for ``use`` until the next call for that use. Raises as ``Reader.read_into``.
        """
        rows = self.buffers.take(use, dtype, shape)
        self.reader.read_into(ref, first * prod(shape[1:]) * rows.dtype.itemsize, bytes_view(rows))
        return rows

    @property
    def tile_bytes(self) -> int:
        """Bytes of a dense tile whose size decides nothing: larger where each one is sent to a device and back."""
        return TILE_BYTES if self.device == "cpu" else DEVICE_TILE_BYTES
