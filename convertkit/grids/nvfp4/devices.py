"""The tile functions of NVFP4 by the device that runs them; their bytes are the same on every one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DEVICES = ("cpu", "cuda")
"""What ``--device`` names."""


@dataclass(frozen=True)
class Kernels:
    """``amax(values)``, ``encode(values, tables, codes, scales)`` and ``decode(codes, scales, table, out)``, with the
    shapes of ``encode`` and ``decode``. ``table`` is what ``prepare`` makes of one of ``decode_table``."""

    amax: Callable[[Any], int]
    encode: Callable[[Any, Any, Any, Any], None]
    decode: Callable[[Any, Any, Any, Any], None]
    prepare: Callable[[Any], Any]


@dataclass(frozen=True)
class SearchKernels:
    """What searches scales and grids: ``choose`` as ``choice.choose_tile``; ``amax``; and ``count``, ``match``,
    ``scales_of``, ``solve`` as the functions of ``on_grid``."""

    choose: Callable[[Any, Any, Any, Any], None]
    amax: Callable[[Any], int]
    count: Callable[..., None]
    match: Callable[[Any, Any], tuple[int, int]]
    scales_of: Callable[[Any, Any], Any]
    solve: Callable[[Any, Any, Any, Any, Any], None]


def kernels_of(device: str) -> Kernels:
    """The functions of one of ``DEVICES``. Raises ``E_DEVICE`` for ``cuda`` where torch finds none."""
    if device == "cuda":
        from convertkit.backends.cuda import require_cuda

        require_cuda()
        from convertkit.grids.nvfp4 import cuda

        return Kernels(cuda.amax_of_tile, cuda.encode_tile, cuda.decode_tile, lambda table: table)
    from convertkit.grids.nvfp4 import decode, encode

    def prepare(table: Any) -> Any:
        return decode.paired(table) if table.itemsize == 2 else table

    return Kernels(encode.amax_of_tile, encode.encode_tile, decode.decode_tile, prepare)


def search_kernels_of(device: str) -> SearchKernels:
    """As ``kernels_of``."""
    if device == "cuda":
        from convertkit.backends.cuda import require_cuda

        require_cuda()
        from convertkit.grids.nvfp4 import cuda

        return SearchKernels(
            cuda.choose_tile, cuda.amax_of_tile, cuda.count_tile, cuda.match_tile, cuda.scales_of_tile, cuda.solve_tile
        )
    from convertkit.grids.nvfp4 import choice, encode, on_grid

    return SearchKernels(
        choice.choose_tile, encode.amax_of_tile, on_grid.count_tile, on_grid.match_tile, on_grid.scales_of_tile,
        on_grid.solve_tile,
    )  # fmt: skip
