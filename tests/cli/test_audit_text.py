"""What the text of an audit says once, and what it leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from convertkit.cli.audit import unfilled_rows
from convertkit.cli.writing import SUMMARIES


def row(name: str, count: int, outcome: str, missing: tuple[str, ...] = (), lender: tuple[str, ...] = ()) -> Any:
    return {"name": name, "count": count, "outcome": outcome, "from": list(lender), "missing": list(missing)}


def test_layers_that_lack_the_same_are_one_row() -> None:
    norm, qkv = "visual.blocks.{i}.norm1.bias", "visual.blocks.{i}.attn.qkv.bias"
    found = unfilled_rows(
        [
            row(qkv, 3, "unfilled", ("q", "k", "v")),
            *(row(norm, 1, "unfilled", (f"visual.blocks.{layer}.norm1.bias",)) for layer in range(3)),
            row(norm, 2, "defaulted"),
            row("lm_head.weight", 1, "borrowed", lender=("the target's head",)),
        ]
    )
    assert found == [
        (qkv, 3, "unfilled", "q, k, v"),
        (norm, 3, "unfilled", "-"),
        (norm, 2, "defaulted", "-"),
        ("lm_head.weight", 1, "borrowed", "the target's head"),
    ]


@pytest.mark.parametrize(
    ("packed", "dense", "said"),
    [
        (0, 0, "gguf dflash as ggml, 0 errors, 1 warning"),
        (0, 3, "gguf dflash as ggml, 0 packed and 3 dense linears, 0 errors, 1 warning"),
    ],
)
def test_linears_that_are_not_counted_are_not_said_to_be_none(packed: int, dense: int, said: str) -> None:
    summary = {"layout": "gguf dflash", "dialect": "ggml", "packed_linears": packed, "dense_linears": dense}
    assert SUMMARIES["LOAD_SHAPE_AUDIT.json"]({**summary, "errors": 0, "warnings": 1}) == said
