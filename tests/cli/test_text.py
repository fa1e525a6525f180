"""Tables and numbers for people."""

from pathlib import Path
from typing import Any

import pytest

from convertkit.cli.text import (
    PAGE_WIDTH,
    cell_width,
    count_text,
    cut,
    findings_text,
    pairs,
    path_text,
    size_text,
    table,
)
from convertkit.cli.writing import summary_text
from convertkit.errors import finding


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (9_994_999, "9.99 MB"),
        (9_995_000, "10.0 MB"),
        (3_848_862_208, "3.85 GB"),
        (10**18, "1000 PB"),
    ],
)
def test_size_text(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


def test_count_text() -> None:
    assert count_text(1_924_404_480) == "1,924,404,480"
    assert (count_text(1, "file"), count_text(2, "file"), count_text(0, "entry", "entries")) == (
        "1 file",
        "2 files",
        "0 entries",
    )


def test_table_aligns_and_keeps_short_cells() -> None:
    assert table(["name", "bytes"], [["a", 5], ["bcd", 1000]], right=[1]) == (
        "name  bytes\n────  ─────\na         5\nbcd    1000"
    )


@pytest.mark.parametrize(
    "name", ["model.layers.0." + "x" * 200 + ".weight", "文" * 120, "é\u0301" * 80, "\x1b[31m" * 40]
)
def test_table_fits_the_page_and_is_safe(name: str) -> None:
    text = table(["tensor", "dtype"], [[name, "BF16"], ["short", "F32"]], indent=2)
    assert max(cell_width(line) for line in text.splitlines()) <= PAGE_WIDTH
    assert "\x1b" not in text
    assert text.splitlines()[2].endswith("BF16")


def test_cut_keeps_both_ends() -> None:
    assert cut("model.layers.17.mlp.down_proj.weight", 15) == "model.l….weight"
    assert cut("abcdefghij", 5) == "ab…ij"
    assert cut("abcde", 5) == "abcde"


def test_pairs_and_findings() -> None:
    assert pairs([("layout", "dflash2"), ("size", "1 B")]) == "  layout  dflash2\n  size    1 B"
    text = findings_text([finding("W_NO_CONFIG", "warning", "no config.json", fix="add one")])
    assert text == "warning W_NO_CONFIG: no config.json\n  fix: add one"


def test_paths_are_shown_as_the_user_may_type_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert path_text(tmp_path / "a" / "b") == "a/b"
    assert path_text("a b") == "a b"
    assert path_text(tmp_path) == str(tmp_path)
    assert path_text(f"{tmp_path}-other") == f"{tmp_path}-other"


EXPANDED = {"expanded": 15, "respelled": 0, "elements": 12000, "differing": 0, "unrecovered": 0, "recoverable": True}
WHOLE = {"rel_rms": 0.0945601, "sqnr_db": 20.4859}


@pytest.mark.parametrize(
    ("name", "summary", "text"),
    [
        (
            "DEQUANT_REPORT.json",
            EXPANDED,
            "pass: 15 weights expanded, 0 of 12,000 elements other than the exact value rounded once, "
            "every code recoverable",
        ),
        (
            "DEQUANT_REPORT.json",
            {**EXPANDED, "unrecovered": 7, "against_differing": 3},
            "pass: 15 weights expanded, 0 of 12,000 elements other than the exact value rounded once, 7 codes lost, "
            "3 elements other than the reference",
        ),
        (
            "FIDELITY_GATE.json",
            {"packed": 1, "whole": WHOLE, "worst": "a.weight"},
            "pass: 1 weight packed, relative RMS error 0.0946, SQNR 20.49 dB, worst a.weight",
        ),
        (
            "FIDELITY_GATE.json",
            {"packed": 0, "whole": {"rel_rms": None, "sqnr_db": None}, "worst": None},
            "pass: 0 weights packed",
        ),
        ("OTHER.json", {"two_words": 1200, "list": [1], "name": "x"}, "pass: two words 1,200, name x"),
    ],
)
def test_a_report_is_said_on_one_line(name: str, summary: dict[str, Any], text: str) -> None:
    assert f"pass: {summary_text(name, {'summary': summary})}" == text


def test_neighbours_with_the_same_cure_share_it() -> None:
    found = [
        finding("E_DIGEST", "error", "other bytes", file="a", fix="fetch it again"),
        finding("E_SIZE", "error", "other size", file="b", fix="fetch it again"),
        finding("W_NO_CONFIG", "warning", "none"),
        finding("E_DIGEST", "error", "other bytes", file="c", fix="fetch it again"),
    ]
    assert findings_text(found).splitlines() == [
        "error E_DIGEST: other bytes [a]",
        "error E_SIZE: other size [b]",
        "  fix for these 2: fetch it again",
        "warning W_NO_CONFIG: none",
        "error E_DIGEST: other bytes [c]",
        "  fix: fetch it again",
    ]


def test_the_same_finding_is_said_once() -> None:
    item = finding("W_MISALIGNED", "note", "as it was", tensor="a", fix="do it")
    other = finding("W_MISALIGNED", "note", "as it was", tensor="b", fix="do it")
    assert findings_text([item, other, item]).count("as it was") == 2


def test_what_is_said_of_every_layer_is_told_once() -> None:
    """Tensors whose names differ in numbers only; another message, place or kind of tensor stays on its own."""
    found = [
        finding("W_GGUF_FALLBACK", "warning", f"stored as {kind}", tensor=f"blk.{layer}.{name}.weight")
        for layer in range(3)
        for name, kind in (("ffn_up", "Q5_0"), ("attn_v", "Q8_0" if layer == 1 else "Q5_0"))
    ]
    assert findings_text(found).splitlines() == [
        "warning W_GGUF_FALLBACK: stored as Q5_0 [tensor 'blk.0.ffn_up.weight'] and 2 more like it",
        "warning W_GGUF_FALLBACK: stored as Q5_0 [tensor 'blk.0.attn_v.weight'] and 1 more like it",
        "warning W_GGUF_FALLBACK: stored as Q8_0 [tensor 'blk.1.attn_v.weight']",
    ]
    shapes = [finding("E_REFERENCE", "error", "shape", tensor=name, fix="f") for name in ("a.0.w", "b.0.w", "a.1.w")]
    assert findings_text(shapes).splitlines() == [
        "error E_REFERENCE: shape [tensor 'a.0.w'] and 1 more like it",
        "error E_REFERENCE: shape [tensor 'b.0.w']",
        "  fix for these 3: f",
    ]


def test_a_limit_that_a_kind_of_weights_does_not_keep_is_told_once_for_each_metric() -> None:
    found = [
        finding(
            "E_GATE", "error", f"tensor 'a.{layer}.w': {metric} is 0.{layer}", tensor=f"a.{layer}.w",
            data={"scope": "tensor", "name": f"a.{layer}.w", "metric": metric},
        )
        for layer in range(3)
        for metric in ("rel_rms", "cosine")
    ]  # fmt: skip
    assert findings_text(found).splitlines() == [
        "error E_GATE: tensor 'a.0.w': rel_rms is 0.0 [tensor 'a.0.w'] and 2 more like it",
        "error E_GATE: tensor 'a.0.w': cosine is 0.0 [tensor 'a.0.w'] and 2 more like it",
    ]
