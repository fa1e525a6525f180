"""How often each E2M1 code occurs in the packed linears of a checkpoint."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from convertkit.checkpoint import Checkpoint, TensorRef
from convertkit.containers.reader import Reader
from convertkit.conversion.tiles import byte_chunks, in_parallel
from convertkit.dialects.planes import find_packed
from convertkit.workers import worker_count

CODES = 16
CHUNK_BYTES = 1 << 20


def code_counts(checkpoint: Checkpoint, workers: int = 0) -> list[int] | None:
    """Counts of the codes 0 to 15 (bit 3 is the sign, see ``docs/nvfp4.md``) in all packed linears; None without one.

    Two codes lie in a byte, the low nibble first, in every dialect that convertkit reads.
    """
    planes = find_packed(checkpoint)
    if not planes.packed:
        return None
    codes = [module.codes for module in planes.packed.values()]
    with Reader(checkpoint) as reader:
        found = in_parallel(lambda ref: _bytes_of(reader, ref), codes, worker_count(workers))
    table = sum(found, np.zeros(256, np.int64)).reshape(16, 16)  # [high nibble, low nibble]
    return [int(table[:, code].sum() + table[code, :].sum()) for code in range(CODES)]


def _bytes_of(reader: Reader, ref: TensorRef) -> NDArray[np.int64]:
    """How often each byte occurs in a tensor: [256]."""
    from convertkit.checks.kernels_counts import count_bytes

    counts = np.zeros(1024, np.int64)
    buffer = np.empty(CHUNK_BYTES, np.uint8)
    for offset, length in byte_chunks(ref.size_bytes, CHUNK_BYTES):
        part = buffer[:length]
        reader.read_into(ref, offset, part.data)
        count_bytes(part, counts)
    total: NDArray[np.int64] = counts.reshape(4, 256).sum(axis=0)
    return total
