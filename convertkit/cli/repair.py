"""``convertkit repair SRC OUT``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from convertkit.cli.common import folder_argument, shared_options, size_option_value, source_argument
from convertkit.cli.runner import Outcome, Shared, run
from convertkit.cli.text import findings_text
from convertkit.cli.writing import outcome, refuse_shard_size, writing_options
from convertkit.layouts.fusions import KINDS
from convertkit.layouts.kv_scales import KV_SPELLINGS

FORMS = ("offsets", "absolute")
"""What a map of a reduced vocabulary may hold (``conversion.vocabulary.FORMS``, which would import NumPy here)."""


def _pairs(context: click.Context, option: click.Parameter, words: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{word!r} is not KEY=VALUE", ctx=context, param=option)
        if found.setdefault(key, value) != value:
            raise click.BadParameter(f"{key!r} is given twice", ctx=context, param=option)
    return found


@click.command("repair", epilog="Example: convertkit repair broken fixed --tie-scales --set-config")
@source_argument("source")
@folder_argument("out")
@click.option("--rebuild-index", is_flag=True, help="Make the shard index from the headers of all files.")
@click.option("--dedupe", is_flag=True, help="Keep one of tensors that several files hold, if they are equal.")
@click.option("--drop", multiple=True, metavar="PATTERN", help="Leave out tensors of these names; may be repeated.")
@click.option("--keep", multiple=True, metavar="PATTERN", help="Leave out all others; may be repeated.")
@click.option("--drop-tied", is_flag=True, help="Drop a head that equals the embeddings byte for byte.")
@click.option("--strip-quant-residue", is_flag=True, help="Remove quantization config and scales of dense weights.")
@click.option(
    "--normalise-kv-scales", type=click.Choice(tuple(KV_SPELLINGS)), help="One spelling for scales of the KV cache."
)
@click.option("--tie-scales", is_flag=True, help="Give the parts of fused matrices one global scale; codes stay.")
@click.option("--group", "groups", multiple=True, metavar="A,B", help="With --tie-scales: a fused group by its names.")
@click.option("--allow-loss", is_flag=True, help="With --tie-scales: also where values change; they are counted.")
@click.option("--split-fused-scalars", is_flag=True, help="Split packed matrices that are fused on disk.")
@click.option("--swap-nibbles", is_flag=True, help="Exchange the two nibbles of every byte of codes.")
@click.option("--split", multiple=True, type=click.Choice(KINDS), help="Take matrices or stacked experts apart.")
@click.option("--fuse", multiple=True, type=click.Choice(KINDS), help="Join matrices, or stack experts.")
@click.option("--d2t", type=click.Choice(FORMS), help="Write the map of a reduced vocabulary in this form.")
@click.option("--d2t-holds", type=click.Choice(FORMS), help="With --d2t: what the map holds, if values do not tell.")
@click.option("--set-config", is_flag=True, help="Set the config fields that the tensors decide.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", callback=_pairs, help="Add a pair to the headers.")
@click.option("--shard", "shard_bytes", metavar="SIZE", callback=size_option_value, help="Cut into files of this size.")
@click.option("--merge", is_flag=True, help="Put all tensors into one file.")
@writing_options
@shared_options
def command(
    source: Path,
    out: Path,
    dry_run: bool,
    make_options: Callable[..., Any],
    sizes: Mapping[str, int],
    shared: Shared,
    **words: Any,
) -> int:
    """Repair what is wrong around the weights of SOURCE, into the new folder OUT.

    Each option names one repair; several go together. What no repair names is copied byte for byte, and the report
    says so for every tensor.
    """
    refuse_shard_size("repair cuts files with --shard SIZE.")
    from convertkit.conversion.repair_work import RepairRequest
    from convertkit.verbs.repair import Untouched, repair

    def said(progress: Any) -> Outcome:
        made = repair(
            source,
            out,
            RepairRequest(**words),
            header_slack_bytes=sizes["header_slack_bytes"],
            only_plan=dry_run,
            options=make_options(progress),
        )
        if isinstance(made, Untouched):
            return Outcome(made.document, findings_text(made.findings))
        return outcome(made, "repaired")

    return run(shared, said)
