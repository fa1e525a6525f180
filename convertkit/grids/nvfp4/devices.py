"""The tile functions of NVFP4 by the device that runs them; their bytes are the same on every one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Kernels:
    """``amax(values)``, ``encode(values, tables, codes, scales)`` and ``decode(codes, scales, table, out)``, with the
    shapes of ``encode`` and ``decode``. ``table`` is what ``prepare`` makes of one of ``decode_table``."""

    amax: Callable[[Any], int]
    encode: Callable[[Any, Any, Any, Any], None]
    decode: Callable[[Any, Any, Any, Any], None]
    prepare: Callable[[Any], Any]


def kernels_of(device: str) -> Kernels:
    """The functions of one of ``DEVICES``. Raises ``E_DEVICE`` for ``cuda`` where torch finds none."""
    if device == "cuda":
        from convertkit.grids.nvfp4 import cuda

        cuda.require_cuda()
        return Kernels(cuda.amax_of_tile, cuda.encode_tile, cuda.decode_tile, lambda table: table)
    from convertkit.grids.nvfp4 import decode, encode

    def prepare(table: Any) -> Any:
        return decode.paired(table) if table.itemsize == 2 else table

    return Kernels(encode.amax_of_tile, encode.encode_tile, decode.decode_tile, prepare)
