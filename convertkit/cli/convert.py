"""``convertkit convert SRC OUT --to FORMAT``."""

from __future__ import annotations

import click

from convertkit.cli.conversions import conversion_command
from convertkit.formats import FORMATS

command = conversion_command(
    "convert",
    "convert",
    "convertkit convert drafter-nvfp4 drafter-ct --to nvfp4-ct",
    """Convert SOURCE to a named format in the new folder OUT.

    Packed weights are re-spelled without decoding where the format is packed, and expanded where it is dense; dense
    weights are packed by the default policy where the format is packed.
    """,
    click.option("--to", type=click.Choice(tuple(FORMATS)), required=True, help="See `convertkit formats`."),
)
