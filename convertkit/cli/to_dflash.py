"""``convertkit to-dflash SRC OUT``."""

from __future__ import annotations

from convertkit.cli.conversions import conversion_command

command = conversion_command(
    "to-dflash",
    "drafters",
    "convertkit to-dflash drafter-speculators drafter-zlab --target-model target",
    "Convert the DFlash or DFlash 2 drafter SOURCE to z-lab's format in the new folder OUT.",
)
