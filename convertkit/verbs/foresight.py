"""``--dry-run`` with what the audit of the output will say, where that follows from the plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from convertkit.checkpoint import Checkpoint
from convertkit.checks.audited import Audit
from convertkit.containers.reader import Reader
from convertkit.conversion.foreseen import foresee
from convertkit.conversion.plan import Plan
from convertkit.conversion.planned_reader import NotWorkedOut, planned_reader
from convertkit.verbs.planned import DryRun, dry_run
from convertkit.verbs.reporting import audited_output, wanted_of

Values = Callable[[Checkpoint], Reader]


def foreseen(plan: Plan, audited: Callable[[Checkpoint, Values], Audit]) -> DryRun:
    """The plan with the audit of its output: headers are planned, and the few values that an audit reads follow from
    the source. Where one does not (the scales of a pack are searched in the weights), the plan alone."""
    with Reader(plan.source) as source:
        try:
            return dry_run(plan, audited(foresee(plan), lambda planned: planned_reader(planned, plan, source)))
        except NotWorkedOut:
            return dry_run(plan)


def foreseen_output(
    plan: Plan, engines: Sequence[str] = (), target_model: str | os.PathLike[str] | None = None
) -> DryRun:
    """The same for verbs whose report is ``reporting.audit_report``."""
    wanted = wanted_of(engines, target_model)
    return foreseen(plan, lambda output, values: audited_output(output, plan, wanted, values))
