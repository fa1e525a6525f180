"""What the verbs that write a folder are given, and what they make: options, the case, reports, the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convertkit.checkpoint import Checkpoint
from convertkit.checks.bench import Evidence
from convertkit.conversion.plan import Plan
from convertkit.conversion.survey import Facts
from convertkit.errors import Finding
from convertkit.progress import SILENT, Progress


@dataclass(frozen=True)
class Options:
    """How to write, for every verb that writes a folder. None of it changes the bytes of the output.

    ``report_dir`` keeps the reports of an output that is not published; ``publish_anyway`` publishes an output
    that a gate or audit rejects, with that verdict in its reports. ``device`` (cpu, cuda) searches, encodes and
    expands; checks stay on the CPU. ``engines`` are asked in the audit of the output: what they refuse or serve wrong
    rejects it.
    """

    force: bool = False
    resume: bool = False
    keep: bool = True
    workers: int = 0
    progress: Progress = SILENT
    report_dir: Path | None = None
    publish_anyway: bool = False
    device: str = "cpu"
    engines: Sequence[str] = ()


@dataclass(frozen=True)
class Case:
    """All that is known once the output is staged and checked: what reports are made from. ``output`` are the headers
    and documents of ``staged`` as the checks read them."""

    plan: Plan
    facts: Facts
    evidence: Sequence[Evidence]
    staged: Path
    output: Checkpoint
    tensor_sha256: Mapping[str, str]
    file_sha256: Mapping[str, str]
    source_files: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Report:
    """One report: file name, encoded files (the report and perhaps its rows), document, and its error findings."""

    name: str
    files: Mapping[str, bytes]
    document: Mapping[str, Any]
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Result:
    """What a verb that writes gives back. ``status`` is 0, or 1 if a check said no and it was published anyway."""

    out: Path
    plan: Plan = field(repr=False)
    status: int
    findings: tuple[Finding, ...]
    reports: Mapping[str, Mapping[str, Any]] = field(repr=False)
    manifest: Mapping[str, Any] = field(repr=False)
    carried: tuple[str, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict, repr=False)


Reporter = Callable[[Case], Report]
