"""NVFP4 on a GPU: the bytes of the CPU path, and how fast it is against copying the same bytes there and back.

Run on a machine with a CUDA device: ``python benchmarks/cuda.py``. Nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from convertkit.grids.nvfp4 import cuda
from convertkit.grids.nvfp4.tables import ARITHMETICS, build_encode_tables

ROWS, WIDTH = 5120, 17408
ROUNDS = 7


def weights(dtype: str, seed: int) -> np.ndarray[Any, np.dtype[Any]]:
    """A matrix of Gaussian values with zero blocks, outliers and subnormals, as storage bits."""
    random = np.random.default_rng(seed)
    values = random.standard_normal((ROWS, WIDTH), np.float32) * np.float32(0.02)
    values[7, 32:64] = 0
    values[11] *= np.float32(1e-6)
    values[13, 5] = 3.5
    if dtype == "F32":
        return values.view(np.uint32)
    return values.astype(np.float16).view(np.uint16) if dtype == "F16" else (values.view(np.uint32) >> 16).astype("<u2")


def fastest(work: Callable[[], object]) -> float:
    """Least seconds of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


def compare(dtype: str, arithmetic: str) -> None:
    """Encode on both devices; the bytes must be equal."""
    values = weights(dtype, 3)
    tables = build_encode_tables(arithmetic, dtype, cuda.amax_of_tile(values, "cpu"))
    assert cuda.amax_of_tile(values, "cuda") == cuda.amax_of_tile(values, "cpu")
    made = {}
    for device in ("cpu", "cuda"):
        codes, scales = np.empty((ROWS, WIDTH // 2), np.uint8), np.empty((ROWS, WIDTH // 16), np.uint8)
        cuda.encode_tile(values, tables, codes, scales, device)
        made[device] = codes.tobytes() + scales.tobytes()
    assert made["cpu"] == made["cuda"], (dtype, arithmetic)
    print(f"{dtype} {arithmetic}: {len(made['cuda']):,} bytes equal")


def main() -> None:
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for dtype in ("BF16", "F16", "F32"):
        for arithmetic in ARITHMETICS:
            compare(dtype, arithmetic)
    values = weights("BF16", 5)
    tables = build_encode_tables("amax", "BF16", cuda.amax_of_tile(values, "cpu"))
    codes, scales = np.empty((ROWS, WIDTH // 2), np.uint8), np.empty((ROWS, WIDTH // 16), np.uint8)
    pinned = torch.from_numpy(values.view(np.int16)).pin_memory()

    def there_and_back() -> None:
        pinned.to("cuda", non_blocking=True).to("cpu")
        torch.cuda.synchronize()

    copy = fastest(there_and_back)
    encode = fastest(lambda: cuda.encode_tile(values, tables, codes, scales))
    table = np.arange(256 * 16, dtype=np.uint16).reshape(256, 16)
    out = np.empty((ROWS, WIDTH), np.uint16)
    decode = fastest(lambda: cuda.decode_tile(codes, scales, table, out))
    print(f"copy there and back {copy * 1e3:.1f} ms, encode {encode * 1e3:.1f} ms, decode {decode * 1e3:.1f} ms")
    print(f"encode / copy {encode / copy:.2f}, decode / copy {decode / copy:.2f}")


if __name__ == "__main__":
    main()
