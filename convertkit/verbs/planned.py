"""What a plan says to people and programs: the document of ``--dry-run``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from convertkit.conversion.plan import Plan
from convertkit.conversion.units import Pack


@dataclass(frozen=True)
class DryRun:
    """A plan that was not carried out."""

    plan: Plan = field(repr=False)
    document: Mapping[str, Any] = field(repr=False)


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
                "inputs": list(unit.inputs),
            }
            for unit in plan.units
            for spec in unit.outputs
        ],
        "findings": [item.as_json() for item in plan.findings],
    }


def dry_run(plan: Plan) -> DryRun:
    return DryRun(plan, describe(plan))
