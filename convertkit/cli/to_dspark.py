"""``convertkit to-dspark SRC OUT``."""

from __future__ import annotations

from convertkit.cli.conversions import conversion_command

command = conversion_command(
    "to-dspark",
    "drafters",
    "convertkit to-dspark drafter-speculators drafter-native --target-model target",
    "Convert the DSpark drafter SOURCE to DeepSpec's format, which vLLM and SGLang serve, in the new folder OUT.",
)
