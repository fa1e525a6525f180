"""What an engine is given to load: names, dtypes and shapes, and the configs beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from convertkit.checkpoint import TensorSpec
from convertkit.engines.model import Refused
from convertkit.layouts.rules import Family, families


@dataclass(frozen=True, slots=True)
class MaskFile:
    """What ``mask_embedding.pt`` holds: the shape and dtype of its tensor, as torch names it, or None; whether it is an
    object with keys, and the token that this names. ``fault`` says why torch cannot read the file."""

    shape: tuple[int, ...] | None = None
    dtype: str = ""
    keyed: bool = False
    token: Any = None
    fault: str = ""


@dataclass(frozen=True)
class Source:
    """What is loaded: tensors in the order of reading, configs, what lies beside them in ``mask_embedding.pt``, if it
    is there, and why the engine stops at a file, whatever the tensors are."""

    tensors: Sequence[TensorSpec]
    config: Mapping[str, Any]
    quant_config: Mapping[str, Any]
    mask_embedding: MaskFile | None = None
    refusal: Refused | None = None
    empty_quant_config: bool = False
    """There is an ``hf_quant_config.json``, and it says nothing."""

    @property
    def architecture(self) -> str:
        """The first of the architectures that the config names, or ``none``."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else "none"

    @property
    def quant_file(self) -> Mapping[str, Any] | None:
        """``hf_quant_config.json``, or None where there is none."""
        return self.quant_config if self.quant_config or self.empty_quant_config else None

    def with_config(self, config: Mapping[str, Any]) -> Source:
        """The same tensors beside another config; what was worked out of their names stays so."""
        made = replace(self, config=config)
        made.__dict__.update({name: self.__dict__[name] for name in ("specs", "families") if name in self.__dict__})
        return made

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Tensors by name."""
        return {spec.name: spec for spec in self.tensors}

    @cached_property
    def families(self) -> Mapping[str, Family]:
        """Names by template: made once for all engines, since models of a hundred thousand tensors are normal."""
        return families(self.specs)
