"""Cases that are loaded as ranks of tensor parallelism, by name: [rank, size] of each load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.engines.drafters import KINDS

Ranks = Sequence[tuple[int, int]]

ENDS: Ranks = ((0, 2), (1, 2), (0, 4), (3, 4))
TWO: Ranks = ((0, 2), (1, 2))
ODD: Ranks = ((0, 3), (7, 8))

DRAFTERS: Mapping[str, Ranks] = {
    **{f"{kind}, whole": ENDS for kind in KINDS},
    "dflash, whole": (*ENDS, *ODD),
    "speculators-eagle3, whole": (*ENDS, *ODD),
    **dict.fromkeys(
        ("dflash, no q", "dflash, no k", "dflash, no gate", "dflash, no down", "dflash, no fc", "dflash, gate too tall",
         "dflash, fc too wide", "dflash, norm too long", "dflash, fused qkv on disk", "dflash2, no layer 1",
         "o_proj too wide", "q too short", "own embedding", "own head", "has own head",
         "embedding too short", "head too short", "no d2t", "no head", "no head, dspark", "no codebook",
         "no markov_w2"),
        TWO,
    ),
    **dict.fromkeys(
        ("mixed mlp", "mixed, w4a4", "uniform mlp", "ct mlp", "ct mlp, w4a4", "mixed, no block scale",
         "mixed, no global scale", "mixed, no codes", "ct, all of eagle3", "ct, all of dflash2", "mixed, all linears",
         "ct mlp, a plane of the wrong width", "mixed, one dense shard"),
        ENDS,
    ),
}  # fmt: skip

TARGETS: Mapping[str, Ranks] = {
    **dict.fromkeys(
        ("qwen3, whole", "llama, whole", "qwen3-moe, whole", "hybrid whole", "hybrid dense whole",
         "hybrid fused experts whole", "hybrid text only whole"),
        (*ENDS, *ODD),
    ),
    **dict.fromkeys(
        ("hybrid ct whole", "hybrid ct a4 whole", "hybrid ct all whole", "hybrid uniform whole",
         "hybrid uniform all whole", "hybrid mixed whole", "hybrid mixed all whole", "moe ct whole",
         "moe uniform whole", "moe mixed whole", "qwen3 uniform whole", "llama ct whole", "qwen3 packed"),
        ENDS,
    ),
    **dict.fromkeys(
        ("qwen3, no q", "qwen3, norm too long", "llama up too tall", "llama q too short", "qwen3 o_proj too wide",
         "moe lost expert", "moe expert too small", "moe expert too tall", "hybrid z too wide", "hybrid z too short",
         "hybrid qkv too tall", "hybrid conv squeezed", "hybrid conv too tall", "hybrid decay too long", "hybrid no z",
         "hybrid out too wide", "hybrid q without gate", "hybrid lost expert", "hybrid vision qkv short",
         "hybrid fused experts, one less", "hybrid ct, no global of q", "hybrid ct, scale of an expert too wide",
         "hybrid uniform, no scale of shared", "hybrid embedding short", "hybrid no vision bias", "qwen3, no head",
         "qwen3, tied without head"),
        TWO,
    ),
}  # fmt: skip
"""Whole models at two and four ranks, some at three and eight, damaged ones at two."""
