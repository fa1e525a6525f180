"""What an audit says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from convertkit.errors import Finding


@dataclass(frozen=True)
class Audit:
    """``rows`` and ``summary`` are JSON values for the report; ``findings`` decide the verdict."""

    rows: tuple[Mapping[str, Any], ...]
    summary: Mapping[str, Any]
    findings: tuple[Finding, ...] = field(default_factory=tuple)
    engines: tuple[Mapping[str, Any], ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(item for item in self.findings if item.severity == "error")
