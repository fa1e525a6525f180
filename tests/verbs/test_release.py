"""``release``: the third seed at small scale, whole or not at all, resumable, the same bytes every time."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from convertkit.checkpoint import Checkpoint
from convertkit.cli.main import main
from convertkit.containers.folder import open_any, open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.errors import ConvertError
from convertkit.release.recipe import read_recipe
from convertkit.verbs import release_checks
from convertkit.verbs.case import Options, Result
from convertkit.verbs.fix_keys import fix_keys
from convertkit.verbs.release import ReleasePlan, ReleaseResult, release
from convertkit.verbs.release_init import release_init
from convertkit.verbs.verify import verify
from tests.crash.pipeline import assert_sums_hold, contents
from tests.gguf.models import write_model
from tests.release.recipes import LOSSY, SEED, write_recipe


def make(recipe: Path, out: Path, **words: Any) -> ReleaseResult:
    made = release(recipe, out, options=Options(workers=2, **words))
    assert isinstance(made, ReleaseResult)
    return made


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seed")
    make(write_recipe(folder), folder / "out")
    return folder


def test_the_seed_is_remade(seed: Path) -> None:
    out = seed / "out"
    root = {path.name for path in out.iterdir()}
    assert root == {
        "model.safetensors", "config.json", "hf_quant_config.json", "FIDELITY_GATE.json", "LOAD_SHAPE_AUDIT.json",
        "RELEASE_REPORT.json", "PROVENANCE.intoto.json", "REPORT.html", "README.md", "LICENSE", "NOTICE",
        "MANIFEST.json", "SHA256SUMS", "bf16",
    }  # fmt: skip
    assert {path.name for path in (out / "bf16").iterdir()} == {
        "model.safetensors", "config.json", "DEQUANT_REPORT.json", "LOAD_SHAPE_AUDIT.json", "README.md", "LICENSE",
        "NOTICE", "MANIFEST.json", "SHA256SUMS",
    }  # fmt: skip
    with Reader(open_checkpoint(seed / "drafter")) as one, Reader(open_checkpoint(out / "bf16")) as two:
        assert one.checkpoint.tensors.keys() == two.checkpoint.tensors.keys()
        assert all(one.bytes_of(name) == two.bytes_of(name) for name in one.checkpoint.tensors)
    rows = {row["folder"]: row for row in json.loads((out / "RELEASE_REPORT.json").read_bytes())["rows"]}
    assert rows["."]["on_grid"] == {"linears": 15, "elements": 122880, "differing": 0}
    assert rows["bf16/"]["expansion"] == {
        "elements": 122880, "differing": 0, "unrecovered": 0, "against_differing": 0,
    }  # fmt: skip


def test_it_verifies_whole_and_in_parts_and_with_sha256sum(seed: Path, tmp_path: Path) -> None:
    out = seed / "out"
    assert verify(out, strict=True).status == 0
    assert_sums_hold(out)
    shutil.copytree(out / "bf16", tmp_path / "bf16")
    assert verify(tmp_path / "bf16", strict=True).status == 0
    shutil.copytree(out, tmp_path / "root", ignore=lambda folder, names: {"bf16"} & set(names))
    assert verify(tmp_path / "root", only=["!bf16/*"]).status == 0
    assert verify(tmp_path / "root").status == 1


def test_same_recipe_and_source_give_the_same_bytes(seed: Path, tmp_path: Path) -> None:
    make(write_recipe(tmp_path / "elsewhere"), tmp_path / "two")
    assert contents(tmp_path / "two") == contents(seed / "out")
    text = b"".join(contents(tmp_path / "two").values())
    assert str(tmp_path).encode() not in text


def test_lineage_reaches_from_the_source_to_every_output(seed: Path) -> None:
    manifest = json.loads((seed / "out" / "MANIFEST.json").read_bytes())
    sources = {item["path"]: item["sha256"] for item in manifest["source"]["files"]}
    weights = (seed / "drafter" / "model.safetensors").read_bytes()
    assert sources["model.safetensors"] == hashlib.sha256(weights).hexdigest()
    assert {row["file"] for row in manifest["tensors"]} == {"model.safetensors", "bf16/model.safetensors"}
    assert [item["verb"] for item in manifest["plan"]["parameters"]["variants"]] == ["pack-nvfp4", "dequant"]
    statement = json.loads((seed / "out" / "PROVENANCE.intoto.json").read_bytes())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    files = {entry["path"]: entry["sha256"] for entry in manifest["files"]}
    assert {item["name"]: item["digest"]["sha256"] for item in statement["subject"]} == {
        name: files[name] for name in ("model.safetensors", "bf16/model.safetensors")
    }
    products = statement["predicate"]["runDetails"]["byproducts"]
    assert {item["name"] for item in products} >= {"FIDELITY_GATE.json", "bf16/DEQUANT_REPORT.json"}
    assert all(files[item["name"]] == item["digest"]["sha256"] for item in products)


def test_dry_run_lists_what_will_exist_and_writes_nothing(seed: Path, tmp_path: Path) -> None:
    planned = release(seed / "recipe.toml", tmp_path / "out", only_plan=True)
    assert isinstance(planned, ReleasePlan)
    sizes = {item["path"]: item["size_bytes"] for item in planned.document["files"]}
    real = {str(path.relative_to(seed / "out")): path.stat().st_size for path in (seed / "out").rglob("*.*")}
    assert set(sizes) == set(contents(seed / "out"))
    assert all(size in (None, real[path]) for path, size in sizes.items() if path in real)
    assert sizes["bf16/model.safetensors"] == real["bf16/model.safetensors"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (SEED, "E_AGAINST"),  # the expansion of a lossy pack is not its source
        (LOSSY + "[thresholds]\nmax_rel_rms = 0.001\n", "E_GATE"),
        (LOSSY.replace('variants = ["bf16"]', 'variants = ["."]'), "E_LOAD_REFUSED"),
    ],
)
def test_a_check_that_says_no_publishes_nothing(tmp_path: Path, text: str, code: str) -> None:
    recipe = write_recipe(tmp_path, text, on_grid=False)
    with pytest.raises(ConvertError, match=code) as caught:
        make(recipe, tmp_path / "out", report_dir=tmp_path / "reports")
    assert caught.value.status == 1
    assert {path.name for path in tmp_path.iterdir()} <= {"drafter", "recipe.toml", "reports"}


def test_publish_anyway_records_the_verdict(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, LOSSY + "[thresholds]\nmax_rel_rms = 0.001\n", on_grid=False)
    made = make(recipe, tmp_path / "out", publish_anyway=True)
    assert made.status == 1
    assert "A check failed." in (tmp_path / "out" / "REPORT.html").read_text()
    assert any(item.code == "W_REPORT_VERDICT" for item in verify(tmp_path / "out").findings)


def test_a_reference_is_measured_and_judged_if_asked(seed: Path, tmp_path: Path) -> None:
    words = f'[[references]]\nname = "source"\npath = "{seed / "drafter"}"\nvariant = "bf16"\njudge = true\n'
    made = make(write_recipe(tmp_path, SEED + words), tmp_path / "out")
    (row,) = made.report["summary"]["references"]
    assert row["verdict"] == "pass"
    assert row["whole"]["changed"] == 0
    other = write_recipe(tmp_path / "lossy", LOSSY + words.replace('"bf16"', '"."'), on_grid=False)
    strict = other.read_text() + "[thresholds]\nmax_changed = 0.0\n"
    other.write_text(strict)
    with pytest.raises(ConvertError, match="E_GATE"):
        make(other, tmp_path / "lossy" / "out")


def test_a_variant_must_be_a_drop_in_if_asked(seed: Path, tmp_path: Path) -> None:
    words = '[[references]]\nname = "before"\npath = "{}"\nvariant = "."\ndrop_in = true\n'
    made = make(write_recipe(tmp_path, SEED + words.format(seed / "drafter")), tmp_path / "out")
    assert made.report["summary"]["references"][0]["drop_in"]
    assert verify(tmp_path / "out", strict=True).status == 0
    renamed = fix_keys(seed / "drafter", tmp_path / "renamed", rename=["layers.{i}.{rest}=blocks.{i}.{rest}"])
    assert isinstance(renamed, Result)
    other = write_recipe(tmp_path / "other", SEED + words.format(tmp_path / "renamed"))
    with pytest.raises(ConvertError, match="E_AGAINST"):
        make(other, tmp_path / "other" / "out")
    assert not (tmp_path / "other" / "out").exists()


def test_supersedes_tells_stale_files_from_damaged_ones(seed: Path, tmp_path: Path) -> None:
    text = LOSSY + "\n"
    recipe = write_recipe(tmp_path, text.replace("[card]", "[card]", 1), on_grid=False)
    recipe.write_text(f'supersedes = "{seed / "out"}"\n' + text)
    make(recipe, tmp_path / "out")
    shutil.copyfile(seed / "out" / "model.safetensors", tmp_path / "out" / "model.safetensors")
    assert verify(tmp_path / "out", only=["model.safetensors"]).status == 6


def test_a_gguf_beside_the_pack(tmp_path: Path) -> None:
    write_model(tmp_path / "target", "qwen3")
    write_model(tmp_path / "drafter", "dflash")
    gguf = '[[variants]]\nfolder = "gguf"\nformat = "gguf"\nfrom = "bf16"\ntype = "bf16"\n\n'
    gguf += '[[engines]]\nname = "llama.cpp"\n'
    text = LOSSY.replace("[card]", gguf + "[card]").replace("version =", 'target_model = "target"\nversion =', 1)
    text = text.replace('variants = [".", "bf16"]', "").replace('variants = ["bf16"]', "")
    text = text.replace('files = ["drafter/LICENSE", "drafter/NOTICE"]', "")
    recipe = write_recipe(tmp_path, text)
    planned = release(recipe, tmp_path / "out", only_plan=True)
    assert isinstance(planned, ReleasePlan)
    made = make(recipe, tmp_path / "out")
    real = {path: len(data) for path, data in contents(tmp_path / "out").items()}
    foreseen = {item["path"]: item["size_bytes"] for item in planned.document["files"]}
    assert foreseen.keys() == real.keys()
    assert {path: size for path, size in foreseen.items() if size is not None}.items() <= real.items()
    assert foreseen["gguf/model.gguf"] is not None
    row = made.report["rows"][2]
    assert row["weights"][0]["path"] == "model.gguf"
    assert verify(tmp_path / "out", strict=True).status == 0
    assert "-md gguf/model.gguf" in (tmp_path / "out" / "README.md").read_text()


def test_headers_are_read_once_for_all_engines(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    opened: list[str] = []

    def counted(folder: Path) -> Checkpoint:
        opened.append(folder.name)
        return open_any(folder)

    with mock.patch.object(release_checks, "open_any", counted):
        made = make(recipe, tmp_path / "out")
    assert opened == ["0-root", "1-bf16"]
    rows = made.report["summary"]["engines"]
    assert [(row["engine"], row["variant"]) for row in rows] == [
        ("vllm", "."), ("vllm", "bf16/"), ("sglang", "."), ("sglang", "bf16/"),
    ]  # fmt: skip


def test_only_reports_of_the_release_are_its_byproducts(seed: Path, tmp_path: Path) -> None:
    shutil.copytree(seed / "out", tmp_path / "out")
    (tmp_path / "out" / "MY_NOTES.json").write_text("{}")
    make(write_recipe(tmp_path), tmp_path / "out", force=True)
    assert (tmp_path / "out" / "MY_NOTES.json").exists()
    statement = json.loads((tmp_path / "out" / "PROVENANCE.intoto.json").read_bytes())
    assert [item["name"] for item in statement["predicate"]["runDetails"]["byproducts"]] == [
        "FIDELITY_GATE.json", "LOAD_SHAPE_AUDIT.json", "RELEASE_REPORT.json",
        "bf16/DEQUANT_REPORT.json", "bf16/LOAD_SHAPE_AUDIT.json",
    ]  # fmt: skip


def test_force_keeps_what_is_the_users(seed: Path, tmp_path: Path) -> None:
    shutil.copytree(seed / "out", tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    make(write_recipe(tmp_path), tmp_path / "out", force=True)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert verify(tmp_path / "out", strict=True).status == 0


def test_init_writes_a_recipe_that_release_reads(seed: Path, tmp_path: Path) -> None:
    text = release_init(seed / "drafter", target_id="Qwen/Qwen3.8-27B", output=tmp_path / "drafter.toml")
    recipe = read_recipe(tmp_path / "drafter.toml")
    assert recipe.source.resolve() == seed / "drafter"
    assert [variant.format for variant in recipe.variants] == ["nvfp4-modelopt-mixed", "bf16"]
    assert text == (tmp_path / "drafter.toml").read_text()
    make(tmp_path / "drafter.toml", tmp_path / "out")
    assert "…" not in (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(ConvertError, match="E_OUT_EXISTS"):
        release_init(seed / "drafter", output=tmp_path / "drafter.toml")


def test_init_of_a_folder_whose_name_is_no_name_of_a_release(seed: Path, tmp_path: Path) -> None:
    shutil.copytree(seed / "drafter", tmp_path / "-mein Dräfter!")
    release_init(tmp_path / "-mein Dräfter!", output=tmp_path / "it.toml")
    assert read_recipe(tmp_path / "it.toml").name == "mein-Dr-fter"


def test_the_command(seed: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["release", str(seed / "recipe.toml"), str(tmp_path / "out"), "--dry-run"]) == 0
    assert "bf16/model.safetensors" in capfd.readouterr().out
    assert main(["release", str(seed / "recipe.toml"), str(tmp_path / "out")]) == 0
    assert "0 of 122,880 elements differ" in capfd.readouterr().out
    assert main(["release", str(seed / "recipe.toml"), str(tmp_path / "out")]) == 5
    assert main(["release", str(seed / "recipe.toml"), "--output", "x"]) == 2
    assert main(["release", "init"]) == 2
    capfd.readouterr()
    assert main(["release", "init", str(seed / "drafter"), "--json"]) == 0
    assert "convertkit.recipe/1" in json.loads(capfd.readouterr().out)["recipe"]
