"""Files made by ``to_gguf`` and what is in them, for several tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, quants
from numpy.typing import NDArray

from convertkit.containers.folder import open_any
from convertkit.containers.gguf_values import plain
from convertkit.verbs.case import Result
from convertkit.verbs.to_gguf import to_gguf
from tests.gguf.models import (
    DRAFTERS,
    write_model,
)


def convert(source: Path, out: Path, target: Path | None = None, **options: Any) -> Result:
    result = to_gguf(source, out, target_model=target, **options)
    assert isinstance(result, Result)
    return result


def make(folder: Path, kind: str, target: Path, type_: str = "bf16", **changes: Any) -> tuple[Path, Result]:
    source = write_model(folder / kind, kind, **changes)
    out = folder / f"{kind}.gguf"
    return out, convert(source, out, target if kind in DRAFTERS else None, type=type_)


def keys(path: Path) -> dict[str, Any]:
    return {key: plain(value) for key, value in open_any(path).metadata.items()}


def tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Values in NumPy order by gguf's reader and dequantizer."""
    found = {}
    for tensor in GGUFReader(path).tensors:
        data = np.asarray(tensor.data)
        found[tensor.name] = data if data.dtype == np.int64 else quants.dequantize(data, tensor.tensor_type)
    return found


def truncated(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
