"""``convertkit fix-keys SRC [OUT]``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from convertkit.cli.common import SourcePath, shared_options
from convertkit.cli.runner import Outcome, Shared, document_of, run
from convertkit.cli.text import count_text, findings_text, pairs, size_text, table
from convertkit.cli.writing import outcome, refuse_shard_size, writing_options

EXAMPLES = "Example: convertkit fix-keys broken fixed --rename 'model.language_model.visual.{rest}=model.visual.{rest}'"
MAX_ROWS = 12


@click.command("fix-keys", epilog=EXAMPLES)
@click.argument("source", type=SourcePath(), required=False)
@click.argument("out", type=click.Path(path_type=Path), required=False)
@click.option("--rename", multiple=True, metavar="FROM=TO", help="Rename what fits a template; may be repeated.")
@click.option("--rules", type=click.Path(path_type=Path), metavar="FILE", help="A file with one FROM=TO a line.")
@click.option("--preset", "presets", multiple=True, metavar="NAME", help="A renaming of `fix-keys --list`.")
@click.option(
    "--like", type=SourcePath(headers_only=True), metavar="REF",
    help="Work the renaming out from a reference: a folder, a weight file, an index, or a list of names.",
)  # fmt: skip
@click.option("--reverse", is_flag=True, help="Apply all rules the other way round.")
@click.option("--list", "list_presets", is_flag=True, help="List the presets and stop.")
@click.option("--in-place", is_flag=True, help="Change the headers of SOURCE itself; old or new after a kill.")
@click.option("--recover", is_flag=True, help="With --in-place: finish a change that was interrupted.")
@click.option("--undo", is_flag=True, help="With --in-place: take back a change that was interrupted.")
@click.option("--prove", is_flag=True, help="With --in-place: read the weights before and after, and compare.")
@click.option("--quick", is_flag=True, help="Copy or share the weights without reading them; digests stay pending.")
@click.option(
    "--report", type=click.Path(path_type=Path), metavar="FILE", help="With --in-place: write the report here."
)
@writing_options
@shared_options
def command(
    source: Path | None,
    out: Path | None,
    list_presets: bool,
    recover: bool,
    undo: bool,
    dry_run: bool,
    make_options: Callable[..., Any],
    sizes: Mapping[str, int],
    shared: Shared,
    **words: Any,
) -> int:
    """Rename tensors of SOURCE, in the new folder OUT or in place. Weights keep their bytes.

    Templates: {i} a layer number, {e} an expert number, {x} one part of a name, {rest} any parts. Each name meets the
    first rule that fits. Index and quantization config follow.
    """
    if list_presets:
        return run(shared, lambda progress: _presets())
    if source is None:
        raise click.UsageError("Missing argument 'SOURCE'.")
    if (recover or undo) and not words["in_place"]:
        raise click.UsageError(f"--{'recover' if recover else 'undo'} needs --in-place.")
    if recover and undo:
        raise click.UsageError("--recover and --undo exclude each other.")
    refuse_shard_size("fix-keys keeps the files as they are; repair --shard SIZE cuts them anew.")
    from convertkit.verbs.fix_keys import fix_keys

    return run(
        shared,
        lambda progress: said(
            fix_keys(
                source,
                out,
                recovery="undo" if undo else "finish" if recover else None,
                header_slack_bytes=sizes["header_slack_bytes"],
                only_plan=dry_run,
                options=make_options(progress),
                **words,
            )
        ),
    )


def _presets() -> Outcome:
    from convertkit.layouts.presets import PRESETS

    rows = [(preset.name, preset.summary) for preset in PRESETS.values()]
    values = {
        "presets": [
            {
                "name": row.name,
                "summary": row.summary,
                "cures": list(row.cures),
                "rules": [str(rule) for rule in row.rules],
            }
            for row in PRESETS.values()
        ],
    }  # fmt: skip
    return Outcome(document_of("presets", values), pairs(rows))


def said(made: Any) -> Outcome:
    """Text and JSON of whatever the verb gives back."""
    from convertkit.verbs.fix_keys import Keys

    if not isinstance(made, Keys):
        shown = outcome(made, "renamed")
        rules = "\n".join(f"  rule {rule}" for rule in made.plan.parameters["rules"])
        return Outcome(shown.document, f"{rules}\n{shown.text}", shown.status)
    return Outcome(made.document, _text(made.document, made))


def _text(document: Mapping[str, Any], made: Any) -> str:
    lines = [findings_text(made.findings)]
    rules = document.get("rules", ())
    if rules:
        used = [row for row in rules if row["renamed"] or row["settled"]] or rules
        rows = [(row["rule"], count_text(row["renamed"]), count_text(row["settled"])) for row in used]
        lines.append(table(("rule", "renames", "in effect"), rows, right=(1, 2)))
    families = document.get("families", ())
    if families:
        rows = [(row["first"], row["becomes"], count_text(row["count"])) for row in families[:MAX_ROWS]]
        lines.append("\n" * bool(rules) + table(("name", "becomes", "such"), rows, right=(2,)))
        if len(families) > MAX_ROWS:
            lines.append(f"{len(families) - MAX_ROWS} more kinds of names are in --json")
    lines.extend(
        f"{row['path']}: header {row['method']}, {size_text(row['payload_bytes'])} of weights untouched"
        f" (from byte {row['data_start_before']:,}, now {row['data_start_after']:,})"
        for row in document.get("files", ())
    )
    if made.action == "planned":
        lines.append("nothing was written")
    changed = [row for row in document.get("files", ()) if row["method"] != "untouched"]
    if changed and all(row["payload_sha256"] for row in changed):
        lines.append("read before and after: the weights are the same")
    elif changed:
        lines.append("digests of changed files are pending: run `convertkit manifest`")
    return "\n".join(filter(None, lines))
