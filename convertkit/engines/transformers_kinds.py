"""What transformers 5.19 makes of values of the wrong kind in a drafter's config, of whose own keys it knows none.

What its typed classes let pass is refused when the model is built, or never. Run: every flat case of
``tests/engines/kind_cases.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convertkit.engines.kinds import CONFIG, TYPED, TYPED_OF, UNREAD, Row, Settled, Table, later, row, settle

FLAT: Table = {
    **TYPED,
    **dict.fromkeys(
        ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
        later("load_weights", "negative")),
    "max_position_embeddings": row("config", negative="unread"),
    "text_config": Row("load_weights"),
    "architectures": UNREAD,
}  # fmt: skip
"""A flat config of any class; all other keys are unread."""

OF_TYPE: Mapping[str, Table] = {
    **TYPED_OF, "llama": {"hidden_size": CONFIG, "num_hidden_layers": row("config", negative="none")},
}  # fmt: skip
"""More by ``model_type``."""


def settle_kinds(config: Mapping[str, Any]) -> Settled:
    """Raises Stop where transformers stops at a value of the wrong kind."""
    return settle(config, [(None, {**FLAT, **OF_TYPE.get(str(config.get("model_type")), {})})], "transformers")
