"""Read all values of a checkpoint once and report those that no loader should meet: ``audit --scan``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from convertkit.checkpoint import Checkpoint, TensorRef
from convertkit.checks.tiles import flat_tiles, row_tiles
from convertkit.containers.reader import Reader
from convertkit.dialects.planes import PackedModule, Planes
from convertkit.dialects.spelling import GROUP
from convertkit.dialects.values import BlockFaults, block_faults, block_scale_findings
from convertkit.errors import Finding, finding

INFINITY = {"BF16": ("<u2", 0x7FFF, 0x7F80), "F16": ("<u2", 0x7FFF, 0x7C00), "F32": ("<u4", 0x7FFF_FFFF, 0x7F80_0000)}
"""Storage type, mask of the magnitude, bits of infinity; NaN is above."""


def scan_findings(checkpoint: Checkpoint, planes: Planes, reader: Reader) -> Iterator[Finding]:
    """Bad block scales of packed linears (E_SCALE_*) and NaN or infinity in dense floats (E_WEIGHT_NONFINITE).

    Memory is bounded by one tile of each plane.
    """
    for module in planes.packed.values():
        yield from block_scale_findings(module, _scan_blocks(module, reader))
    for name, ref in checkpoint.tensors.items():
        if name not in planes.plane_names and ref.spec.dtype in INFINITY:
            count = _nonfinite(ref, reader)
            if count:
                message = f"{count} values are NaN or infinite"
                data = {"count": count}
                yield finding("E_WEIGHT_NONFINITE", "error", message, file=ref.file, tensor=name, data=data)


def _scan_blocks(module: PackedModule, reader: Reader) -> BlockFaults:
    faults = BlockFaults()
    half, blocks = module.in_features // 2, module.in_features // GROUP
    for first, rows in row_tiles(module.out_features, module.in_features):
        codes = _bytes(reader, module.codes, first * half, rows * half).reshape(rows, half)
        scales = _bytes(reader, module.block_scale, first * blocks, rows * blocks).reshape(rows, blocks)
        faults += block_faults(scales, codes, first)
    return faults


def _bytes(reader: Reader, ref: TensorRef, first: int, size_bytes: int) -> NDArray[np.uint8]:
    buffer = bytearray(size_bytes)
    reader.read_into(ref, first, memoryview(buffer))
    return np.frombuffer(buffer, np.uint8)


def _nonfinite(ref: TensorRef, reader: Reader) -> int:
    storage, mask, infinity = INFINITY[ref.spec.dtype]
    item_bytes = np.dtype(storage).itemsize
    count = 0
    for first, elements in flat_tiles(ref.spec.elements):
        values = _bytes(reader, ref, first * item_bytes, elements * item_bytes).view(storage)
        count += int(np.count_nonzero((values & mask) >= infinity))
    return count
