"""``convertkit gate CANDIDATE --reference REF``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from convertkit.cli.common import SourcePath, shared_options, source_argument, workers_option
from convertkit.cli.runner import Outcome, Shared, run
from convertkit.cli.text import count_text, findings_text, table
from convertkit.cli.thresholds import threshold_options

MAX_ROWS = 40
ENGINES = ("vllm-marlin", "vllm-emulation", "sglang-marlin", "ggml", "modelopt", "compressed-tensors")
"""Weights that the text shows."""


@click.command("gate", epilog="Example: convertkit gate drafter-nvfp4 --reference drafter-bf16 --max-rel-rms 0.1")
@source_argument("candidate")
@click.option("--reference", type=SourcePath(), required=True, metavar="REF", help="What to compare with.")
@click.option("--stored", type=click.Choice(("bf16", "f16", "f32")), help="Round the candidate to this type first.")
@click.option("--as-served", type=click.Choice(ENGINES), help="Decode the candidate as this engine would serve it.")
@click.option("--fuse", multiple=True, metavar="A,B", help="Modules that an engine fuses, beside those known.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write FIDELITY_GATE.json here.")
@threshold_options
@workers_option
@shared_options
def command(
    candidate: Path,
    reference: Path,
    stored: str | None,
    as_served: str | None,
    fuse: tuple[str, ...],
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
            gate(
                candidate,
                reference,
                limits=limits,
                stored=stored,
                as_served=as_served,
                fuse=fuse,
                report=report,
                workers=workers,
                progress=progress,
            )
        ),
    )


def _text(document: Mapping[str, Any], rows: Any, made: Any) -> str:
    """Problems first, then the worst weights and the whole, then the verdict. Fused groups are in the report."""
    tensors = [row for row in rows if row["scope"] == "tensor"]
    changed = [row for row in tensors if "metrics" in row and row["metrics"]["changed"]]
    changed.sort(key=lambda row: (-(row["metrics"]["rel_rms"] or 0.0), row["name"]))
    whole = [row for row in rows if row["scope"] == "whole" and row["metrics"]["changed"]]
    lines = [
        (
            row["name"] if row["scope"] == "tensor" else "whole checkpoint",
            _number(row["metrics"]["rel_rms"], ".4f"),
            _number(row["metrics"]["sqnr_db"], ".2f"),
            _number(row["metrics"]["cosine"], ".5f"),
            _number(row["metrics"]["max_abs_error"], ".3g"),
            _number(100 * row["metrics"]["changed_fraction"], ".1f"),
            row["metrics"].get("flushed_blocks", ""),
        )
        for row in (*changed[:MAX_ROWS], *whole)
    ]
    headers = ("weight", "rel rms", "SQNR dB", "cosine", "max error", "changed %", "flushed")
    return "\n".join(
        filter(
            None,
            [
                findings_text(made.findings),
                table(headers, lines, right=range(1, 7)) if lines else "",
                f"the worst {MAX_ROWS} of {len(changed)} changed weights; --report lists all"
                if len(changed) > MAX_ROWS
                else "",
                f"{count_text(len(tensors) - len(changed), 'weight')} without a changed value",
                _served(document["summary"]["as_served"]),
                "passed" if made.status == 0 else "FAILED",
            ],
        )
    )


def _served(engine: Mapping[str, Any] | None) -> str:
    return "" if engine is None else f"as served by {engine['engine']} ({engine['origin']}; {engine['proof']})"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
