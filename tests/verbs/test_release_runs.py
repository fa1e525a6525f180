"""``release``: its variants side by side, interrupted and resumed, killed, and the source changed meanwhile."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from convertkit.containers.reader import Reader
from convertkit.conversion.failures import write_failure
from convertkit.conversion.flusher import Pace
from convertkit.conversion.sink import open_sink
from convertkit.conversion.staging import open_staging
from convertkit.conversion.stop import Interrupted
from convertkit.conversion.syscalls import Kernel
from convertkit.errors import ConvertError
from convertkit.release.follow import source_digests
from convertkit.verbs import line, release_run
from convertkit.verbs.verify import verify
from tests.crash.pipeline import contents
from tests.release.recipes import SIDE_BY_SIDE, write_recipe
from tests.verbs.test_release import make


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seed")
    make(write_recipe(folder), folder / "out")
    return folder


def interrupt_at(number: int, error: BaseException | None = None) -> Any:
    """Stand-in for ``carry_out`` that a signal, or another error, stops in the variant of that number."""
    real, calls = line.carry_out, [0]

    def stopped(*arguments: Any, **words: Any) -> Any:
        calls[0] += 1
        if calls[0] > number:
            raise error or Interrupted(signal.SIGINT)
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


@pytest.mark.parametrize("error", [KeyboardInterrupt(), write_failure(OSError(errno.ENOSPC, "full"), Path("x"))])
def test_what_is_finished_is_kept_whatever_stops_the_run(seed: Path, tmp_path: Path, error: BaseException) -> None:
    """A full disk, and a signal that comes while no variant is being made."""
    recipe = write_recipe(tmp_path)
    with interrupt_at(1, error), pytest.raises(type(error)):
        make(recipe, tmp_path / "out")
    with interrupt_at(1):  # the finished one is not made again
        make(recipe, tmp_path / "out", resume=True)
    assert contents(tmp_path / "out") == contents(seed / "out")


def test_a_full_disk_is_told_of_once(tmp_path: Path) -> None:
    """The variant keeps its tensors, and so does the release: the note is about the folder of the release."""
    recipe = write_recipe(tmp_path)
    written: list[str] = []

    class Full(Kernel):
        def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
            place = os.readlink(f"/proc/self/fd/{fd}")
            if "1-bf16" in place and place.endswith(".safetensors") and offset > 60_000:
                written.append(place)
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().pwrite(fd, data, offset)

    inline = functools.partial(open_sink, pace=Pace(seconds=0))
    tapped = functools.partial(open_staging, syscalls=Full())
    with mock.patch.object(line, "open_staging", tapped), mock.patch.object(line, "open_sink", inline):
        with pytest.raises(ConvertError) as caught:
            make(recipe, tmp_path / "out")
    assert written
    assert [item.code for item in caught.value.findings] == ["E_NO_SPACE", "W_STAGING_KEPT"]
    (staged,) = tmp_path.glob(".out.partial-*")
    assert staged.name in caught.value.findings[1].message
    make(recipe, tmp_path / "out", resume=True)
    assert verify(tmp_path / "out", strict=True).status == 0


def test_a_filesystem_without_hard_links(seed: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    with mock.patch.object(os, "link", side_effect=PermissionError(errno.EPERM, "Operation not permitted")):
        make(recipe, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(seed / "out")


@pytest.mark.parametrize("finished", [0, 1])
def test_a_changed_source_refuses_to_resume(tmp_path: Path, finished: int) -> None:
    recipe = write_recipe(tmp_path)
    with interrupt_at(finished), pytest.raises(Interrupted):
        make(recipe, tmp_path / "out", keep=True)
    weights = tmp_path / "drafter" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    if not finished:  # then nothing is kept that could be of the old source
        assert not list(tmp_path.glob(".out.partial-*"))
        make(recipe, tmp_path / "out", resume=True)
        make(recipe, tmp_path / "fresh")
        assert contents(tmp_path / "out") == contents(tmp_path / "fresh")
        return
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
