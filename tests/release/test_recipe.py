"""A recipe is read strictly: every fault is named, with its place, before anything is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from convertkit.errors import ConvertError
from convertkit.release.recipe import read_recipe
from tests.release.recipes import SEED


def read(tmp_path: Path, text: str) -> ConvertError:
    (tmp_path / "recipe.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConvertError) as caught:
        read_recipe(tmp_path / "recipe.toml")
    assert caught.value.status == 2
    assert {item.code for item in caught.value.findings} == {"E_RECIPE"}
    return caught.value


def test_a_good_recipe_resolves_paths_and_keeps_none_in_the_record(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(SEED, encoding="utf-8")
    recipe = read_recipe(tmp_path / "recipe.toml")
    assert recipe.source == tmp_path / "drafter"
    assert [variant.folder for variant in recipe.variants] == ["", "bf16"]
    assert recipe.variants[1].made_from == ""
    assert recipe.against(recipe.variants[1]) == tmp_path / "drafter"
    assert recipe.engines[0].variants == ("", "bf16")
    assert str(tmp_path) not in str(recipe.words)
    assert recipe.words["files"] == ["LICENSE", "NOTICE"]
    assert "source" not in recipe.words


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('name = "seed"', 'name = "../seed"', "name"),
        ('name = "seed"', 'name = "seed"\nsurprise = 1', None),
        ('folder = "bf16"', 'folder = "a/b"', "variants[1].folder"),
        ('folder = "bf16"', 'folder = ".."', "variants[1].folder"),
        ('folder = "bf16"', 'folder = "."', "variants[1].folder"),
        ('format = "bf16"', 'format = "int4"', "variants[1].format"),
        ('format = "bf16"', 'format = "bf16"\nscales = "amax"', "variants[1].scales"),
        ('format = "bf16"', 'format = "bf16"\ntype = "q8_0"', "variants[1].type"),
        ('from = "."', 'from = "gguf"', "variants[1].from"),
        ('format = "nvfp4-modelopt-mixed"', 'format = "nvfp4-modelopt-mixed"\nscales = "best"', "variants[0].scales"),
        ('variants = ["bf16"]', 'variants = ["f16"]', "engines[1].variants"),
        ('name = "sglang"', 'name = "ollama"', "engines[1]"),
        ("[card]", "[thresholds]\nmax_charm = 1\n[card]", "thresholds.max_charm"),
        ("[card]", "[thresholds]\nmax_rel_rms = nan\n[card]", "thresholds.max_rel_rms"),
        ("[card]", "[thresholds]\nmin_sqnr = -inf\n[card]", "thresholds.min_sqnr"),
        ("[card]", '[[references]]\nname = "x"\npath = "y"\nvariant = "f16"\n[card]', "references[0].variant"),
        ('"drafter/NOTICE"', '"drafter/README.md"', "files[1]"),
        ('base_model_relation = "finetune"', 'base_model_relation = "cousin"', "card.base_model_relation"),
    ],
)
def test_faults_are_named_with_their_place(tmp_path: Path, old: str, new: str, key: str | None) -> None:
    assert old in SEED
    error = read(tmp_path, SEED.replace(old, new, 1))
    assert error.findings[0].where.key == key


def test_all_faults_come_together(tmp_path: Path) -> None:
    text = SEED.replace('name = "seed"', 'name = ""').replace('version = "1.0.0"', 'version = "?"')
    assert [item.where.key for item in read(tmp_path, text).findings] == ["name", "version"]


def test_what_is_not_toml(tmp_path: Path) -> None:
    assert "not TOML" in read(tmp_path, "schema = ").findings[0].message
    (tmp_path / "recipe.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConvertError, match="E_RECIPE"):
        read_recipe(tmp_path / "recipe.toml")
    with pytest.raises(ConvertError, match="E_NOT_FOUND"):
        read_recipe(tmp_path / "none.toml")
