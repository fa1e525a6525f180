"""Words that no file can hold, names that nobody reads, and values that are none: each refused or told, never a fault
of the program."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from convertkit.checks.differ import _decoded
from convertkit.cli.main import main
from convertkit.errors import ConvertError
from convertkit.layouts.likeness import likeness
from convertkit.layouts.rules import natural_key, template_of
from convertkit.release.summary import reports_blamed
from convertkit.verbs.release_init import _quoted
from tests.gguf.models import write_model

FIXTURES = Path(__file__).parents[2] / "fixtures"
NOT_UTF8 = "a\udcff"
"""What Python makes of a byte on the command line that is not UTF-8."""

DIGITS = "9" * 5000


def test_words_that_are_not_utf8(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, out = str(FIXTURES / "qwen3-tiny"), str(tmp_path / "out")
    model = str(write_model(tmp_path / "model", "qwen3"))
    for words in (
        ["repair", source, out, "--metadata", f"key={NOT_UTF8}"],
        ["repair", source, out, "--metadata", f"{NOT_UTF8}=value"],
        ["fix-keys", source, out, "--rename", f"lm_head.weight={NOT_UTF8}"],
        ["fix-keys", source, "--in-place", "--dry-run", "--rename", f"lm_head.weight={NOT_UTF8}"],
        ["to-gguf", model, f"{out}.gguf", "--name", NOT_UTF8],
        ["to-gguf", model, f"{out}.gguf", "--pre", NOT_UTF8],
        ["release", "init", source, "--output", f"{out}.toml", "--target-id", f"org/{NOT_UTF8}"],
        ["release", "init", source, "--output", f"{out}.toml", "--target-model", NOT_UTF8],
    ):
        assert main([*words, "--json"]) == 2, words
        assert [item["code"] for item in json.loads(capfd.readouterr().out)["findings"]] == ["E_USAGE"], words
        assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_a_recipe_quotes() -> None:
    import tomllib

    text = 'a\x7f"b'
    assert tomllib.loads("key = " + _quoted(text)) == {"key": text}


def test_numbers_that_are_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert template_of("a.123456789012345678.b") == ("a.{i}.b", (123456789012345678,))
    assert template_of(f"a.{DIGITS}.b") == (f"a.{DIGITS}.b", ())
    assert natural_key(DIGITS) == ((1, 0, DIGITS),)
    source, out = str(FIXTURES / "qwen3-tiny"), str(tmp_path / "out")
    assert main(["fix-keys", source, out, "--rename", f"lm_head.weight=a.{DIGITS}.b"]) == 3
    assert "E_ST_NAME" in capfd.readouterr().err


@pytest.mark.parametrize("name", [f"a.{DIGITS}.b", "a." * 5000 + "b", "a\x01b"])
def test_lists_of_names_that_are_none(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "names.txt").write_text(f"lm_head.weight\n{name}\n")
    (tmp_path / "names.json").write_text(json.dumps(["lm_head.weight", name]))
    for reference in ("names.txt", "names.json"):
        words = ["fix-keys", str(FIXTURES / "qwen3-tiny"), str(tmp_path / "out"), "--like", str(tmp_path / reference)]
        assert main(words) == 2
        assert "E_USAGE" in capfd.readouterr().err


def test_too_many_kinds_of_names() -> None:
    found = likeness(dict.fromkeys(f"a{n}x.weight" for n in range(400)), dict.fromkeys(f"b{n}y" for n in range(400)))
    assert [item.code for item in found.findings] == ["E_LIKE_NONE"]
    assert not found.rules


@pytest.mark.parametrize("sense", ["multiplier", "divisor"])
@pytest.mark.parametrize("scale", [2.5, -2.5, 0.0, -0.0, float("inf"), float("-inf"), float("nan")])
def test_values_of_scales_that_are_none(scale: float, sense: str) -> None:
    codes = np.arange(16, dtype=np.uint8).repeat(8).reshape(1, 128) * 17
    scales = np.full((1, 16), 0x38, np.uint8)  # one
    bits = int(np.float32(scale).view(np.uint32))
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    exact = np.concatenate([magnitudes, -magnitudes]).repeat(16)
    with np.errstate(all="ignore"):
        wanted = exact * scale if sense == "multiplier" else exact / scale
    assert np.array_equal(_decoded(codes, scales, bits, sense, None), wanted, equal_nan=True)  # type: ignore[arg-type]


def test_a_report_with_a_row_that_is_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["pack-nvfp4", str(FIXTURES / "dflash2-tiny"), str(tmp_path / "pack"), "--quiet"]) == 0
    report = tmp_path / "pack" / "LOAD_SHAPE_AUDIT.json"
    document = json.loads(report.read_text())
    document["rows"][0]["shape"] = [{"a": 16}]
    report.write_text(json.dumps(document))
    assert main(["report", str(tmp_path / "pack"), "--output", str(tmp_path / "page.html")]) == 3
    said = capfd.readouterr().err
    assert "E_REPORT_SCHEMA" in said
    assert "LOAD_SHAPE_AUDIT.json" in said
    assert not (tmp_path / "page.html").exists()


def test_blaming_a_report_with_a_row_that_is_none(tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    assert main(["pack-nvfp4", str(FIXTURES / "dflash2-tiny"), str(pack), "--quiet"]) == 0
    document = json.loads((pack / "FIDELITY_GATE.json").read_text())
    document["rows"] = [{"scope": "tensor"}]
    (pack / "FIDELITY_GATE.json").write_text(json.dumps(document))
    with pytest.raises(ConvertError, match="E_REPORT_SCHEMA"), reports_blamed([pack]):
        raise KeyError("metrics")
    (pack / "FIDELITY_GATE.json").unlink()
    with pytest.raises(KeyError), reports_blamed([pack]):
        raise KeyError("metrics")
