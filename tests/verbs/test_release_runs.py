"""``release``: its variants side by side, interrupted and resumed, killed, and the source changed meanwhile."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from convertkit.containers.reader import Reader
from convertkit.conversion.stop import Interrupted
from convertkit.errors import ConvertError
from convertkit.release.follow import source_digests
from convertkit.verbs import line, release_run
from tests.crash.pipeline import contents
from tests.release.recipes import SIDE_BY_SIDE, write_recipe
from tests.verbs.test_release import make


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seed")
    make(write_recipe(folder), folder / "out")
    return folder


def interrupt_at(number: int) -> Any:
    """Stand-in for ``carry_out`` that a signal stops in the variant of that number."""
    real, calls = line.carry_out, [0]

    def stopped(*arguments: Any, **words: Any) -> Any:
        calls[0] += 1
        if calls[0] > number:
            raise Interrupted(signal.SIGINT)
        return real(*arguments, **words)

    return mock.patch.object(release_run, "carry_out", stopped)


def test_no_file_is_hashed_by_two_variants(tmp_path: Path) -> None:
    """The source is hashed once for all; what is made from a variant takes its digests over."""
    hashed: list[str] = []

    def counted(reader: Reader, halt: Any) -> dict[str, str]:
        hashed.extend(file.name for file in reader.checkpoint.files)
        return source_digests(reader, halt)

    recipe = write_recipe(tmp_path, SIDE_BY_SIDE)
    with mock.patch.object(line, "source_digests", counted), mock.patch.object(release_run, "source_digests", counted):
        made = make(recipe, tmp_path / "out")
    assert hashed == ["model.safetensors"]
    manifest = json.loads((tmp_path / "out" / "ct" / "MANIFEST.json").read_bytes())
    sources = {item["path"]: item["sha256"] for item in manifest["source"]["files"]}
    root = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert sources["model.safetensors"] == hashlib.sha256(root).hexdigest()
    assert [row["folder"] for row in made.report["rows"]] == [".", "bf16/", "ct/"]


def test_one_of_two_that_are_made_side_by_side_fails(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, SIDE_BY_SIDE, on_grid=False)  # so bf16/ is not its source
    with pytest.raises(ConvertError, match="E_AGAINST"):
        make(recipe, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"drafter", "recipe.toml"}


@pytest.mark.parametrize("finished", [1, 2])
def test_resume_with_variants_side_by_side(tmp_path: Path, finished: int) -> None:
    recipe = write_recipe(tmp_path, SIDE_BY_SIDE)
    with interrupt_at(finished), pytest.raises(Interrupted):
        make(recipe, tmp_path / "out")
    make(recipe, tmp_path / "out", resume=True)
    make(recipe, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_resume_trusts_what_is_finished_and_gives_the_same_bytes(seed: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    with interrupt_at(1), pytest.raises(Interrupted):
        make(recipe, tmp_path / "out")
    with interrupt_at(1):  # one more variant may be made: the finished one is not made again
        make(recipe, tmp_path / "out", resume=True)
    assert contents(tmp_path / "out") == contents(seed / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"drafter", "recipe.toml", "out"}


@pytest.mark.parametrize("finished", [0, 1])
def test_a_changed_source_refuses_to_resume(tmp_path: Path, finished: int) -> None:
    recipe = write_recipe(tmp_path)
    with interrupt_at(finished), pytest.raises(Interrupted):
        make(recipe, tmp_path / "out", keep=True)
    weights = tmp_path / "drafter" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(ConvertError, match="E_RESUME"):
        make(recipe, tmp_path / "out", resume=True)
    assert not (tmp_path / "out").exists()


def test_a_damaged_variant_is_made_again(seed: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    with interrupt_at(1), pytest.raises(Interrupted):
        make(recipe, tmp_path / "out")
    (staged,) = tmp_path.glob(".out.partial-*/variants/0-root/model.safetensors")
    data = bytearray(staged.read_bytes())
    data[-1] ^= 1
    staged.write_bytes(data)
    make(recipe, tmp_path / "out", resume=True)
    assert contents(tmp_path / "out") == contents(seed / "out")


@pytest.mark.slow
def test_kills(tmp_path: Path) -> None:
    """Any number of kills may be asked for; these take a minute."""
    command = [sys.executable, "-m", "tests.crash.release_killer", str(tmp_path / "field"), "40", "7"]
    (tmp_path / "field").mkdir()
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["killed"] >= 40
    assert counts["resumed"] >= 15
