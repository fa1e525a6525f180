"""The table of codes lists what the program says, and nothing else."""

from __future__ import annotations

from pathlib import Path

from convertkit.codes import CODES

PACKAGE = Path(__file__).parents[1] / "convertkit"


def test_every_code_is_used_somewhere() -> None:
    text = "".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "codes.py")
    assert [code for code in CODES if f'"{code}"' not in text] == []


def test_codes_tell_their_severity_and_status() -> None:
    for code, row in CODES.items():
        assert code[:2] in ("E_", "W_", "N_")
        assert row.meaning.endswith(".")
        assert (row.status == 0) == (code[:2] != "E_"), code
