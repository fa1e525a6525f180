"""How often each E2M1 code occurs in the packed linears of a checkpoint."""

from __future__ import annotations

import numpy as np

from convertkit.checkpoint import Checkpoint
from convertkit.containers.reader import Reader
from convertkit.conversion.tiles import byte_chunks
from convertkit.dialects.planes import find_packed

CODES = 16


def code_counts(checkpoint: Checkpoint) -> list[int] | None:
    """Counts of the codes 0 to 15 (bit 3 is the sign, see ``docs/nvfp4.md``) in all packed linears; None without one.

    Two codes lie in a byte, the low nibble first, in every dialect that convertkit reads.
    """
    planes = find_packed(checkpoint)
    if not planes.packed:
        return None
    by_byte = np.zeros(256, dtype=np.int64)
    buffer = bytearray(1 << 20)
    with Reader(checkpoint) as reader:
        for module in planes.packed.values():
            for offset, length in byte_chunks(module.codes.size_bytes, len(buffer)):
                part = memoryview(buffer)[:length]
                reader.read_into(module.codes, offset, part)
                by_byte += np.bincount(np.frombuffer(part, dtype=np.uint8), minlength=256)
    table = by_byte.reshape(16, 16)  # [high nibble, low nibble]
    return [int(table[:, code].sum() + table[code, :].sum()) for code in range(CODES)]
