"""The parameters that SGLang 0.5.23 creates for a target, from its tables, a config and a quantization."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from convertkit.engines.model import Parameter, Part, Unknown, stop
from convertkit.engines.quantized import Grid
from convertkit.engines.sglang_params import padded
from convertkit.engines.sglang_quant import Quantization
from convertkit.engines.sglang_target_tables import (
    SYMBOLS,
    VISION_SYMBOLS,
    Experts,
    Module,
    Row,
    Single,
    TargetTable,
)
from convertkit.engines.vllm_linear import Linear, Rank, linear, padded_rows

DEFAULTS: Mapping[str, int] = {"merge": 2, "chan": 3, "tpatch": 2, "conv": 4}
DIVIDED = ("nh", "I", "Ie", "Is", "lk", "lv")


@dataclass(frozen=True, slots=True)
class Made:
    """One parameter of some layers (-1: of none): the template's, with how many experts it holds."""

    parameter: Parameter
    layers: frozenset[int]
    experts: int = 0

    def at(self, name: str, layer: int) -> Parameter:
        return replace(self.parameter, name=name.replace("{i}", str(layer)))


@dataclass(frozen=True, slots=True)
class Built:
    """Parameters by template; more than one where layers are packed in different ways."""

    parameters: Mapping[str, tuple[Made, ...]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a config by symbol, the kinds of its layers, whether the head is tied."""

    values: Mapping[str, int]
    layers: int
    kinds: Mapping[str, frozenset[int]]
    tied: bool
    biased: bool
    everywhere: bool

    def shape(self, words: str) -> tuple[int, ...]:
        """A shape in words. Raises Unknown if the config lacks a size."""
        try:
            return tuple(sum(self._product(term) for term in word.split("+")) for word in words.split())
        except KeyError as missing:
            raise Unknown(f"the config states no size for {missing}") from None

    def _product(self, term: str) -> int:
        return prod(int(part) if part.isdigit() else self.values[part] for part in term.split("*"))


def read_sizes(config: Mapping[str, Any]) -> Sizes:
    """Sizes with derived defaults, and which layers are of which kind."""
    inner, tower = config.get("text_config"), config.get("vision_config")
    text = inner if isinstance(inner, Mapping) else config
    found = {symbol: text.get(key) for symbol, key in SYMBOLS.items()}
    if isinstance(tower, Mapping):
        found |= {symbol: tower.get(key) for symbol, key in VISION_SYMBOLS.items()}
    sizes = {symbol: value for symbol, value in found.items() if isinstance(value, int)}
    sizes.setdefault("nkv", sizes.get("nh", 0))
    if "hd" not in sizes and sizes.get("nh"):
        sizes["hd"] = 128 if text.get("model_type") in ("qwen3", "qwen3_moe") else sizes.get("H", 0) // sizes["nh"]
    gate = text.get("attn_output_gate", True)
    sizes["gates"] = 1 + gate if isinstance(gate, int) else 2
    for symbol, default in DEFAULTS.items():
        sizes.setdefault(symbol, default)
    count = text.get("num_hidden_layers")
    layers = count if isinstance(count, int) else 0
    tied = bool(config.get("tie_word_embeddings", False))  # that of the outer config, if there are two
    both = bool(text.get("bias"))
    return Sizes(sizes, layers, _kinds(text, tower, layers), tied, bool(text.get("attention_bias")), both)


def _kinds(text: Mapping[str, Any], tower: Any, layers: int) -> dict[str, frozenset[int]]:
    every = frozenset(range(layers))
    types = text.get("layer_types")
    linear = frozenset(i for i, kind in enumerate(types) if "linear" in str(kind)) if isinstance(types, list) else None
    depth = tower.get("depth", 0) if isinstance(tower, Mapping) else 0
    taps = tower.get("deepstack_visual_indexes") if isinstance(tower, Mapping) else None
    alone = frozenset({-1})
    return {
        "all": every, "full": every - (linear or frozenset()), "linear": every & (linear or frozenset()),
        "sparse": every, "once": alone,
        "blocks": frozenset(range(depth if isinstance(depth, int) else 0)),
        "deepstack": frozenset(range(len(taps) if isinstance(taps, list) else 0)),
        "tower": alone if isinstance(tower, Mapping) else frozenset(),
    }  # fmt: skip


def build(table: TargetTable, sizes: Sizes, quant: Quantization, ranks: int) -> Built:
    """Every parameter of the built model. Raises Stop where SGLang refuses to build it."""
    _divides(sizes, ranks)
    found: dict[str, list[Made]] = {}
    for row in table.rows:
        for made in _row(row, sizes, quant, ranks, table.cache_scales and "visual" not in getattr(row, "name", "")):
            found.setdefault(made.parameter.name, []).append(replace(made, parameter=padded(made.parameter)))
    return Built({name: tuple(made) for name, made in found.items()})


def _divides(sizes: Sizes, ranks: int) -> None:
    for symbol in DIVIDED:
        if sizes.values.get(symbol, 0) % ranks:
            message = f"{SYMBOLS[symbol]} ({sizes.values[symbol]}) cannot be divided among {ranks} ranks"
            raise stop("create", message, "sglang.tp-divides", key=SYMBOLS[symbol])


def _row(row: Row, sizes: Sizes, quant: Quantization, ranks: int, cached: bool) -> Iterator[Made]:
    if isinstance(row, Single):
        yield from (
            _head(sizes, quant, ranks)
            if row.name == HEAD and not _dense(quant, row, sizes)
            else _single(row, sizes, ranks)
        )
        return
    if ".shared_expert." in row.name and sizes.values.get("Is") == 0:  # (``models/qwen2_moe.py:315``)
        return
    layers = sizes.kinds["sparse" if isinstance(row, Experts) else row.layers]
    by_grid: dict[Grid, set[int]] = {}
    for layer in sorted(layers):
        by_grid.setdefault(_grid(row, layer, quant), set()).add(layer)
    for grid, at in by_grid.items():
        parameters = _experts(row, grid, sizes, ranks) if isinstance(row, Experts) else _linear(row, grid, sizes, ranks)
        count = sizes.values.get("E", 0) if isinstance(row, Experts) else 0
        yield from (Made(item, frozenset(at), count) for item in parameters)
    if isinstance(row, Module) and row.kind == "QKVParallelLinear" and quant.kv_scales and cached:
        place = row.name.removesuffix("qkv_proj")
        for leaf in ("k_scale", "v_scale"):
            scale = Parameter(f"{place}attn.{leaf}", (), "F32", (Part("", (), "scalar"),), "ones", unread=True,
                              rule="sglang.kv-scales")  # fmt: skip
            yield Made(scale, layers)


def _grid(row: Module | Experts, layer: int, quant: Quantization) -> Grid:
    asked = row.asked.replace("{i}", str(layer))
    if isinstance(row, Module):
        return quant.ask(asked, row.kind) if row.quantized else "dense"
    if quant.family != "compressed-tensors":
        return quant.ask(asked, "FusedMoE")
    grids = {quant.ask(f"{asked}.0.{leaf}", "FusedMoE Linear") for leaf in ("gate_proj", "up_proj", "down_proj")}
    if len(grids) > 1:
        message = "All MoE projections need to have same quantization scheme but found multiple"
        raise stop("create", message, "sglang.quant-shards", tensor=asked)
    return grids.pop()


HEAD = "lm_head.weight"


def _dense(quant: Quantization, row: Single, sizes: Sizes) -> bool:
    return (row.needs == "own head" and sizes.tied) or quant.ask("lm_head", "ParallelLMHead") == "dense"


def _head(sizes: Sizes, quant: Quantization, ranks: int) -> Iterator[Made]:
    """A packed head."""
    grid = quant.ask("lm_head", "ParallelLMHead")
    rows, columns = sizes.shape("V H")
    own = padded_rows(rows) // ranks
    for item in linear(Linear("lm_head", "", "ParallelLMHead", (("", rows),), columns), grid, Rank(1, "BF16")):
        shape = (own, *item.shape[1:]) if len(item.shape) == 2 else item.shape
        yield Made(replace(item, shape=shape, rule="sglang.target-missing"), sizes.kinds["once"])


def _single(row: Single, sizes: Sizes, ranks: int) -> Iterator[Made]:
    if row.needs == "own head" and sizes.tied:
        return
    shape = sizes.shape(row.shape)
    own = shape
    if row.fit == "vocabulary":
        own = (padded_rows(shape[0]) // ranks, *shape[1:])
    elif row.fit == "conv":
        own = (shape[0] // ranks, *shape[1:])
    part = Part("", shape, "rows" if row.fit == "conv" else "exact")
    layers = sizes.kinds[row.layers]
    if layers:
        yield Made(Parameter(row.name, own, row.dtype or "BF16", (part,), rule="sglang.target-missing"), layers)


def _linear(row: Module, grid: Grid, sizes: Sizes, ranks: int) -> Iterator[Parameter]:
    parts = tuple((share, sizes.shape(rows)[0]) for share, rows in row.parts)
    bias = row.bias == "always" or (bool(row.bias) and sizes.biased) or (row.bias == "llama bias" and sizes.everywhere)
    rank_rows = None
    if row.kind == "QKVParallelLinear" and row.layers != "blocks":
        kv = max(1, sizes.values["nkv"] // ranks)
        rank_rows = parts[0][1] // ranks + 2 * kv * sizes.values["hd"]
    made = linear(Linear(row.name, "", row.kind, parts, sizes.shape(row.columns)[0], row.split, rank_rows, bias), grid,
                  Rank(ranks, "BF16"))  # fmt: skip
    for item in made:
        wide = item.name.endswith(("weight_scale_2", "input_scale", "_global_scale"))
        if wide and row.name.endswith("in_proj_qkvz"):
            item = replace(item, shape=(4,))  # q, k, v and z
        yield replace(item, rule="sglang.target-missing")


PLANES: Mapping[Grid, tuple[tuple[str, str, int], ...]] = {
    "dense": (("weight", "BF16", 1),),
    "mo-a4": (("weight", "U8", 2), ("weight_scale", "F8_E4M3", 16), ("weight_scale_2", "F32", 0),
              ("input_scale", "F32", 0)),
    "mo-a16": (("weight", "U8", 2), ("weight_scale", "F8_E4M3", 16), ("weight_scale_2", "F32", 0),
               ("input_scale", "F32", 0)),
    "ct-a16": (("weight_packed", "U8", 2), ("weight_scale", "F8_E4M3", 16), ("weight_global_scale", "F32", 0)),
    "ct-a4": (("weight_packed", "U8", 2), ("weight_scale", "F8_E4M3", 16), ("weight_global_scale", "F32", 0),
              ("input_global_scale", "F32", 0)),
}  # fmt: skip
"""Leaves of the experts' parameters: dtype, and by what the columns are divided; 0 is one scale per matrix."""


def _experts(row: Experts, grid: Grid, sizes: Sizes, ranks: int) -> Iterator[Parameter]:
    count, hidden, width = sizes.shape("E H Ie")
    own = width // ranks
    for leaf, dtype, by in PLANES[grid]:
        unread = grid == "mo-a16" and leaf == "input_scale"
        if by:
            pair = tuple(Part(share, (width, hidden // by), "padded rows") for share in ("w1", "w3"))
            yield Parameter(f"{row.name}.w13_{leaf}", (count, 2 * own, hidden // by), dtype, pair)
            down = Part("w2", (hidden, width // by), "padded columns")
            yield Parameter(f"{row.name}.w2_{leaf}", (count, hidden, own // by), dtype, (down,))
        else:
            pair = tuple(Part(share, (), "scalar") for share in ("w1", "w3"))
            yield Parameter(f"{row.name}.w13_{leaf}", (count, 2), dtype, pair, unread=unread)
            yield Parameter(f"{row.name}.w2_{leaf}", (count,), dtype, (Part("w2", (), "scalar"),), unread=unread)
