"""What vLLM 0.33 makes of values of the wrong kind in a drafter's config: a word for a size, a list for a token.

A flat config goes through transformers' typed classes, which refuse most; a speculators config is taken raw, so that
a value is refused where it is first computed with, or never. Run: every case of ``tests/engines/kind_cases.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from convertkit.engines.config_kinds import KIND_OF, is_kind
from convertkit.engines.model import Unknown, Wrong, stop

Outcome = Literal["served", "whole", "apart", "unread"]
"""``served``: it loads, and what it does with the value shows later. ``whole``: the same, counting as a whole number.
``apart``: the same, and the sizes of parameters that follow are not described. ``unread``: nothing reads it."""

EVERY = ("word", "fraction", "flag", "list", "object", "negative", "number")
SIZES = ("counted", "whole", "any whole")
"""Kinds of keys that hold numbers, so that a number of the wrong kind is one of no model's size."""


@dataclass(frozen=True, slots=True)
class Row:
    """The stage at which a strange value is refused, and the kinds of values that are not."""

    stage: str = "config"
    loads: Mapping[str, Outcome] = field(default_factory=dict)


def _row(stage: str, **loads: Outcome) -> Row:
    return Row(stage, loads)


CONFIG, CREATE = Row(), Row("create")
SERVED, UNREAD = Row(loads=dict.fromkeys(EVERY, "served")), Row(loads=dict.fromkeys(EVERY, "unread"))
Table = Mapping[str, Row]

FLAT: Table = {
    **dict.fromkeys(
        ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim",
         "max_position_embeddings", "hidden_act", "rms_norm_eps", "layer_types", "rope_parameters", "text_config",
         "model_type", "architectures", "quantization_config"), CONFIG),
    **dict.fromkeys(("draft_vocab_size", "target_hidden_size", "eagle_config"), CREATE),
    "num_key_value_heads": _row("config", negative="apart"),
    "num_experts": _row("config", word="unread", flag="unread", list="unread", negative="unread"),
}  # fmt: skip
"""A flat config of any class."""

OF_TYPE: Mapping[str, Table] = {
    "qwen3": {"max_window_layers": _row("config", negative="unread"), "sliding_window": CONFIG},
    "llama": {"vocab_size": _row("config", negative="apart")},
}
"""More by ``model_type``."""

OF_METHOD: Mapping[str, Table] = {
    "dflash": {"dflash_config": CONFIG},
    "dspark": {
        "block_size": _row("config", fraction="whole", flag="whole"), "markov_rank": CREATE,
        "target_layer_ids": CREATE, "mask_token_id": SERVED,
    },
    "eagle3": {},
}  # fmt: skip
"""More of a flat config by the method that serves it."""

SELECTOR = _row("create", word="served", fraction="whole", flag="whole", negative="served")
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
        "architectures": _row("config", word="unread", list="unread", object="unread"),
    },
    "eagle3": {"eagle_aux_hidden_state_layer_ids": SERVED},
    "peagle": {"eagle_aux_hidden_state_layer_ids": SERVED, "mask_token_id": SERVED},
}  # fmt: skip
"""More of it by ``speculators_model_type``."""

_CUT = _row("create", flag="whole")
LAYER: Table = {
    **dict.fromkeys(("hidden_act", "hidden_size", "num_attention_heads"), CREATE),
    **dict.fromkeys(("layer_types", "num_hidden_layers", "rope_parameters"), CONFIG),
    "intermediate_size": _CUT,
    "max_position_embeddings": _row("config", fraction="whole", flag="whole"),
    "num_key_value_heads": _row("create", flag="whole", negative="apart"),
    "rms_norm_eps": SERVED,
}
"""``transformer_layer_config`` of a speculators config."""

LAYER_OF: Mapping[str, Table] = {
    "dflash": {"head_dim": CREATE, "vocab_size": _row("create", flag="apart", negative="apart")},
    "dspark": {"head_dim": CREATE, "vocab_size": CREATE},
    "eagle3": {"head_dim": _row("config", flag="apart"), "vocab_size": CREATE, "model_type": CONFIG},
}  # fmt: skip
"""More of it by family of algorithms."""
FAMILIES: Mapping[str, str] = {"dflash2": "dflash", "peagle": "eagle3"}

STANDS_FOR: Mapping[str, Any] = {"rms_norm_eps": 1e-6, "mask_token_id": 0, "selector_top_k": 1}
"""A value that a class needs, in place of one that loads whatever it is."""


_VALUE_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "flag"), (int, "number"), (str, "word"), (float, "fraction"), (list, "list"), (Mapping, "object"),
)  # fmt: skip


def value_kind(value: Any) -> str:
    """What a value of the wrong kind is, one of ``EVERY``."""
    found = next(kind for of, kind in _VALUE_KINDS if isinstance(value, of))
    return "negative" if found == "number" and value < 0 else found


@dataclass
class Settled:
    """A config without values that engines do not read or count otherwise, and what they would do with the others.
    ``apart`` means that sizes follow from such a value."""

    config: dict[str, Any]
    wrongs: list[Wrong] = field(default_factory=list)
    apart: bool = False


MethodOf = Callable[[Mapping[str, Any]], str | None]
Sections = Iterator[tuple[str | None, Table]]
"""Names of sections of a config, None for its top, with the table of each."""


def settle_kinds(config: Mapping[str, Any], method_of: MethodOf) -> Settled:
    """Raises Stop where vLLM stops at a value of the wrong kind, Unknown for one that the tables do not describe.
    ``method_of`` says which method serves a flat config."""
    settled = Settled(dict(config))
    tables = _nested(config) if is_nested(config) else _flat(config, method_of)
    for place, table in tables:
        section = settled.config if place is None else settled.config.get(place)
        if isinstance(section, Mapping):
            kept = dict(section)
            for key in [key for key, value in section.items() if _strange(key, value)]:
                _settle(key, kept, table, settled)
            settled.config = kept if place is None else {**settled.config, place: kept}
    return settled


def is_nested(config: Mapping[str, Any]) -> bool:
    """Whether vLLM takes a config for one in speculators form (``transformers_utils/config.py:361``)."""
    return config.get("model_type") is None and config.get("speculators_config") is not None


def _strange(key: str, value: Any) -> bool:
    return key in KIND_OF and value is not None and not is_kind(KIND_OF[key], value)


def _flat(
    config: Mapping[str, Any], method_of: Callable[[Mapping[str, Any]], str | None]
) -> Iterator[tuple[Any, Table]]:
    stated = config.get("architectures")
    names = stated if isinstance(stated, list) else []
    whole = {**config, "architectures": [name for name in names if isinstance(name, str)]}
    method = method_of(whole) or "eagle3"
    compressed = {"compression_config": CONFIG} if config.get("quantization_config") is None else {}
    yield None, {**FLAT, **OF_TYPE.get(str(config.get("model_type")), {}), **OF_METHOD[method], **compressed}
    if method == "dflash":
        two = any("DFlash2" in name for name in whole["architectures"])
        yield "dflash_config", {**DFLASH_SECTION, **(CONVOLUTION if two else {})}


def _nested(config: Mapping[str, Any]) -> Sections:
    algorithm = str(config.get("speculators_model_type"))
    family = FAMILIES.get(algorithm, algorithm)
    yield None, {**NESTED, **OF_ALGORITHM.get(algorithm, {})}
    yield "transformer_layer_config", {**LAYER, **LAYER_OF.get(family, {})}


def _settle(key: str, kept: dict[str, Any], table: Table, settled: Settled) -> None:
    """One value: refused, or taken out of ``kept`` or replaced there."""
    value = kept.pop(key)
    row, kind = table.get(key, UNREAD), value_kind(value)
    if kind == "number" and KIND_OF[key] in SIZES:
        raise Unknown(f"'{key}' in the config is {value}, which is no size of a model")
    outcome = row.loads.get(kind)
    if outcome is None:
        raise stop(row.stage, f"'{key}' is {value!r}, which is of the wrong kind"[:200], "vllm.config-type", key=key)
    if outcome == "unread":
        return
    message = f"'{key}' is {value!r}, which is of the wrong kind; vLLM loads it as it is"[:200]
    settled.wrongs.append(Wrong("E_CONFIG", message, "vllm.config-type", key=key))
    settled.apart |= outcome == "apart"
    if outcome == "whole":
        kept[key] = int(value)
    elif key in STANDS_FOR:
        kept[key] = STANDS_FOR[key]
