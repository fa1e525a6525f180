"""What transformers 5 does with a drafter: its classes are not among those that it registers."""

from __future__ import annotations

from collections.abc import Mapping

from convertkit.engines.model import Load, Refused
from convertkit.engines.rules import Rule
from convertkit.engines.rules import Source as Place
from convertkit.engines.source import Source
from convertkit.engines.vllm_params import Target

VERSION = "5.20.2"
RULES: Mapping[str, Rule] = {
    "transformers.drafters": Rule(
        "transformers.drafters",
        "no class of a drafter is registered",
        Place("transformers", VERSION, "models/auto/modeling_auto.py", 0),
    )
}


def load_drafter(source: Source, target: Target, ranks: int = 1, dtype: str = "BF16") -> Load:
    """Refused: drafters come with classes of their own packages."""
    message = "transformers has no class for a drafter; its own package loads it (z-lab dflash, speculators)"
    return Load((Refused("config", message, "transformers.drafters", key="architectures", foreign=True),))
