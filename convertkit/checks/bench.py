"""What the checks of one run share, and what they find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from convertkit.checkpoint import TensorRef
from convertkit.checks.evidence import ExpandedEvidence, PackedEvidence, RecodedEvidence, RespelledEvidence
from convertkit.containers.reader import Reader
from convertkit.conversion.desk import Desk
from convertkit.conversion.plan import Plan, Unit
from convertkit.conversion.survey import Facts
from convertkit.errors import Finding, finding


@dataclass(frozen=True)
class Evidence:
    """What the checks found for one unit. A fault is a broken promise: a bug, never published."""

    unit: Unit
    faults: tuple[Finding, ...] = ()
    details: tuple[PackedEvidence | ExpandedEvidence | RespelledEvidence | RecodedEvidence, ...] = field(default=())


@dataclass(frozen=True)
class Bench:
    """What the checks of one run share."""

    plan: Plan
    facts: Facts
    desk: Desk
    output: Reader
    differing: Mapping[str, int]

    def copy_faults(self, name: str, what: str = "differs from its source") -> tuple[Finding, ...]:
        """A fault unless every byte of a copied tensor was found to be that of its source."""
        differing = self.differing.get(name)
        if differing is None:
            return (broken(name, "was never compared with its source"),)
        return (broken(name, what, differing=differing),) if differing else ()

    @cached_property
    def written(self) -> Desk:
        """The desk over the output instead of the source; the buffers are the same."""
        return replace(self.desk, reader=self.output)

    def staged(self, name: str) -> TensorRef:
        return self.output.checkpoint.tensors[name]

    def output_bits(self, name: str) -> int:
        """FP32 bits of a written scalar (F32 of shape [] or [1])."""
        return self.output.f32_bits(self.staged(name))


def broken(tensor: str, what: str, **data: Any) -> Finding:
    """A broken promise about one tensor of the output: a bug, never published."""
    return finding("E_PROMISE", "error", f"the written tensor {what}", tensor=tensor, data=data)
