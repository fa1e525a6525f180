"""Every claim of a card is compared: what is true passes, each number changed by one is caught."""

from __future__ import annotations

import pytest

from convertkit.release.card_check import Reality, check_card
from convertkit.release.words import size_fits, size_text

A, B = "a" * 64, "b" * 64
REALITY = Reality(
    sizes={"model.safetensors": 1926977716, "bf16/model.safetensors": 3848817920, "bf16/DEQUANT_REPORT.json": 100},
    digests={"model.safetensors": A, "bf16/model.safetensors": B},
    tensors={"model.safetensors": 111, "bf16/model.safetensors": 81},
    known=frozenset({"c" * 64}),
    reports={"bf16/DEQUANT_REPORT.json": {"summary": {"elements": 1000, "differing": 0}}},
    engines={("vLLM", "1.0", "."): "loads", ("vLLM", "1.0", "bf16/"): "does not load it"},
)
CARD = f"""---
license: "apache-2.0"
---
# A card with 111 tensors

The pack has 1,926,977,716 bytes; its source was {"c" * 64}.

| file | bytes | sha256 | tensors |
| --- | --: | --- | --: |
| `model.safetensors` | 1,926,977,716 | `{A}` | 111 |
| `bf16/model.safetensors` | 3,848,817,920 | `{B}` | 81 |

| folder | format | tensors | bytes | size |
| --- | --- | --: | --: | --: |
| `.` | `nvfp4` | 111 | 1926977716 | 1.93 GB |
| `bf16/` | `bf16` | 81 | 3,848,817,920 | 3.85 GB |

| report | elements | differing elements |
| --- | --: | --: |
| `bf16/DEQUANT_REPORT.json` | 1,000 | 0 |

It has 0 differing elements: 0 of 1,000 elements differ. A GPU with 80 GB and 3 dogs is no claim.

```sh
convertkit verify . # 5 tensors in code are no claim
```
"""


def messages(text: str) -> list[str]:
    return [item.message for item in check_card(text.encode(), "README.md", REALITY).findings]


def test_a_true_card_passes_and_its_claims_are_counted() -> None:
    found = check_card(CARD.encode(), "README.md", REALITY)
    assert found.findings == ()
    assert found.claims == 21


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("with 111 tensors", "with 112 tensors"),
        ("has 1,926,977,716 bytes", "has 1,926,977,717 bytes"),
        ("c" * 64, "d" * 64),
        ("| 1,926,977,716 |", "| 1,926,977,717 |"),
        (f"`{A}` | 111", f"`{B}` | 111"),
        (f"`{A}` | 111", f"`{A}` | 110"),
        ("`model.safetensors`", "`modell.safetensors`"),
        ("111 | 1926977716", "111 | 1926977717"),
        ("1.93 GB", "1.94 GB"),
        ("| 81 | 3,848,817,920 | 3.85", "| 82 | 3,848,817,920 | 3.85"),
        ("`bf16/` |", "`f16/` |"),
        ("| 1,000 | 0 |", "| 1,001 | 0 |"),
        ("| 1,000 | 0 |", "| 1,000 | 1 |"),
        ("`bf16/DEQUANT_REPORT.json`", "`DEQUANT_REPORT.json`"),
        ("has 0 differing elements", "has 1 differing elements"),
        ("0 of 1,000 elements differ", "0 of 2,000 elements differ"),
    ],
)
def test_each_false_claim_is_caught(old: str, new: str) -> None:
    assert old in CARD
    assert messages(CARD.replace(old, new, 1))


def test_a_card_without_claims_says_so() -> None:
    found = check_card(b"# A model\n\nIt is good.\n", "README.md", REALITY)
    assert [item.code for item in found.findings] == ["W_CARD_EMPTY"]


def test_a_report_that_was_not_downloaded_is_no_fault() -> None:
    absent = Reality(REALITY.sizes, REALITY.digests, REALITY.tensors, REALITY.known, {})
    text = "| report | elements | differing elements |\n|---|---|---|\n| `bf16/DEQUANT_REPORT.json` | 7 | 7 |\n"
    assert [item.code for item in check_card(text.encode(), "README.md", absent).findings] == ["W_CARD_EMPTY"]


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 224252, 1926977716, 3848817920, 23_350_000_000])
def test_a_size_is_read_back_as_it_was_said(size: int) -> None:
    assert size_fits(size_text(size), size)
    assert not size_fits(size_text(size), size * 2 + 1)


BARE = """
file | bytes
- | -:
`model.safetensors` | {}
"""
SHORT_RULE = "| report | differing elements |\n| - | -: |\n| `bf16/DEQUANT_REPORT.json` | {} |\n"
NO_FENCE = "``` `not a fence` ```\n" + SHORT_RULE
LONG_FENCE = "````\n```\n````\n" + SHORT_RULE
INDENTED = "    ```\n\n" + SHORT_RULE
RAGGED = "| report | differing elements |\n| --- | --: |\n`bf16/DEQUANT_REPORT.json` | {}\n"
BOLD = "| report | differing elements |\n| --- | --: |\n| bf16/DEQUANT_REPORT.json | **{}** |\n"


@pytest.mark.parametrize(
    ("text", "true", "false"),
    [
        (BARE, "1,926,977,716", "1,926,977,717"),
        *((text, "0", "5") for text in (SHORT_RULE, NO_FENCE, LONG_FENCE, INDENTED, RAGGED, BOLD)),
        ("| a |\n| with {} tensors |\n", "111", "112"),
    ],
)
def test_tables_are_those_that_a_reader_sees(text: str, true: str, false: str) -> None:
    assert messages(text.format(true)) == []
    assert check_card(text.format(true).encode(), "README.md", REALITY).claims > 0
    assert len(messages(text.format(false))) == 1


@pytest.mark.parametrize("text", ["```\n{}\n```\n", "~~~ text\n```\n{}\n~~~\n", "```\n{}"])
def test_code_is_no_claim(text: str) -> None:
    assert messages(text.format("112 tensors\n" + SHORT_RULE.format("5"))) == ["nothing on the card could be compared"]


def test_answers_of_engines_are_those_of_the_report() -> None:
    table = "| engine | version | folder | answer |\n| --- | --- | --- | --- |\n| vLLM | 1.0 | `{}` | {} |\n"
    assert messages(table.format(".", "loads")) == []
    assert messages(table.format("bf16/", "does not load it")) == []
    assert len(messages(table.format("bf16/", "loads"))) == 1
    assert len(messages(table.format("ct/", "loads"))) == 1
