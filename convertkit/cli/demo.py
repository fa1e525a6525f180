"""``convertkit demo [OUT]``: the whole line on a small generated drafter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from convertkit.cli.common import force_option, shared_options, workers_option
from convertkit.cli.runner import Outcome, Shared, document_of, run
from convertkit.cli.text import count_text, size_text

if TYPE_CHECKING:
    from convertkit.verbs.demo import DemoResult


@click.command("demo")
@click.argument("out", type=click.Path(path_type=Path), default="demo-out")
@click.option(
    "--scale", type=click.Choice(("tiny", "small")), default="small", show_default=True, help="0.4 MB or 36 MB."
)
@force_option
@workers_option
@shared_options
def command(out: Path, scale: str, force: bool, workers: int, shared: Shared) -> int:
    """Generate a small DFlash 2 drafter in OUT, pack, expand, gate, audit and verify it.

    OUT is demo-out if not given. With --force what an earlier demo left there is replaced, and nothing else.
    """
    from convertkit.verbs.demo import demo

    return run(
        shared,
        lambda progress: outcome(demo(out, scale=scale, force=force, workers=workers, progress=progress)),
    )


def outcome(made: DemoResult) -> Outcome:
    steps = [
        {"title": step.title, "folder": step.folder.name, "status": step.status, "facts": step.facts}
        for step in made.steps
    ]
    values = {"output": str(made.out), "status": made.status, "steps": steps}
    return Outcome(document_of("demo", values), "\n".join(text(made)), made.status)


def _written(facts: Mapping[str, Any]) -> Iterator[str]:
    for name, report in facts["reports"].items():
        yield f"{name}: {report['verdict']}"


def _expanded(facts: Mapping[str, Any]) -> Iterator[str]:
    yield from _written(facts)
    summary = facts["reports"]["DEQUANT_REPORT.json"]["summary"]
    elements, differing = count_text(summary["elements"], "element"), count_text(summary["differing"])
    yield f"{elements}, {differing} of them other than the exact value rounded once"


def _gated(facts: Mapping[str, Any]) -> Iterator[str]:
    whole = facts["whole"]
    if whole["exact"]:
        yield f"{count_text(whole['elements'], 'element')}, none changed"
        return
    yield f"relative RMS {whole['rel_rms']:.4f}, SQNR {whole['sqnr_db']:.2f} dB, cosine {whole['cosine']:.5f}"


LINES: dict[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
    "generated": lambda facts: iter(
        [f"{count_text(facts['tensors'], 'tensor')}, {count_text(facts['parameters'])} parameters"]
    ),
    "written": _written,
    "expanded": _expanded,
    "gated": _gated,
    "audited": lambda facts: iter(
        [
            f"{count_text(facts['tensors'], 'tensor')}, {count_text(facts['errors'], 'error')}, "
            f"{count_text(facts['warnings'], 'warning')}"
        ]
    ),
    "verified": lambda facts: iter(
        [f"{count_text(facts['files_ok'], 'file')} ({size_text(facts['size_bytes'])}) agree"]
    ),
}


def text(made: DemoResult) -> Iterator[str]:
    """One line or two per step, then where to look."""
    for step in made.steps:
        yield f"{step.title}: {step.folder}"
        yield from (f"    {line}" for line in LINES[step.kind](step.facts))
    last = made.steps[-1].folder.parent
    yield ""
    yield f"Look at {last / 'drafter-nvfp4'} (config.json, FIDELITY_GATE.json, LOAD_SHAPE_AUDIT.json, MANIFEST.json)"
    yield f"    and {last / 'drafter-expanded' / 'DEQUANT_REPORT.json'}, then try:"
    yield f"    convertkit inspect {last / 'drafter-nvfp4'}"
    yield f"    (cd {last / 'drafter-nvfp4'} && sha256sum -c --strict SHA256SUMS)"
    yield "all steps passed" if made.status == 0 else "SOME STEP FAILED"
