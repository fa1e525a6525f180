"""The audit of an output beside that of its source: for verbs that put one thing right and copy the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from convertkit.checkpoint import Checkpoint, TensorSpec
from convertkit.checks.audit import audit_written
from convertkit.checks.audited import Audit
from convertkit.checks.wanted import Wanted
from convertkit.containers.reader import Reader
from convertkit.conversion.plan import Plan
from convertkit.engines.rules import parse_engines
from convertkit.release.reports import settled
from convertkit.verbs.case import Case, Report
from convertkit.verbs.foresight import foreseen
from convertkit.verbs.planned import DryRun
from convertkit.verbs.reporting import AUDIT, report_of


@dataclass(frozen=True)
class Beside:
    """What the audit of the ``source`` says as well is no reason to refuse a repair of something else, so such errors
    of the output become warnings, as do those of ``accepted`` codes, which were asked for. ``engines`` that are named
    answer for the output, and what they would refuse or serve wrong counts."""

    source: Checkpoint
    accepted: Iterable[str] = ()
    engines: Sequence[str] = field(default=())

    def audited(
        self, output: Checkpoint, expected: Iterable[TensorSpec], values: Callable[[Checkpoint], Reader] = Reader
    ) -> Audit:
        wanted = Wanted(parse_engines(self.engines)) if self.engines else None
        audit = audit_written(output, expected, wanted=wanted, values=values)
        before = set(self.accepted)
        if any(item.code not in before for item in audit.errors):  # only then does it matter what the source has
            before |= {item.code for item in audit_written(self.source).errors}
        found = tuple(
            replace(item, severity="warning") if item.severity == "error" and item.code in before else item
            for item in audit.findings
        )
        errors = sum(item.severity == "error" for item in found)
        warnings = sum(item.severity == "warning" for item in found)
        return replace(audit, findings=found, summary={**audit.summary, "errors": errors, "warnings": warnings})

    def report(self, case: Case) -> Report:
        """LOAD_SHAPE_AUDIT.json of what was staged."""
        audit = self.audited(case.output, case.plan.outputs.values())
        views = {"engines": [settled(view) for view in audit.engines]} if self.engines else {}
        return report_of(AUDIT, "load-shape-audit", case, audit.rows, audit.summary, audit.findings, views)

    def foreseen(self, plan: Plan) -> DryRun:
        """The plan, with what that audit will say: the headers are known, and the few values that it reads follow from
        the source."""
        return foreseen(plan, lambda output, values: self.audited(output, plan.outputs.values(), values))
