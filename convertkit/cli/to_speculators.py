"""``convertkit to-speculators SRC OUT``."""

from __future__ import annotations

from convertkit.cli.conversions import conversion_command

command = conversion_command(
    "to-speculators",
    "drafters",
    "convertkit to-speculators drafter out --target-model target --target-id Qwen/Qwen3-8B",
    "Convert the drafter SOURCE (DFlash, DFlash 2, DSpark, EAGLE-3) to speculators' format in the new folder OUT.",
)
