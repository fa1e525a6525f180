"""What vLLM 0.33 makes of values of the wrong kind in a drafter's config: a word for a size, a list for a token.

A flat config goes through transformers' typed classes, which refuse most; a speculators config is taken raw, so that
a value is refused where it is first computed with, or never. Run: every case of ``tests/engines/kind_cases.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from convertkit.engines.kinds import CONFIG, CREATE, SERVED, TYPED, TYPED_OF, UNREAD, Settled, Table, row, settle

FLAT: Table = {
    **TYPED,
    **dict.fromkeys(("draft_vocab_size", "target_hidden_size", "eagle_config"), CREATE),
    "num_key_value_heads": row("config", negative="apart"),
    "num_experts": row("config", word="unread", flag="unread", list="unread", negative="unread"),
}
"""A flat config of any class."""

OF_TYPE: Mapping[str, Table] = {**TYPED_OF, "llama": {"vocab_size": row("config", negative="apart")}}
"""More by ``model_type``."""

OF_METHOD: Mapping[str, Table] = {
    "dflash": {"dflash_config": CONFIG},
    "dspark": {
        "block_size": row("config", fraction="whole", flag="whole"), "markov_rank": CREATE,
        "target_layer_ids": CREATE, "mask_token_id": SERVED,
    },
    "eagle3": {},
}  # fmt: skip
"""More of a flat config by the method that serves it."""

SELECTOR = row("create", word="served", fraction="whole", flag="whole", negative="served")
CONVOLUTION: Table = {
    "conv_kernel_size": CREATE, "conv_group_size": CREATE, "selector_rank": CREATE, "selector_top_k": SELECTOR,
}  # fmt: skip
DFLASH_SECTION: Table = {
    "block_size": CONFIG, "target_layer_ids": CREATE, "mask_token_id": SERVED, "num_target_layers": UNREAD,
}  # fmt: skip
"""``dflash_config`` of a flat config."""

NESTED: Table = {
    **dict.fromkeys(("speculators_model_type", "transformer_layer_config", "quantization_config"), CONFIG),
    **dict.fromkeys(("draft_vocab_size", "target_hidden_size"), CREATE),
}  # fmt: skip
"""The top of a speculators config."""

OF_ALGORITHM: Mapping[str, Table] = {
    "dflash": {"aux_hidden_state_layer_ids": CONFIG, "mask_token_id": SERVED},
    "dflash2": {"aux_hidden_state_layer_ids": CONFIG, "mask_token_id": SERVED, **CONVOLUTION},
    "dspark": {
        "aux_hidden_state_layer_ids": CONFIG, "mask_token_id": SERVED, "block_size": SERVED, "markov_rank": CREATE,
        "architectures": row("config", word="unread", list="unread", object="unread"),
    },
    "eagle3": {"eagle_aux_hidden_state_layer_ids": SERVED},
    "peagle": {"eagle_aux_hidden_state_layer_ids": SERVED, "mask_token_id": SERVED},
}  # fmt: skip
"""More of it by ``speculators_model_type``."""

_CUT = row("create", flag="whole")
LAYER: Table = {
    **dict.fromkeys(("hidden_act", "hidden_size", "num_attention_heads"), CREATE),
    **dict.fromkeys(("layer_types", "num_hidden_layers", "rope_parameters"), CONFIG),
    "intermediate_size": _CUT,
    "max_position_embeddings": row("config", fraction="whole", flag="whole"),
    "num_key_value_heads": row("create", flag="whole", negative="apart"),
    "rms_norm_eps": SERVED,
}
"""``transformer_layer_config`` of a speculators config."""

LAYER_OF: Mapping[str, Table] = {
    "dflash": {"head_dim": CREATE, "vocab_size": row("create", flag="apart", negative="apart")},
    "dspark": {"head_dim": CREATE, "vocab_size": CREATE},
    "eagle3": {"head_dim": row("config", flag="apart"), "vocab_size": CREATE, "model_type": CONFIG},
}  # fmt: skip
"""More of it by family of algorithms."""
FAMILIES: Mapping[str, str] = {"dflash2": "dflash", "peagle": "eagle3"}

MethodOf = Callable[[Mapping[str, Any]], str | None]


def settle_kinds(config: Mapping[str, Any], method_of: MethodOf) -> Settled:
    """Raises Stop where vLLM stops at a value of the wrong kind, Unknown for one that the tables do not describe.
    ``method_of`` says which method serves a flat config."""
    return settle(config, _nested(config) if is_nested(config) else _flat(config, method_of), "vLLM")


def is_nested(config: Mapping[str, Any]) -> bool:
    """Whether vLLM takes a config for one in speculators form (``transformers_utils/config.py:361``)."""
    return config.get("model_type") is None and config.get("speculators_config") is not None


def _flat(config: Mapping[str, Any], method_of: MethodOf) -> Iterator[tuple[str | None, Table]]:
    stated = config.get("architectures")
    names = stated if isinstance(stated, list) else []
    whole = {**config, "architectures": [name for name in names if isinstance(name, str)]}
    method = method_of(whole) or "eagle3"
    compressed = {"compression_config": CONFIG} if config.get("quantization_config") is None else {}
    yield None, {**FLAT, **OF_TYPE.get(str(config.get("model_type")), {}), **OF_METHOD[method], **compressed}
    if method == "dflash":
        two = any("DFlash2" in name for name in whole["architectures"])
        yield "dflash_config", {**DFLASH_SECTION, **(CONVOLUTION if two else {})}


def _nested(config: Mapping[str, Any]) -> Iterator[tuple[str | None, Table]]:
    algorithm = str(config.get("speculators_model_type"))
    family = FAMILIES.get(algorithm, algorithm)
    yield None, {**NESTED, **OF_ALGORITHM.get(algorithm, {})}
    yield "transformer_layer_config", {**LAYER, **LAYER_OF.get(family, {})}
