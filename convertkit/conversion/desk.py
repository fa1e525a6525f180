"""What every worker needs: the source, where to stop, how far it is, and buffers of its own."""

from __future__ import annotations

from dataclasses import dataclass

from convertkit.containers.reader import Reader
from convertkit.conversion.stop import Stop
from convertkit.conversion.tiles import DEVICE_TILE_BYTES, TILE_BYTES, Buffers
from convertkit.progress import Progress


@dataclass(frozen=True)
class Desk:
    """What every worker needs."""

    reader: Reader
    stop: Stop
    progress: Progress
    buffers: Buffers
    device: str = "cpu"

    @property
    def tile_bytes(self) -> int:
        """Bytes of a dense tile whose size decides nothing: larger where each one is sent to a device and back."""
        return TILE_BYTES if self.device == "cpu" else DEVICE_TILE_BYTES
