"""``convertkit audit SRC``: would a loader find what it needs, and does the config say what the tensors show?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from convertkit.cli.common import folder_argument, shared_options, workers_option
from convertkit.cli.runner import Outcome, Shared, run
from convertkit.cli.text import count_text, findings_text, table

if TYPE_CHECKING:
    from convertkit.verbs.audit import AuditResult


@click.command("audit", epilog="Example: convertkit audit drafter-nvfp4 --scan")
@folder_argument("src")
@click.option("--scan", is_flag=True, help="Read all values too: bad block scales, NaN and infinity, weights on a grid.")
@click.option("--fuse", multiple=True, metavar="NAMES", help="One more fused group, such as 'a.{i}.to_q,a.{i}.to_k'.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write LOAD_SHAPE_AUDIT.json here.")
@workers_option
@shared_options
def command(src: Path, scan: bool, fuse: tuple[str, ...], report: Path | None, workers: int, shared: Shared) -> int:
    """Audit the checkpoint SRC: names, shapes, dtypes, whole planes, config against tensors, fused scales.

    Drafters are also compared with the tensors that their layout needs. Exit status 1 when there is an error.
    """
    from convertkit.verbs.audit import audit

    def work(progress: Any) -> Outcome:
        made = audit(src, fuse=fuse, scan=scan, report=report, workers=workers, progress=progress)
        return Outcome(made.document, "\n".join(lines(made)), made.status)

    return run(shared, work)


def lines(made: AuditResult) -> Iterator[str]:
    """Problems, then the linears, then the verdict."""
    summary = made.document["summary"]
    if made.findings:
        yield findings_text(made.findings)
        yield ""
    linears = [row for row in made.document.get("rows", ()) if _is_linear(row)]
    if linears:
        yield table(
            ("linear", "count", "stored as", "shape [out, in]", "config says"),
            [
                (
                    row["name"].removesuffix(".weight"),
                    count_text(row["count"]),
                    row["grid"] if row["planes"] else row["dtype"],
                    row["shape"],
                    row["config"] or "nothing",
                )
                for row in linears
            ],
            right=(1,),
        )
        yield ""
    what = f"{summary['layout']}, {summary['dialect']}: {count_text(summary['tensors'], 'tensor')}"
    packed = f"{count_text(summary['packed_linears'], 'packed linear')} in"
    groups = f"{count_text(summary['fused_groups'], 'fused group')}"
    yield f"{what}, {packed} {groups}" if summary["packed_linears"] else what
    errors, warnings = count_text(summary["errors"], "error"), count_text(summary["warnings"], "warning")
    yield f"{'passed' if made.status == 0 else 'FAILED'}: {errors}, {warnings}"


def _is_linear(row: Mapping[str, Any]) -> bool:
    return bool(row["planes"]) or row["config"] is not None
