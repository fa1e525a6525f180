"""``convertkit manifest DIR``: write MANIFEST.json and SHA256SUMS."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from convertkit.cli.common import dry_run_option, folder_argument, shared_options, workers_option
from convertkit.cli.runner import Outcome, Shared, document_of, run
from convertkit.cli.text import count_text, findings_text, pairs, shown_cell, size_text


@click.command("manifest")
@folder_argument("folder")
@click.option(
    "--supersedes",
    type=click.Path(path_type=Path),
    metavar="OLD",
    help="The earlier release that this one replaces: its folder, MANIFEST.json or SHA256SUMS.",
)
@dry_run_option
@workers_option
@shared_options
def command(folder: Path, supersedes: Path | None, dry_run: bool, workers: int, shared: Shared) -> int:
    """Write MANIFEST.json and SHA256SUMS for the release in FOLDER, subfolders included.

    Run it last, when every other file is as it will be published. Older ones are replaced; what they know about
    sources and earlier releases is kept. `sha256sum --strict -c SHA256SUMS` and `convertkit verify FOLDER` check the
    result.
    """
    from convertkit.verbs.manifest import manifest

    return run(
        shared,
        lambda progress: outcome(
            manifest(folder, supersedes=supersedes, dry_run=dry_run, workers=workers, progress=progress), dry_run
        ),
    )


def outcome(summary: Mapping[str, Any], dry_run: bool) -> Outcome:
    return Outcome(document_of("manifest-result", {**summary, "dry_run": dry_run}), text(summary, dry_run))


def text(summary: Mapping[str, Any], dry_run: bool) -> str:
    """A few lines: problems, what is listed, what is not, and the digest for the model card."""
    from convertkit.errors import Finding, Where

    findings = [Finding(**{**item, "where": Where(**item["where"])}) for item in summary["findings"]]
    what = f"{count_text(summary['files'], 'file')}, {size_text(summary['size_bytes'])}"
    if summary["tensors"]:
        what += f", {count_text(summary['tensors'], 'tensor')}"
    rows = [("would write" if dry_run else "wrote", ", ".join(summary["written"])), ("lists", what)]
    rows += [("leaves out", f"{shown_cell(path)} ({reason})") for path, reason in summary["skipped"].items()]
    if summary["supersedes"]:
        rows.append(("supersedes", count_text(summary["supersedes"], "earlier release")))
    rows.append(("release sha256", f"{summary['release_sha256']} (of SHA256SUMS; it pins every file)"))
    return "\n".join(filter(None, [findings_text(findings), pairs(rows, indent=0)]))
