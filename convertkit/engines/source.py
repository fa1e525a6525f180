"""What an engine is given to load: names, dtypes and shapes, and the configs beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convertkit.checkpoint import TensorSpec


@dataclass(frozen=True)
class Source:
    """What is loaded: tensors in the order of reading, configs, whether ``mask_embedding.pt`` lies beside them, files
    that an index names and that are not there."""

    tensors: Sequence[TensorSpec]
    config: Mapping[str, Any]
    quant_config: Mapping[str, Any]
    mask_embedding: bool = False
    lost_files: tuple[str, ...] = ()
