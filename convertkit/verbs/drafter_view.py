"""What ``inspect`` says of a drafter: its meaning, and what each reader would make of it."""

from __future__ import annotations

from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.checks.drafters import drafter_findings
from convertkit.conversion.identify import Identity
from convertkit.drafter import as_json, plain
from convertkit.engines.agreement import Statement
from convertkit.engines.reading import Understanding
from convertkit.engines.tables import ENGINES
from convertkit.errors import Finding
from convertkit.layouts.reading import stated_spec


def drafter_view(checkpoint: Checkpoint, identity: Identity) -> tuple[dict[str, Any] | None, tuple[Finding, ...]]:
    """The spec and the readings as JSON values, and findings; None if the checkpoint is no drafter with a config."""
    stated = stated_spec(identity.layout, checkpoint.config, checkpoint.tensors) if checkpoint.config else None
    if stated is None:
        return None, ()
    spec = stated[0]
    statement = Statement(identity.layout, checkpoint.config, checkpoint.tensors)
    readers = [_reader(statement.read_by(engine, spec)) for engine in ENGINES]
    return {"spec": as_json(spec), "readers": readers}, tuple(drafter_findings(checkpoint, identity))


def _reader(read: Understanding) -> dict[str, Any]:
    return {
        "name": read.engine.name,
        "version": read.engine.version,
        "reads": read.spec is not None,
        "why": read.why,
        "differs": {name: plain(getattr(read.spec, name)) for name in read.differing},
        "refuses": [{"field": field, "why": why} for field, why in read.refused],
        "give": {option: value for option, value in read.given.items() if value is not None},
    }
