"""What a plan says to people and programs: the document of ``--dry-run``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from convertkit.checkpoint import TensorSpec
from convertkit.checks.audited import Audit
from convertkit.conversion.plan import Plan, Unit
from convertkit.conversion.units import Pack, Relabel


@dataclass(frozen=True)
class DryRun:
    """A plan that was not carried out. ``audit`` is what the audit of the output would say, where that is foreseen."""

    plan: Plan = field(repr=False)
    document: Mapping[str, Any] = field(repr=False)
    audit: Audit | None = field(default=None, repr=False)

    @property
    def status(self) -> int:
        """That of the run: 1 if the audit would reject the output, as far as it is foreseen."""
        return 1 if self.audit is not None and self.audit.errors else 0


def describe(plan: Plan) -> dict[str, Any]:
    """Counts, files, groups, drops and every output tensor of a plan, as JSON values."""
    units = Counter(unit.operation for unit in plan.units)
    return {
        "verb": plan.verb,
        "parameters": dict(plan.parameters),
        "fingerprint": plan.fingerprint,
        "units": dict(sorted(units.items())),
        "files": [{"path": file.name, "size_bytes": file.header.size_bytes} for file in plan.files],
        "documents": sorted(plan.documents),
        "side_files": list(plan.side_files),
        "left_behind": dict(sorted(plan.source.skipped.items())),
        "drops": [{"tensor": drop.name, "reason": drop.reason} for drop in plan.drops],
        "shared_scales": [
            list(unit.modules) for unit in plan.units if isinstance(unit, Pack) and len(unit.modules) > 1
        ],
        "tensors": [
            {
                "name": spec.name,
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "file": plan.file_of[spec.name],
                "operation": unit.operation,
                "promise": unit.promise,
                "inputs": list(inputs),
            }
            for unit in plan.units
            for spec, inputs in _made(unit)
        ],
        "findings": [item.as_json() for item in plan.findings],
    }


def _made(unit: Unit) -> Iterator[tuple[TensorSpec, tuple[str, ...]]]:
    """Every tensor that a unit makes, and what it is made from: each of those that are relabelled from its own one."""
    if isinstance(unit, Relabel):
        return zip(unit.outputs, ((name,) for name in unit.inputs), strict=True)
    return zip(unit.outputs, repeat(unit.inputs))


def dry_run(plan: Plan, audit: Audit | None = None) -> DryRun:
    document = describe(plan)
    if audit is not None:
        document["audit"] = {
            "verdict": "fail" if audit.errors else "pass",
            "summary": dict(audit.summary),
            "findings": [item.as_json() for item in audit.findings],
        }
    return DryRun(plan, document, audit)
