"""What SGLang 0.5.23 makes of values of the wrong kind in a drafter's config: a word for a size, a list for a token.

transformers' typed classes refuse most. What only drafters have SGLang converts with ``int()`` and ``float()``, so that
a word or a fraction counts as a number (``srt/speculative/dflash_utils.py:501``). Run: every flat case of
``tests/engines/kind_cases.py``, and ``sglang_more_cases.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convertkit.engines.kinds import (
    CONFIG,
    CREATE,
    SERVED,
    TYPED,
    TYPED_OF,
    UNREAD,
    Row,
    Settled,
    Table,
    later,
    row,
    settle,
)

FLAT: Table = {
    **TYPED,
    **dict.fromkeys(
        ("hidden_size", "intermediate_size", "num_attention_heads", "head_dim", "max_position_embeddings"),
        later("create", "negative")),
    "num_key_value_heads": row("config", negative="apart"),
    "architectures": later("create", "word"),
    "compression_config": CONFIG,
}  # fmt: skip
"""A flat config of any class."""

OF_TYPE: Mapping[str, Table] = {
    **TYPED_OF, "llama": {"hidden_size": CONFIG, "num_hidden_layers": later("worker", "negative")},
}  # fmt: skip
"""More by ``model_type``."""

WHOLE = row("config", word="whole", fraction="whole", flag="whole")
NUMBER = row("config", word="real", flag="real")
IN_BOTH: Table = {
    "block_size": WHOLE, "num_target_layers": WHOLE, "target_layer_ids": row("config", list="wholes"),
    "mask_token_id": CONFIG,
}  # fmt: skip
"""Keys of the DFlash family that count in ``dflash_config``, or else at the top."""
INSIDE: Table = {
    **IN_BOTH,
    **dict.fromkeys(("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"), WHOLE),
    "output_multiplier": NUMBER,
    "final_logit_softcapping": NUMBER,
}
"""``dflash_config``, of every class of the family."""

OF_KIND: Mapping[str, Table] = {
    "dflash": {"dflash_config": SERVED, "vocab_size": row("config", negative="unread")},
    "dflash2": {"dflash_config": SERVED, "vocab_size": later("create", "negative")},
    "dspark": {"dflash_config": SERVED, "vocab_size": later("create", "negative"), "markov_rank": WHOLE},
    "eagle3": {
        "vocab_size": row("config", negative="apart"),
        "draft_vocab_size": Row("create", stages={"negative": "load_weights"}),
        "target_hidden_size": Row("create", stages={"flag": "load_weights"}),
        "num_aux_hidden_states": row("create", flag="whole"),
        "final_logit_softcapping": row("create", flag="served"),
    },
}  # fmt: skip
"""More by the class that is built."""

EAGLE_INSIDE: Table = {"eagle_aux_hidden_state_layer_ids": row("config", list="numbers")}
"""``eagle_config`` of an EAGLE-3."""


def settle_kinds(config: Mapping[str, Any], kind: str) -> Settled:
    """Raises Stop where SGLang stops at a value of the wrong kind in a config that leads to a class of ``kind``."""
    return settle(config, _sections(config, kind.partition("-")[0]), "SGLang")


def _sections(config: Mapping[str, Any], kind: str) -> Iterator[tuple[str | None, Table]]:
    table = {**FLAT, **OF_TYPE.get(str(config.get("model_type")), {}), **OF_KIND.get(kind, {})}
    if config.get("quantization_config") is not None:
        table["compression_config"] = UNREAD
    if kind == "eagle3":
        eagle = config.get("eagle_config")
        yield None, {**table, "eagle_config": CREATE if eagle else UNREAD}
        yield "eagle_config", EAGLE_INSIDE
        return
    inside = config.get("dflash_config")
    nested = inside if isinstance(inside, Mapping) else {}
    ranked = {"markov_rank": WHOLE} if kind == "dspark" else {}
    if not nested.get("final_logit_softcapping"):
        ranked["final_logit_softcapping"] = UNREAD
    yield None, {**table, **IN_BOTH, **{key: UNREAD for key in nested if key in INSIDE}}
    yield "dflash_config", {**INSIDE, **ranked}
