"""``convertkit gate CANDIDATE --reference REF``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from convertkit.cli.common import folder_argument, shared_options, workers_option
from convertkit.cli.runner import Outcome, Shared, run
from convertkit.cli.text import findings_text, table
from convertkit.cli.thresholds import threshold_options

MAX_ROWS = 40


@click.command("gate", epilog="Example: convertkit gate drafter-nvfp4 --reference drafter-bf16 --max-rel-rms 0.1")
@folder_argument("candidate")
@click.option(
    "--reference", type=click.Path(path_type=Path), required=True, metavar="REF", help="What to compare with."
)
@click.option("--stored", type=click.Choice(("bf16", "f16", "f32")), help="Round the candidate to this type first.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write FIDELITY_GATE.json here.")
@threshold_options
@workers_option
@shared_options
def command(
    candidate: Path,
    reference: Path,
    stored: str | None,
    report: Path | None,
    limits: Mapping[str, float | None],
    workers: int,
    shared: Shared,
) -> int:
    """Compare CANDIDATE with REF as values, tensor by tensor, and judge it by the limits.

    Either side may be dense or packed in any dialect. Exit status 1 when the gate says no.
    """
    from convertkit.verbs.gate import GateResult, gate

    def outcome(made: GateResult) -> Outcome:
        return Outcome(made.document, _text(made.document, made.rows, made), made.status)

    return run(
        shared,
        lambda progress: outcome(
            gate(candidate, reference, limits=limits, stored=stored, report=report, workers=workers, progress=progress)
        ),
    )


def _text(document: Mapping[str, Any], rows: Any, made: Any) -> str:
    """Problems first, then the worst weights, then the verdict."""
    measured = [row for row in rows if "metrics" in row and row["metrics"]["changed"]]
    measured.sort(key=lambda row: (row["scope"] == "whole", -(row["metrics"]["rel_rms"] or 0.0), row["name"]))
    lines = [
        (
            row["name"] if row["scope"] == "tensor" else f"{row['scope']}: {row['name']}",
            _number(row["metrics"]["rel_rms"], ".4f"),
            _number(row["metrics"]["sqnr_db"], ".2f"),
            _number(row["metrics"]["cosine"], ".5f"),
            _number(row["metrics"]["max_abs_error"], ".3g"),
            _number(100 * row["metrics"]["changed_fraction"], ".1f"),
            row["metrics"].get("flushed_blocks", ""),
        )
        for row in (measured if len(measured) <= MAX_ROWS else [*measured[: MAX_ROWS - 1], measured[-1]])
    ]
    same = sum(1 for row in rows if row["scope"] == "tensor") - sum(1 for row in measured if row["scope"] == "tensor")
    body = table(
        ("weight", "rel rms", "SQNR dB", "cosine", "max error", "changed %", "flushed"), lines, right=range(1, 7)
    )
    return "\n".join(
        filter(
            None,
            [
                findings_text(made.findings),
                body if lines else "",
                f"{len(measured) - len(lines)} more changed weights are in the report"
                if len(measured) > len(lines)
                else "",
                f"{same} weights are equal",
                "passed" if made.status == 0 else "FAILED",
            ],
        )
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
