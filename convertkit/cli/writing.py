"""Options and output that the commands share that write a folder."""

from __future__ import annotations

import functools
import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from convertkit.cli.common import (
    dry_run_option,
    force_option,
    max_shard_size_option,
    resume_option,
    size_option_value,
    workers_option,
)
from convertkit.cli.runner import Outcome, document_of
from convertkit.cli.text import count_text, findings_text, pairs, path_text, size_text, table
from convertkit.conversion.plan import DEFAULT_SHARD_BYTES
from convertkit.errors import shown
from convertkit.grids.nvfp4.devices import DEVICES
from convertkit.progress import Progress
from convertkit.verbs.planned import DryRun

if TYPE_CHECKING:
    from convertkit.conversion.plan import Plan
    from convertkit.verbs.case import Options, Result  # at run time it brings the compiled kernels

MAX_REASONS = 4
"""Reasons for dropped tensors that are told; reports have one for each tensor."""

TIMINGS = "CONVERTKIT_TIMINGS"
"""With this in the environment ``--json`` also holds seconds per stage; for benchmarks."""


def writing_options(command: Callable[..., int]) -> Callable[..., int]:
    """``--dry-run``, ``--force``, ``--resume`` and the others, collected into ``make_options`` and ``files``."""

    @dry_run_option
    @force_option
    @resume_option
    @click.option("--no-keep", is_flag=True, help="Remove an unfinished output even if it could be resumed.")
    @max_shard_size_option
    @click.option(
        "--header-slack",
        "header_slack_bytes",
        callback=size_option_value,
        metavar="SIZE",
        help="Leave spare bytes in the headers so that later renames need not move the weights.",
    )
    @click.option(
        "--report-dir",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Keep the reports here when a check rejects the output.",
    )
    @click.option("--publish-anyway", is_flag=True, help="Publish an output that a check rejects; the reports say so.")
    @click.option(
        "--device",
        type=click.Choice(DEVICES),
        default="cpu",
        show_default=True,
        help="Where weights are encoded and expanded; the bytes are the same.",
    )
    @click.option(
        "--engine",
        "engines",
        multiple=True,
        metavar="NAME[@VERSION]",
        help="Reject an output that this engine would refuse or serve wrong, see `convertkit audit`. May be repeated.",
    )
    @workers_option
    @functools.wraps(command)
    def wrapped(
        *,
        force: bool,
        resume: bool,
        no_keep: bool,
        workers: int,
        report_dir: Path | None,
        publish_anyway: bool,
        device: str,
        engines: tuple[str, ...],
        max_shard_bytes: int | None,
        header_slack_bytes: int | None,
        **rest: Any,
    ) -> int:
        def make_options(progress: Progress) -> Options:
            from convertkit.verbs.case import Options

            return Options(force, resume, not no_keep, workers, progress, report_dir, publish_anyway, device, engines)

        sizes = {
            "max_shard_bytes": max_shard_bytes or DEFAULT_SHARD_BYTES,
            "header_slack_bytes": header_slack_bytes or 0,
        }
        return command(make_options=make_options, sizes=sizes, **rest)

    return wrapped


def refuse_shard_size(why: str) -> None:
    """Usage error if ``--max-shard-size`` was given to a command that decides about files otherwise."""
    source = click.get_current_context().get_parameter_source("max_shard_bytes")
    if source is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError(f"--max-shard-size does not apply: {why}")


def outcome(made: Result | DryRun, what: str) -> Outcome:
    """Text and JSON of a finished run or of a plan. ``what`` is the verb's own line about the output."""
    return _planned(made) if isinstance(made, DryRun) else _done(made, what)


def _planned(made: DryRun) -> Outcome:
    plan = made.plan
    rows = [(file.name, size_text(file.header.size_bytes), count_text(len(file.header.order))) for file in plan.files]
    audited = () if made.audit is None else made.audit.findings
    lines = [
        findings_text([*plan.findings, *audited]),
        f"plan of {plan.verb}: nothing was written",
        table(("file", "size", "tensors"), rows, right=(1, 2)),
        pairs(
            [
                *((OPERATIONS.get(name, name), text) for name, text in _operations(plan)),
                ("shared global scales", count_text(len(made.document["shared_scales"]), "group")),
                ("dropped tensors", count_text(len(plan.drops))),
                ("also written", ", ".join(sorted(plan.documents)) or "nothing"),
                ("also copied", ", ".join(plan.side_files) or "nothing"),
                ("fingerprint", plan.fingerprint),
            ]
        ),
    ]
    matches = plan.parameters.get("matches")
    if isinstance(matches, Mapping) and matches:
        lines.append(
            "pattern matches:\n" + pairs([(name, count_text(count, "linear")) for name, count in matches.items()])
        )
    if made.audit is not None:
        errors = count_text(len(made.audit.errors), "error")
        lines.append(f"the audit of the output would {f'reject it: {errors}' if made.status else 'pass'}")
    document = document_of("plan", {**made.document, "dry_run": True})
    return Outcome(document, "\n".join(filter(None, lines)), made.status)


OPERATIONS = {
    "copy": "copied byte for byte",
    "relabel": "renamed",
    "borrow": "borrowed from the target",
    "cast": "cast to another dtype",
    "pack": "packed",
    "expand": "expanded",
    "respell": "re-spelled",
}


def _operations(plan: Plan) -> list[tuple[str, str]]:
    """How many tensors of the output each operation makes."""
    counts: dict[str, int] = {}
    for unit in plan.units:
        counts[unit.operation] = counts.get(unit.operation, 0) + len(unit.outputs)
    return [(name, count_text(count, "tensor")) for name, count in sorted(counts.items())]


def _done(made: Result, what: str) -> Outcome:
    plan = made.plan
    values: dict[str, Any] = {
        "verb": plan.verb,
        "output": str(made.out),
        "verdict": "fail" if made.status else "pass",
        "fingerprint": plan.fingerprint,
        "files": [{"path": file.name, "size_bytes": file.header.size_bytes} for file in plan.files],
        "reports": {
            name: {"verdict": report["verdict"], "summary": report["summary"]} for name, report in made.reports.items()
        },
        "manifest": dict(made.manifest),
        "carried_over": list(made.carried),
        "findings": [item.as_json() for item in made.findings],
    }
    if os.environ.get(TIMINGS):
        values["timings"] = dict(made.timings)
    weights = sum(file.header.size_bytes for file in plan.files)
    place = path_text(made.out)
    lines = [
        findings_text(item for item in made.findings if item.code != "N_DROPPED"),
        f"{what}: {place}  ({size_text(weights)} of weights, {count_text(len(plan.outputs), 'tensor')})",
        pairs([(name, f"{report['verdict']}: {summary_text(name, report)}") for name, report in made.reports.items()]),
    ]
    matches = plan.parameters.get("matches")
    if isinstance(matches, Mapping) and matches:
        lines.extend(f"  pattern {name}: {count_text(count, 'linear')}" for name, count in matches.items())
    if plan.drops:
        told = ("GGUF_REPORT.json", "REPAIR_REPORT.json")
        listed = next((name for name in told if name in made.reports), "LOAD_SHAPE_AUDIT.json")
        reasons = Counter(drop.reason for drop in plan.drops).most_common(MAX_REASONS)
        lines.append(f"  dropped: {count_text(len(plan.drops), 'tensor')}, listed in {listed}")
        lines.extend(f"    {count_text(count)}: {reason}" for reason, count in reasons)
    if made.carried:
        lines.append(f"  carried over from the old output: {', '.join(made.carried)}")
    lines.append(f"  check it: convertkit {'verify' if made.manifest else 'audit'} {shlex.quote(place)}")
    return Outcome(document_of("result", values), "\n".join(filter(None, lines)), made.status)


def summary_text(name: str, report: Mapping[str, Any]) -> str:
    """What a report says, on one line: by the row of ``SUMMARIES``, or the plain values of its summary."""
    summary = report["summary"]
    if name in SUMMARIES:
        verdicts = [f"{view['engine']} {VERDICTS[view['verdict']]}" for view in report.get("engines", ())]
        return ", ".join([SUMMARIES[name](summary), *verdicts])
    return ", ".join(
        f"{key.replace('_', ' ')} {count_text(value) if isinstance(value, int) else value}"
        for key, value in summary.items()
        if isinstance(value, (int, float, str))
    )


def _gate_text(summary: Mapping[str, Any]) -> str:
    whole = summary["whole"]
    parts = [count_text(summary["packed"], "weight") + " packed"]
    if whole["rel_rms"] is not None:
        parts.append(f"relative RMS error {whole['rel_rms']:.4f}")
    if whole["sqnr_db"] is not None:
        parts.append(f"SQNR {whole['sqnr_db']:.2f} dB")
    if "gain_db" in summary:
        gain = summary["gain_db"]
        parts.append(f"{gain['least']:.2f} to {gain['largest']:.2f} dB above amax")
    if summary["worst"]:
        parts.append(f"worst {shown(summary['worst'])}")
    return ", ".join(parts)


def _expansion_text(summary: Mapping[str, Any]) -> str:
    parts = []
    if summary["expanded"]:
        parts += [
            count_text(summary["expanded"], "weight") + " expanded",
            f"{count_text(summary['differing'])} of {count_text(summary['elements'], 'element')} "
            "other than the exact value rounded once",
            f"{count_text(summary['unrecovered'])} codes lost" if summary["unrecovered"] else "every code recoverable",
        ]
    if summary["respelled"]:
        parts.append(count_text(summary["respelled"], "weight") + " re-spelled, codes and block scales unchanged")
    if summary.get("against_differing") is not None:
        parts.append(f"{count_text(summary['against_differing'])} elements other than the reference")
    return ", ".join(parts) or "nothing to expand"


def _audit_text(summary: Mapping[str, Any]) -> str:
    packed, dense = summary["packed_linears"], summary["dense_linears"]
    linears = f"{count_text(packed)} packed and {count_text(dense)} dense linears"
    return ", ".join(
        [
            f"{summary['layout']} as {summary['dialect']}",
            *([linears] if packed or dense else []),  # those of a GGUF are not counted
            count_text(summary["errors"], "error"),
            count_text(summary["warnings"], "warning"),
        ]
    )


VERDICTS = {"loads": "loads it", "wrong": "serves it wrong", "refused": "refuses it", "unknown": "unknown"}
"""How to say an engine's verdict in a line."""

SUMMARIES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "FIDELITY_GATE.json": _gate_text,
    "DEQUANT_REPORT.json": _expansion_text,
    "LOAD_SHAPE_AUDIT.json": _audit_text,
}
"""How to say a report's summary on one line."""
