"""What would stop a release at its end, or spoil it, is refused before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from convertkit.errors import ConvertError
from convertkit.verbs.case import Options
from convertkit.verbs.release import ReleaseResult, release
from convertkit.verbs.verify import verify
from tests.release.recipes import SEED, write_recipe

REFERENCE = '[[references]]\nname = "before"\npath = "nothing"\n[card]'
TWICE = """
[[engines]]
name = "vllm"
tensor_parallel = 64

[card]
"""


def refused(recipe: Path) -> ConvertError:
    with pytest.raises(ConvertError) as caught:
        release(recipe, recipe.parent / "out", only_plan=True)
    return caught.value


@pytest.mark.parametrize(
    "folder", ["LICENSE", "readme.md", "model.safetensors", "Config.json", "SHA256SUMS", "FIDELITY_GATE.json"]
)
def test_no_folder_has_the_name_of_a_file_in_the_root(tmp_path: Path, folder: str) -> None:
    error = refused(write_recipe(tmp_path, SEED.replace('folder = "bf16"', f'folder = "{folder}"').replace(
        'variants = [".", "bf16"]', "").replace('variants = ["bf16"]', "")))  # fmt: skip
    assert [(item.code, item.where.key) for item in error.findings] == [("E_RECIPE", "variants[1].folder")]


@pytest.mark.parametrize(
    "name", ["FIDELITY_GATE.json", "DEQUANT_REPORT.json", "hf_quant_config.json", "HF_QUANT_CONFIG.JSON"]
)
def test_no_file_takes_the_place_of_one_that_is_made(tmp_path: Path, name: str) -> None:
    recipe = write_recipe(tmp_path, SEED.replace('"drafter/NOTICE"', f'"more/{name}"'))
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / name).write_text("{}")
    error = refused(recipe)
    assert [(item.code, item.where.key) for item in error.findings] == [("E_RECIPE", "files[1]")]


def test_no_file_has_the_name_of_a_folder(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, SEED.replace('"drafter/NOTICE"', '"more/bf16"'))
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "bf16").write_text("")
    assert "E_RECIPE" in {item.code for item in refused(recipe).findings}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[card]", REFERENCE),
        ('against = "source"', 'against = "nothing"'),
        ('version = "1.0.0"', 'supersedes = "nothing"'),
        ('version = "1.0.0"', 'supersedes = "drafter"'),
    ],
)
def test_what_is_compared_or_superseded_must_be_there(tmp_path: Path, old: str, new: str) -> None:
    error = refused(write_recipe(tmp_path, SEED.replace(old, new, 1)))
    assert error.findings[0].code in ("E_NOT_FOUND", "E_MANIFEST_MISSING")


def test_an_engine_asked_on_several_ranks_is_told_apart_and_asked_again(tmp_path: Path) -> None:
    made = release(write_recipe(tmp_path, SEED.replace("[card]", TWICE)), tmp_path / "out", options=Options(workers=2))
    assert isinstance(made, ReleaseResult)
    rows = {(row["title"], row["variant"]): row["verdict"] for row in made.report["summary"]["engines"]}
    assert rows["vLLM", "."] == "loads"
    assert rows["vLLM (tensor parallel 64)", "."] == "refused"
    assert "| vLLM (tensor parallel 64) |" in (tmp_path / "out" / "README.md").read_text()
    assert verify(tmp_path / "out", card=True, recompute=True).status == 0
