"""Sizes, layers and shapes of a target in vLLM 0.33, and how a stored shape may depart from its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from convertkit.engines.model import Shape, stop
from convertkit.engines.target_tables import KV, SYMBOLS, VISION_SYMBOLS, Fit, Module, Split
from convertkit.engines.vllm_linear import padded_rows


@dataclass(frozen=True)
class Sizes:
    """A target's config: its sizes by symbol, its layers by kind, the number of ranks."""

    config: Mapping[str, Any]
    values: Mapping[str, int]
    ranks: int

    @property
    def text(self) -> Mapping[str, Any]:
        inner = self.config.get("text_config")
        return inner if isinstance(inner, Mapping) else self.config

    @property
    def tower(self) -> bool:
        return isinstance(self.config.get("vision_config"), Mapping)

    @property
    def tied(self) -> bool:
        """Only the language model's own key counts (``qwen3_5.py:369``)."""
        return bool(self.text.get("tie_word_embeddings", False))

    def words(self, text: str) -> Shape:
        """A shape from words such as ``nkv*hd H``. Raises Stop for a size that the config does not state."""
        return tuple(sum(self._product(term) for term in word.split("+")) for word in text.split())

    def _product(self, term: str) -> int:
        factors: list[int] = []
        for part in term.split("*"):
            value = int(part) if part.isdigit() else self.values.get(part)
            if value is None:
                key = SYMBOLS.get(part, VISION_SYMBOLS.get(part, part))
                raise stop("create", f"the config has no attribute '{key}'", "vllm.config-keys", key=key)
            factors.append(value)
        return prod(factors)

    def numbers(self, which: str) -> tuple[int | None, ...]:
        """Numbers of the layers of a kind; (None,) for what is there once."""
        if which == "once" or (which == "tower" and self.tower):
            return (None,)
        if which in ("tower", "blocks"):
            return tuple(range(self.values.get("depth", 0))) if self.tower and which == "blocks" else ()
        every = range(self.values.get("layers", 0))
        types = self.text.get("layer_types")
        if types is None:  # every fourth layer has full attention, or every so manieth as the config says
            step = self.text.get("full_attention_interval", 4)
            step = step if isinstance(step, int) and step > 0 else 4
            types = ["full" if (i + 1) % step == 0 else "linear" for i in every]
        if which in ("full", "linear") and isinstance(types, list):
            return tuple(i for i in every if i < len(types) and ("linear" in str(types[i])) == (which == "linear"))
        if which in ("sparse", "dense"):
            return tuple(i for i in every if self._sparse(i) == (which == "sparse"))
        return tuple(every)

    def _sparse(self, layer: int) -> bool:
        step = self.text.get("decoder_sparse_step", 1)
        only = self.text.get("mlp_only_layers") or []
        return layer not in only and isinstance(step, int) and step > 0 and (layer + 1) % step == 0

    def share(self, size: int, what: str) -> int:
        """A rank's part of a size. Raises Stop if the ranks do not divide it."""
        if size % self.ranks:
            message = f"{what} ({size}) cannot be divided among {self.ranks} ranks"
            raise stop("create", message, "vllm.tp-divides", tensor=what)
        return size // self.ranks

    def rank_rows(self, row: Module) -> int:
        """Rows of a module on one rank. Of k and v every rank has at least one head."""
        if row.split != "rows":
            whole = sum(self.words(rows)[0] for _, _, rows in row.parts)
            return self.share(padded_rows(whole), row.name) if row.kind == "ParallelLMHead" else whole
        own = 0
        for _, _, words in row.parts:
            few = words == KV and self.values.get("nkv", 0) < self.ranks
            own += self.values.get("hd", 0) if few else self._each(row, words)
        return own

    def _each(self, row: Module, words: str) -> int:
        """Terms are divided one by one: q, k and v of a delta net are shares of their own."""
        own = 0
        for term in words.split("+"):
            count = 2 if term.startswith("2*lk") else 1
            own += count * self.share(self._product(term.removeprefix("2*") if count == 2 else term), row.name)
        return own

    def rank_columns(self, row: Module) -> int:
        columns = self.words(row.columns)[0]
        return self.share(columns, row.name) if row.split == "columns" else columns


def sizes_of(config: Mapping[str, Any], ranks: int, defaults: Mapping[str, int]) -> Sizes:
    """Sizes as stated, else those of the config class, else derived."""
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    found = {symbol: text.get(key) for symbol, key in SYMBOLS.items()}
    tower = config.get("vision_config")
    if isinstance(tower, Mapping):
        found |= {symbol: tower.get(key) for symbol, key in VISION_SYMBOLS.items()}
    values = {symbol: value for symbol, value in found.items() if isinstance(value, int)}
    values = {**defaults, **values}
    values.setdefault("nkv", values.get("nh", 0))
    if not values.get("hd") and values.get("nh"):
        values["hd"] = values.get("H", 0) // values["nh"]
    return Sizes(config, values, ranks)


def check_heads(sizes: Sizes) -> None:
    """What the config checks before a model is built (``config/model.py``). Raises Stop."""
    heads, kv, ranks = sizes.values.get("nh", 0), sizes.values.get("nkv", 0), sizes.ranks
    if heads % ranks:
        message = f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({ranks})."
        raise stop("config", message, "vllm.tp-divides", key="num_attention_heads")
    if kv and (kv % ranks if kv >= ranks else ranks % kv):
        message = f"{kv} key-value heads cannot be divided among {ranks} ranks"
        raise stop("create", message, "vllm.tp-divides", key="num_key_value_heads")


Misfit = Literal["", "cut", "short", "no"]
"""``cut``: larger than its place, the rest is dropped. ``short``: smaller, a part of the place stays open. Both without
a word. ``no``: refused."""


def misfit_linear(found: Shape, wanted: Shape, split: Split, conv: bool = False) -> Misfit:
    """A linear's weight, plane or bias: a rank takes its share of rows or columns, from a larger tensor too."""
    if found == wanted:
        return ""
    if conv:
        same = len(found) > 1 and prod(found[1:]) == prod(wanted[1:])
        return "no" if not same or found[0] < wanted[0] else "cut" if found[0] > wanted[0] else ""
    along = {"rows": 0, "columns": 1, "whole": None}[split]
    if along is None or len(found) != len(wanted) or along >= len(wanted):
        return "no"
    rest = all(a == b for place, (a, b) in enumerate(zip(found, wanted, strict=True)) if place != along)
    return "cut" if rest and found[along] > wanted[along] else "no"


def misfit_single(found: Shape, wanted: Shape, fit: Fit) -> Misfit:
    if found == wanted:
        return ""
    return "cut" if fit == "rows" and len(found) == 1 and found[0] > wanted[0] else "no"


def misfit_expert(found: Shape, wanted: Shape) -> Misfit:
    """Experts may be smaller: their loader fills a part of the place (``routed_experts.py:526``)."""
    if found == wanted:
        return ""
    if len(found) != len(wanted) or any(a > b for a, b in zip(found, wanted, strict=True)):
        return "no"
    return "short"
