"""fix-keys, repair and diff as commands: statuses, text and JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from convertkit.containers.folder import EDIT_FOLDER
from convertkit.verbs.verify import verify
from tests.dialects.tiny import LM_CONFIG, causal_lm, write

ROOT = Path(__file__).resolve().parents[2]
RULE = "model.layers.{rest}=model.language_model.layers.{rest}"


def call(*words: object) -> tuple[int, str, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "convertkit", *map(str, words)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def document(*words: object, status: int = 0) -> dict[str, Any]:
    code, out, err = call(*words, "--json")
    assert code == status, err
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "model", causal_lm(), LM_CONFIG)


def test_presets_are_listed_with_their_rules() -> None:
    rows = document("fix-keys", "--list")["presets"]
    assert {"nested-vision", "doubled-language-model", "experts-transposed", "midlayer"} <= {
        row["name"] for row in rows
    }
    assert all(row["rules"] and row["summary"] for row in rows)
    assert "nested-vision" in call("fix-keys", "--list")[1]


def test_a_new_output_shows_its_rules(model: Path, tmp_path: Path) -> None:
    code, out, _ = call("fix-keys", model, tmp_path / "out", "--rename", RULE)
    assert code == 0
    assert f"rule {RULE}" in out
    found = document("fix-keys", model, tmp_path / "again", "--rename", RULE)
    assert found["reports"]["RENAME_REPORT.json"]["summary"]["renamed"] == 16
    assert document("fix-keys", tmp_path / "out", tmp_path / "x", "--rename", RULE)["action"] == "nothing"


def test_in_place_says_what_it_wrote_and_what_is_pending(model: Path) -> None:
    plan = document("fix-keys", model, "--in-place", "--rename", RULE, "--dry-run")
    assert (plan["action"], plan["renamed"]) == ("planned", 16)
    code, out, _ = call("fix-keys", model, "--in-place", "--rename", RULE)
    assert code == 0
    assert "of weights untouched" in out
    assert "run `convertkit manifest`" in out
    assert document("fix-keys", model, "--in-place", "--recover")["action"] == "nothing"


@pytest.mark.parametrize(
    "words",
    [
        ("fix-keys",),
        ("fix-keys", "{model}", "{out}"),
        ("fix-keys", "{model}", "--rename", RULE),
        ("fix-keys", "{model}", "{out}", "--rename", "nothing={x}"),
        ("fix-keys", "{model}", "{out}", "--rename", RULE, "--max-shard-size", "1GB"),
        ("fix-keys", "{model}", "--in-place", "--recover", "--undo"),
        ("repair", "{model}", "{out}"),
        ("repair", "{model}", "{out}", "--metadata", "novalue"),
        ("repair", "{model}", "{out}", "--merge", "--max-shard-size", "1GB"),
        ("diff", "{model}"),
    ],
)
def test_words_that_make_no_sense_end_with_2(model: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    code, out, err = call(*(word.format(model=model, out=tmp_path / "out", x="{x}", rest="{rest}") if "{" in word and
                            "=" not in word else word for word in words))  # fmt: skip
    assert (code, out) == (2, "")
    assert err
    assert not (tmp_path / "out").exists()


def test_differences_end_with_1_and_equality_with_0(model: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", causal_lm(layers=1), LM_CONFIG)
    code, out, _ = call("diff", model, other)
    assert code == 1
    assert "different: 8 only a" in out
    assert call("diff", model, model) == (0, "the same: 18 weights\n", "")
    assert document("diff", model, other, status=1)["summary"]["only_a"] == 8


def test_a_repair_reports_and_a_second_one_has_nothing_to_do(model: Path, tmp_path: Path) -> None:
    found = document("repair", model, tmp_path / "out", "--drop-tied")
    assert found["reports"]["REPAIR_REPORT.json"]["summary"]["dropped"] == 1
    assert (
        document("repair", tmp_path / "out", tmp_path / "again", "--drop-tied")["findings"][0]["code"]
        == "N_NOTHING_TO_DO"
    )
    assert not (tmp_path / "again").exists()


def test_a_half_changed_folder_is_not_read_by_anything(model: Path, tmp_path: Path) -> None:
    (model / EDIT_FOLDER).mkdir()
    for words in (("inspect", model), ("diff", model, model), ("repair", model, tmp_path / "x", "--merge")):
        code, _, err = call(*words)
        assert code == 3
        assert "E_EDIT_UNFINISHED" in err
    assert "E_EDIT_UNFINISHED" in [item.code for item in verify(model).findings]


def test_an_index_can_be_the_reference(model: Path, tmp_path: Path) -> None:
    names = {item.name.replace("model.layers", "model.language_model.layers"): "x.safetensors" for item in causal_lm()}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    code, out, err = call("fix-keys", model, tmp_path / "out", "--like", index)
    assert code == 0, err
    assert f"rule {RULE}" in out


def test_one_key_of_the_metadata_with_two_values_is_a_usage_error(tmp_path: Path) -> None:
    source = write(tmp_path / "source", causal_lm(), LM_CONFIG)
    code, _, err = call("repair", source, tmp_path / "out", "--metadata", "a=1", "--metadata", "a=2")
    assert code == 2
    assert "'a' is given twice" in err
    assert not (tmp_path / "out").exists()


def test_a_source_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    for option in ("--rebuild-index", "--dedupe", "--tie-scales"):
        status, _, told = call("repair", tmp_path / "none", tmp_path / "out", option)
        assert (status, told.split(":")[0]) == (3, "error E_NOT_FOUND"), told


def test_recovering_says_that_it_is_for_changes_in_place(tmp_path: Path) -> None:
    for option in ("--recover", "--undo"):
        status, _, told = call("fix-keys", tmp_path, option)
        assert status == 2
        assert f"{option} needs --in-place" in told


def test_presets_are_told_in_full() -> None:
    from convertkit.layouts.presets import PRESETS

    told = call("fix-keys", "--list")[1]
    assert "…" not in told
    assert all(preset.summary in told for preset in PRESETS.values())
