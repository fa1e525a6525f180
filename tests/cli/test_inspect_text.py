"""Lists of names in the text of ``inspect``."""

from __future__ import annotations

from pathlib import Path

from convertkit.cli.inspect import SHOWN_NAMES, TEXT_WIDTH, lines, named
from convertkit.verbs.inspect import inspect
from tests.dialects.tiny import LM_CONFIG, causal_lm, write


def test_names_are_whole_and_the_others_are_counted() -> None:
    reports = ["LOAD_SHAPE_AUDIT.json (report)", "MANIFEST.json (manifest)", "SHA256SUMS (manifest)"]
    assert named(reports[:1]) == reports[0]
    assert named([*reports, "config.json (written anew)"]) == f"{reports[0]}, {reports[1]}, and 2 more"
    assert named(["a", "b"]) == "a, b"
    assert named([str(number) for number in range(SHOWN_NAMES + 2)]) == "0, 1, 2, 3, 4, 5, and 2 more"


def test_one_name_that_is_too_long_is_cut() -> None:
    assert len(named(["x" * 200, "y"])) <= TEXT_WIDTH
    assert named(["x" * 200, "y"]).endswith(", and 1 more")
    assert len(named(["x" * 200])) <= TEXT_WIDTH


def test_findings_are_told_as_everywhere(tmp_path: Path) -> None:
    specs = [item for item in causal_lm(("down_proj",)) if not item.name.endswith("weight_scale_2")]
    text = "\n".join(lines(inspect(write(tmp_path / "m", specs, LM_CONFIG))))
    place = "[model.safetensors, tensor 'model.layers.0.mlp.down_proj.weight_scale_2'] and 1 more like it"
    assert f"error E_PACK_MISSING: the packed linear has no weight_scale_2 {place}" in text
    assert "  fix for these 2: the file is incomplete" in text
