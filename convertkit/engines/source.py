"""What an engine is given to load: names, dtypes and shapes, and the configs beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from convertkit.checkpoint import TensorSpec
from convertkit.engines.model import Refused
from convertkit.layouts.rules import Family, families


@dataclass(frozen=True)
class Source:
    """What is loaded: tensors in the order of reading, configs, whether ``mask_embedding.pt`` lies beside them, and why
    the engine stops at a file, whatever the tensors are."""

    tensors: Sequence[TensorSpec]
    config: Mapping[str, Any]
    quant_config: Mapping[str, Any]
    mask_embedding: bool = False
    refusal: Refused | None = None

    @property
    def architecture(self) -> str:
        """The first of the architectures that the config names, or ``none``."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else "none"

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Tensors by name."""
        return {spec.name: spec for spec in self.tensors}

    @cached_property
    def families(self) -> Mapping[str, Family]:
        """Names by template: made once for all engines, since models of a hundred thousand tensors are normal."""
        return families(self.specs)
