"""``convertkit release RECIPE [OUT]`` and ``convertkit release init SRC``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from convertkit.cli.common import dry_run_option, force_option, resume_option, shared_options, workers_option
from convertkit.cli.runner import Outcome, Shared, document_of, run
from convertkit.cli.text import count_text, findings_text, pairs, path_text, size_text, table

if TYPE_CHECKING:
    from convertkit.verbs.release import ReleasePlan, ReleaseResult


@click.command("release", epilog="Example: convertkit release init drafter-bf16 --output drafter.toml")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.argument("out", required=False)
@click.option("--target-model", metavar="DIR", help="init: the target's folder.")
@click.option("--target-id", metavar="ORG/NAME", help="init: the target's hub name.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="init: write the recipe here.")
@dry_run_option
@force_option
@resume_option
@click.option("--no-keep", is_flag=True, help="Remove an unfinished output even if it could be resumed.")
@click.option("--report-dir", type=click.Path(path_type=Path), metavar="DIR", help="Keep reports of a refusal here.")
@click.option("--publish-anyway", is_flag=True, help="Publish a release that a check rejects; the reports say so.")
@workers_option
@shared_options
def command(recipe: Path, out: str | None, shared: Shared, **words: Any) -> int:
    """Make the release that RECIPE describes, in the folder OUT.

    RECIPE is a TOML file: variants, references, engines, thresholds, card; `convertkit schema recipe` says what it may
    hold. Everything is planned first, every variant must pass its checks, and the folder appears whole or not at all.

    `convertkit release init SRC` looks at the checkpoint SRC and writes a recipe for it, with comments.
    """
    init = recipe == Path("init") and not recipe.is_file()
    return run(shared, lambda progress: _init(out, words) if init else _release(recipe, out, words, progress))


def _init(source: str | None, words: Mapping[str, Any]) -> Outcome:
    from convertkit.verbs.release_init import release_init

    if source is None:
        raise click.BadArgumentUsage("release init needs the checkpoint SRC")
    place = words["output"]
    made = release_init(
        source, target_model=words["target_model"], target_id=words["target_id"], output=place, force=words["force"]
    )
    text = made if place is None else f"recipe: {path_text(place)}\nnext: convertkit release {shlex.quote(str(place))}"
    return Outcome(document_of("release-init", {"recipe": made}), text)


def _release(recipe: Path, out: str | None, words: Mapping[str, Any], progress: Any) -> Outcome:
    from convertkit.verbs.case import Options
    from convertkit.verbs.release import ReleasePlan, release

    for name in ("target_model", "target_id", "output"):
        if words[name] is not None:
            raise click.BadOptionUsage(name, f"--{name.replace('_', '-')} goes with `release init`")
    options = Options(
        force=words["force"],
        resume=words["resume"],
        keep=not words["no_keep"],
        workers=words["workers"],
        progress=progress,
        report_dir=words["report_dir"],
        publish_anyway=words["publish_anyway"],
    )
    made = release(recipe, out, only_plan=words["dry_run"], options=options)
    return _planned(made) if isinstance(made, ReleasePlan) else _made(made)


def _planned(made: ReleasePlan) -> Outcome:
    plan = made.document
    rows = [
        (row["folder"], row["format"], row["made_from"], count_text(row["tensors"]), size_text(row["size_bytes"]))
        for row in plan["variants"]
    ]
    files = [(row["path"], "" if row["size_bytes"] is None else count_text(row["size_bytes"]))
             for row in plan["files"]]  # fmt: skip
    lines = [
        table(("folder", "format", "made from", "tensors", "weights"), rows, right=(3, 4)),
        "",
        table(("file", "bytes"), files, right=(1,)),
        "",
        f"{plan['output']}: {size_text(sum(row['size_bytes'] or 0 for row in plan['files']))} and the reports",
        "nothing was written",
    ]
    return Outcome(document_of("release-plan", plan), "\n".join(lines))


def _made(made: ReleaseResult) -> Outcome:
    place = path_text(made.out)
    rows = [
        (row["folder"], f"{row['format']}, {size_text(row['size_bytes'])}, {_said(row)}") for row in made.report["rows"]
    ]
    engines = [
        (f"{item['title']} {item['version']}", f"{item['variant']}: {item['verdict']}")
        for item in made.report["summary"]["engines"]
    ]
    lines = [
        findings_text(item for item in made.findings if item.severity != "note"),
        f"released: {place}",
        pairs(rows),
        pairs(engines) if engines else "",
        f"  release sha256: {made.manifest['release_sha256']} (of SHA256SUMS; it pins every file)",
        f"  check it: convertkit verify {shlex.quote(place)} --card",
    ]
    values = {
        "output": place,
        "status": made.status,
        "report": dict(made.report),
        "manifest": dict(made.manifest),
        "findings": [item.as_json() for item in made.findings],
        "timings": dict(made.timings),
    }
    return Outcome(document_of("release", values), "\n".join(filter(None, lines)), made.status)


def _said(row: Mapping[str, Any]) -> str:
    verdicts = {item["verdict"] for item in row["reports"]}
    parts = ["passed" if verdicts == {"pass"} else "FAILED"]
    for what in (row["on_grid"], row["expansion"]):
        if what is not None:
            parts.append(f"{count_text(what['differing'])} of {count_text(what['elements'], 'element')} differ")
    return ", ".join(parts)
