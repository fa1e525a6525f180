"""Which type each tensor of a GGUF gets: the types and mixes of ``--type`` as tables.

The mixes and fallbacks are those of llama.cpp 0.5.0-dev (``src/llama-quant.cpp`` ``llama_tensor_get_type_impl``,
``tensor_type_fallback``). Different on purpose: ``mxfp4`` is for all matrices, not experts only, and where no quantized
type fits, the source's own type stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from convertkit.dtypes import BLOCK_TYPES
from convertkit.layouts.gguf_names import SCALED, Named

MORE_BITS = "more"
FIRST_EIGHTH = "eighth"
FIRST_FOUR = "four"


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One ``--type``: the type of matrices, of the head (or of embeddings that are the head too), of untied
    embeddings, and of the layers that get more bits: (part of the GGUF name, which layers, type)."""

    matrix: str
    head: str
    embedding: str
    extra: tuple[tuple[str, str, str], ...] = ()


def _blocks(dtype: str, head: str) -> TypeRow:
    return TypeRow(dtype, head, dtype)


TYPES: Mapping[str, TypeRow] = {
    "bf16": _blocks("BF16", "BF16"),
    "f16": _blocks("F16", "F16"),
    "f32": _blocks("F32", "F32"),
    "q8_0": _blocks("Q8_0", "Q8_0"),
    "q4_0": _blocks("Q4_0", "Q6_K"),
    "q4_1": _blocks("Q4_1", "Q6_K"),
    "q5_0": _blocks("Q5_0", "Q6_K"),
    "q5_1": _blocks("Q5_1", "Q6_K"),
    "mxfp4": TypeRow("MXFP4", "Q8_0", "Q8_0"),
    "nvfp4": TypeRow("NVFP4", "source", "source"),
    "q4_k_s": TypeRow("Q4_K", "Q6_K", "Q4_K", (("attn_v", FIRST_FOUR, "Q5_K"), ("ffn_down", FIRST_EIGHTH, "Q5_K"))),
    "q4_k_m": TypeRow("Q4_K", "Q6_K", "Q4_K", (("attn_v", MORE_BITS, "Q6_K"), ("ffn_down", MORE_BITS, "Q6_K"))),
    "q5_k_s": TypeRow("Q5_K", "Q6_K", "Q5_K"),
    "q5_k_m": TypeRow("Q5_K", "Q6_K", "Q5_K", (("attn_v", MORE_BITS, "Q6_K"), ("ffn_down", MORE_BITS, "Q6_K"))),
    "q6_k": TypeRow("Q6_K", "Q6_K", "Q6_K"),
}
"""Names of ``--type``. ``q4_k`` and ``q5_k`` are short for their ``_m`` mixes, as in llama.cpp."""
ALIASES: Mapping[str, str] = {"q4_k": "q4_k_m", "q5_k": "q5_k_m"}
TYPE_NAMES = (*TYPES, *ALIASES)

FOUR_BIT_FLOATS = frozenset({"NVFP4", "MXFP4"})
"""Types that only matrices get; rows that are looked up, convolutions and the like stay dense beside them."""

SEVENTY_LAYERS = 80
EIGHT = 8
EIGHT_EXPERTS: Mapping[tuple[str, str], str] = {
    ("attn_v", ""): "Q8_0",
    ("attn_k", ""): "Q8_0",
    ("attn_output", "Q4_K"): "Q5_K",
}
"""With exactly eight experts attention gets more bits, as llama.cpp does for Mixtral: (part, type of matrices or any)
to its type."""

FALLBACKS: Mapping[str, str] = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""What stands in for a type whose blocks are longer than the rows."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What the choice depends on besides the tensor: ``--type``, number of layers and of experts, whether the
    embeddings are the head, and whether llama.cpp takes the model for one of 70B."""

    name: str
    layers: int
    tied: bool
    seventy: bool = False
    experts: int = 0

    @property
    def row(self) -> TypeRow:
        return TYPES[ALIASES.get(self.name, self.name)]


def _gets_more(which: str, layer: int, layers: int) -> bool:
    if which == FIRST_FOUR:
        return layer < 4
    eighth = layers // 8
    if which == FIRST_EIGHTH:
        return layer < eighth
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def wanted_type(setting: Setting, named: Named, source: str) -> str:
    """The type a tensor should have. ``source`` is its dense type, which plain matrices keep beside block types."""
    row, rule = setting.row, named.rule
    if rule.treatment == "ids":
        return "I64"
    if rule.treatment == "f32":
        return "F32"
    if rule.treatment == "row":
        wanted = source if row.matrix in BLOCK_TYPES else row.matrix
    elif rule.treatment == "plain":
        wanted = source if row.matrix in FOUR_BIT_FLOATS else row.matrix
    elif rule.treatment == "table":
        head = named.gguf == "output.weight" or setting.tied
        wanted = row.head if head else row.embedding
    else:
        wanted = _matrix_type(setting, named)
    return source if wanted == "source" else wanted


def _matrix_type(setting: Setting, named: Named) -> str:
    row = setting.row
    part = named.gguf.removesuffix(".weight").rpartition(".")[2]
    if row.matrix == "NVFP4" and part not in SCALED:
        return "source"
    wanted = row.matrix
    for leaf, which, dtype in row.extra:
        if part.removesuffix("_exps") == leaf and _gets_more(which, int(named.captures["i"]), setting.layers):
            wanted = dtype
    if setting.experts == EIGHT and row.matrix in BLOCK_TYPES and row.matrix not in FOUR_BIT_FLOATS:
        return EIGHT_EXPERTS.get((part, row.matrix), EIGHT_EXPERTS.get((part, ""), wanted))
    return "Q5_K" if setting.seventy and part == "attn_v" and wanted == "Q4_K" else wanted


def is_seventy(arch: str, layers: int, heads: Mapping[str, int]) -> bool:
    """Whether llama.cpp takes a model for one of 70B (``src/models/llama.cpp``, ``qwen2.cpp``)."""
    grouped = heads.get("num_attention_heads") != heads.get("num_key_value_heads")
    return layers == SEVENTY_LAYERS and (arch == "qwen2" or (arch == "llama" and grouped))


def fitting_type(wanted: str, width: int, source: str) -> str:
    """``wanted``, or what stands in for it where rows are not whole blocks: at last the source's own type."""
    while wanted in BLOCK_TYPES and width % BLOCK_TYPES[wanted].block:
        wanted = FALLBACKS.get(wanted, source)
    return wanted
