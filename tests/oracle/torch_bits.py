"""Weights as storage bits and as torch tensors, for the packages that take and give the latter."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

TORCH = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
STORAGE: dict[str, Any] = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32}
INFINITY = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}
SIGN = {"BF16": 0x8000, "F16": 0x8000, "F32": 0x80000000}


def as_torch(bits: NDArray[Any], dtype: str) -> torch.Tensor:
    """A tensor of ``dtype`` with these bits, in memory of its own."""
    return torch.from_numpy(bits.view(f"i{bits.dtype.itemsize}").copy()).view(TORCH[dtype])


def storage(tensor: torch.Tensor) -> NDArray[Any]:
    """The bits of a tensor of two or four bytes an element."""
    integers = torch.int16 if tensor.element_size() == 2 else torch.int32
    return tensor.contiguous().view(integers).numpy().view(f"u{tensor.element_size()}")
