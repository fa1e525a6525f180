"""``convertkit audit SRC``: would a loader find what it needs, and does the config say what the tensors show?"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from convertkit.cli.common import SourcePath, shared_options, source_argument, workers_option
from convertkit.cli.runner import Outcome, Shared, document_of, run
from convertkit.cli.text import count_text, findings_text, table

if TYPE_CHECKING:
    from convertkit.verbs.audit import AuditResult


@click.command("audit", epilog="Example: convertkit audit drafter-nvfp4 --scan")
@source_argument("src", headers_only=True)
@click.option(
    "--scan", is_flag=True, help="Read all values too: bad block scales, NaN and infinity, weights on a grid."
)
@click.option("--fuse", multiple=True, metavar="NAMES", help="One more fused group, such as 'a.{i}.to_q,a.{i}.to_k'.")
@click.option(
    "--engine",
    "engines",
    multiple=True,
    metavar="NAME[@VERSION]",
    help="Say what this engine would do: vllm, sglang, llama.cpp, tensorrt-llm, transformers, or all. May be repeated.",
)
@click.option("--target-model", type=SourcePath(headers_only=True), metavar="DIR", help="The target of a drafter.")
@click.option("--tp", type=click.IntRange(1, 1024), default=1, metavar="N", help="Ranks of tensor parallelism.")
@click.option("--against", type=SourcePath(headers_only=True), metavar="REF", help="Must be a drop-in for this one.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write LOAD_SHAPE_AUDIT.json here.")
@workers_option
@shared_options
def command(
    src: Path,
    scan: bool,
    fuse: tuple[str, ...],
    engines: tuple[str, ...],
    target_model: Path | None,
    tp: int,
    against: Path | None,
    report: Path | None,
    workers: int,
    shared: Shared,
) -> int:
    """Audit the checkpoint SRC: names, shapes, dtypes, whole planes, config against tensors, fused scales.

    Drafters are also compared with the tensors that their layout needs, and with --engine every tensor and parameter is
    followed into the engine: it loads and is complete, loads but wrong, is refused, or nothing is known. Exit status 1
    when there is an error.
    """
    from convertkit.verbs.audit import audit

    def work(progress: Any) -> Outcome:
        made = audit(
            src, fuse=fuse, scan=scan, engines=engines, target_model=target_model, tp=tp, against=against,
            report=report, workers=workers, progress=progress,
        )  # fmt: skip
        said = made.document if report is not None else document_of("audit", made.document)
        return Outcome(said, "\n".join(lines(made)), made.status)

    return run(shared, work)


def lines(made: AuditResult) -> Iterator[str]:
    """Problems, then the linears, then the verdict."""
    summary = made.document["summary"]
    if made.findings:
        yield findings_text(made.findings)
        yield ""
    rows = made.document.get("rows", ())
    followed = next((view["engine"] for view in made.document.get("engines", ()) if _follows(rows, view)), None)
    linears = [row for row in rows if _is_linear(row)]
    if followed is not None:
        yield _fates(rows, followed)
        yield ""
    elif linears:
        yield table(
            ("linear", "count", "stored as", "shape [out, in]", "config says"),
            [
                (
                    row["name"].removesuffix(".weight"),
                    count_text(row["count"]),
                    row["grid"] if row["planes"] else row["dtype"],
                    row["shape"],
                    row["config"] or "-",
                )
                for row in linears
            ],
            right=(1,),
        )
        yield ""
    yield from _engine_lines(made.document.get("engines", ()))
    what = f"{summary['layout']}, {summary['dialect']}: {count_text(summary['tensors'], 'tensor')}"
    packed = f"{count_text(summary['packed_linears'], 'packed linear')} in"
    groups = f"{count_text(summary['fused_groups'], 'fused group')}"
    yield f"{what}, {packed} {groups}" if summary["packed_linears"] else what
    errors, warnings = count_text(summary["errors"], "error"), count_text(summary["warnings"], "warning")
    yield f"{'passed' if made.status == 0 else 'FAILED'}: {errors}, {warnings}"


def _follows(rows: Sequence[Mapping[str, Any]], view: Mapping[str, Any]) -> bool:
    """Whether the rows say what becomes of their tensors in an engine."""
    return any(view["engine"] in row.get("engines", {}) for row in rows)


def _fates(rows: Sequence[Mapping[str, Any]], engine: str) -> str:
    """One line per family of stored tensors, with what becomes of it in one engine."""
    return table(
        ("stored", "count", "as", "shape", f"in {engine}"),
        [
            (
                row["name"].removesuffix(".weight"),
                count_text(row["count"]),
                row["grid"] if row["planes"] else row["dtype"],
                row["shape"],
                row.get("engines", {}).get(engine, "-").removeprefix("fills ").replace(".weight", ""),
            )
            for row in rows
        ],
        right=(1,),
    )


VERDICTS = {"loads": "loads, complete", "wrong": "loads but wrong", "refused": "refused", "unknown": "unknown"}
PROOFS = {"run": "run", "read": "read only", "none": "not described"}


def _engine_lines(views: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A matrix of engines, then for each what fills its parameters, and the settings that follow."""
    if not views:
        return
    yield table(
        ("engine", "version", "loader", "verdict", "parameters"),
        [
            (
                view["engine"],
                view["version"],
                PROOFS[view["proof"]],
                VERDICTS[view["verdict"]],
                ", ".join(f"{count} {outcome}" for outcome, count in sorted(view["parameters"].items())) or "-",
            )
            for view in views
        ],
    )
    yield ""
    for view in views:
        yield from _parameters(view)
        yield from _settings(view)


def _parameters(view: Mapping[str, Any]) -> Iterator[str]:
    """One line per family of parameters that is not simply filled, and a count of the others."""
    odd = [row for row in view["expected"] if row["outcome"] != "filled"]
    if odd:
        yield f"{view['engine']} {view['version']}: parameters that stored tensors do not fill"
        rows = unfilled_rows(odd)
        yield table(("parameter", "count", "outcome", "by / missing"), rows, right=(1,), indent=2)
        yield ""


def unfilled_rows(odd: Iterable[Mapping[str, Any]]) -> list[tuple[str, int, str, str]]:
    """Rows that differ in layer numbers only are one. A parameter that is itself what is missing is not said twice."""
    from convertkit.layouts.rules import template_of

    counts: dict[tuple[str, str, str], int] = {}
    for row in odd:
        missing = [name for part in row["missing"][:3] if (name := template_of(part)[0]) != row["name"]]
        kind = row["name"], row["outcome"], ", ".join(row["from"]) or ", ".join(missing) or "-"
        counts[kind] = counts.get(kind, 0) + row["count"]
    return [(name, count, outcome, what) for (name, outcome, what), count in counts.items()]


def _settings(view: Mapping[str, Any]) -> Iterator[str]:
    """What to serve it with, the reasons below."""
    if not view["settings"]:
        return
    yield f"{view['engine']} {view['version']}: settings that follow from the checkpoint"
    if view["engine"] == "vllm":
        given = {row["name"]: row["value"] for row in view["settings"] if row["kind"] != "environment"}
        yield f"  --speculative-config '{json.dumps({'model': 'SRC', **given})}'"
    for row in view["settings"]:
        sign = {"limit": " at most", "choice": ", as proposed,"}.get(row["kind"], "")
        yield f"  {row['name']}{sign} {json.dumps(row['value'])}: {row['why']}"
    yield ""


def _is_linear(row: Mapping[str, Any]) -> bool:
    return bool(row["planes"]) or row["config"] is not None
