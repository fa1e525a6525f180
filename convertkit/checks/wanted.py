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
from convertkit.engines.rules import ENGINES, Asked
from convertkit.errors import Finding, finding

Row = Mapping[str, Any]

MEANT_FOR: Mapping[str, tuple[str, ...]] = {
    "gguf": ("llama.cpp",),
    "drafter": ("vllm", "sglang"),
    "model": ("vllm", "sglang", "transformers"),
}
"""The engines that an output is for, unless others are asked for, by what it is."""


@dataclass(frozen=True)
class More:
    """Rows with the fates of tensors, one view per engine, and findings."""

    rows: tuple[Row, ...]
    views: tuple[Mapping[str, Any], ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Wanted:
    """``engines`` in their versions, with ``ranks`` of tensor parallelism; the ``target`` of a drafter; ``reference``
    is a checkpoint that this one must be a drop-in for. ``unasked``: nobody named an engine, so those that the
    checkpoint is meant for answer, and only that none of them would load it right is a finding."""

    engines: tuple[Asked, ...] = ()
    target: TargetModel | None = None
    ranks: int = 1
    reference: Checkpoint | None = None
    unasked: bool = False

    def engines_for(self, what: str) -> tuple[Asked, ...]:
        """The engines that answer for a checkpoint that is a ``gguf``, ``drafter`` or something else."""
        if not self.unasked:
            return self.engines
        names = MEANT_FOR.get(what, MEANT_FOR["model"])
        return tuple(Asked(ENGINES[name], ENGINES[name].proven[0], False) for name in names)

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
        asked = self.engines_for(identity.kind)
        if asked:
            found = audit_engines(checkpoint, identity, asked, self.target, self.ranks, known)
            rows = tuple(fate_rows(rows, found, checkpoint))
        told = nowhere(found.views) if self.unasked else found.findings
        return More(rows, found.views, (*findings, *told))


def nowhere(views: Sequence[Mapping[str, Any]]) -> tuple[Finding, ...]:
    """One finding if no engine loads the checkpoint right and at least one is known not to."""
    known = [view for view in views if view["verdict"] in ("refused", "wrong")]
    if not known or any(view["verdict"] == "loads" for view in views):
        return ()
    words = {"refused": "refuses it", "wrong": "serves it wrong"}
    what = "; ".join(
        f"{view['engine']} {view['version']} {words[view['verdict']]}: {(view['reasons'] or ['?'])[0]}"
        for view in known
    )
    data = {"verdicts": {view["engine"]: view["verdict"] for view in views}}
    message = f"no engine that it is meant for is known to load it right: {what}"
    return (finding("W_NO_ENGINE", "warning", message, fix="see 'engines' in the report", data=data),)
