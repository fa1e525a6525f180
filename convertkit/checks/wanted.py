"""What a user may ask of an audit beyond the checkpoint itself: engines, a target, a reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.checks.against import against_findings
from convertkit.checks.engines import EngineAudit, audit_engines, fate_rows
from convertkit.checks.odd_values import copy_findings
from convertkit.checks.pairing import pair_findings
from convertkit.checks.target import TargetModel
from convertkit.conversion.identify import Identity, identify
from convertkit.engines.rules import Asked
from convertkit.errors import Finding

Row = Mapping[str, Any]


@dataclass(frozen=True)
class More:
    """Rows with the fates of tensors, one view per engine, and findings."""

    rows: tuple[Row, ...]
    views: tuple[Mapping[str, Any], ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Wanted:
    """``engines`` in their versions, with ``ranks`` of tensor parallelism; the ``target`` of a drafter; ``reference``
    is a checkpoint that this one must be a drop-in for."""

    engines: tuple[Asked, ...] = ()
    target: TargetModel | None = None
    ranks: int = 1
    reference: Checkpoint | None = None

    def audit(
        self,
        checkpoint: Checkpoint,
        identity: Identity,
        rows: tuple[Row, ...],
        known: Sequence[Finding] = (),
        scan: bool = False,
    ) -> More:
        """Everything asked for. ``known`` are findings about values, which change what an engine serves; with ``scan``
        copies of the target's tensors are compared too."""
        findings: list[Finding] = []
        if self.target is not None and identity.kind == "drafter":
            findings += pair_findings(checkpoint, identity, self.target)
            if scan and self.target.checkpoint is not None:
                findings += copy_findings(checkpoint, self.target.checkpoint)
        if self.reference is not None:
            findings += against_findings((checkpoint, identity), (self.reference, identify(self.reference)))
        found = EngineAudit()
        if self.engines:
            found = audit_engines(checkpoint, identity, self.engines, self.target, self.ranks, known)
            rows = tuple(fate_rows(rows, found, checkpoint))
        return More(rows, found.views, (*findings, *found.findings))
