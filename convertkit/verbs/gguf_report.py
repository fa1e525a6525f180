"""GGUF_REPORT.json: every tensor on the way into or out of a GGUF file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from convertkit.checks.bench import Evidence
from convertkit.checks.evidence import RecodedEvidence
from convertkit.checks.fidelity import metrics
from convertkit.checks.gguf_file import file_findings
from convertkit.checks.gguf_written import written_findings
from convertkit.checks.scales import inverted_scales
from convertkit.conversion.identify import identify
from convertkit.errors import Finding
from convertkit.grids.ggml.types import K_TYPES
from convertkit.verbs.case import Case, Report, Reporter
from convertkit.verbs.reporting import report_of

GGUF_REPORT = "GGUF_REPORT.json"
TOLD = ("N_DROPPED", "W_GGUF_FALLBACK", "W_NOT_RECOVERED", "W_TARGET")
"""Findings of the plan that the report repeats."""


def gguf_report(*, written: bool) -> Reporter:
    """The report of a run. ``written`` says that the output is a GGUF: then it is read again as llama.cpp would, and
    what llama.cpp would refuse or silently misread is an error."""

    def report(case: Case) -> Report:
        rows = [row for item in case.evidence for row in _rows(case, item)]
        found = list(_written(case)) if written else []
        types = Counter(str(row["dtype"]) for row in rows)
        summary = {
            "tensors": len(rows),
            "types": dict(sorted(types.items())),
            "fallbacks": sum(item.code == "W_GGUF_FALLBACK" for item in case.plan.findings),
            "encoder": _encoder(types),
        }
        told = [item for item in case.plan.findings if item.code in TOLD]
        made = report_of(GGUF_REPORT, "gguf-report", case, rows, summary, [*found, *told])
        return replace(made, findings=tuple(found))

    return report


def _written(case: Case) -> Iterator[Finding]:
    """What is wrong with the staged file by itself, and beside what its source means."""
    source, bits = case.plan.source, case.facts.global_bits
    identity = identify(source)
    yield from inverted_scales({name: item for name, item in identity.packed.items() if name in bits}, bits)
    yield from file_findings(case.output)
    yield from written_findings(source, identity, case.output)


def _encoder(types: Mapping[str, int]) -> dict[str, str] | None:
    """The ggml by which the checks encoded the first rows of k-quants again."""
    if not any(name in types for name in K_TYPES):
        return None
    from convertkit.backends.ggml_library import library

    found = library()
    return None if found is None else {"package": found.package, "version": found.version}


def _rows(case: Case, item: Evidence) -> Iterable[dict[str, Any]]:
    details = {detail.name: detail for detail in item.details if isinstance(detail, RecodedEvidence)}
    for spec in item.unit.outputs:
        detail = details.get(spec.name)
        yield {
            "name": spec.name,
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "promise": item.unit.promise,
            "operation": item.unit.operation,
            "sha256": case.tensor_sha256[spec.name],
            "inputs": list(item.unit.inputs),
            "fidelity": None if detail is None else _fidelity(detail),
        }


def _fidelity(detail: RecodedEvidence) -> dict[str, Any]:
    measured = metrics(detail.tally)
    return {key: measured[key] for key in ("elements", "changed", "rel_rms", "max_abs_error")}
