"""Options of fix-keys that would do nothing are refused; dry runs write nothing at all; names of files may be long."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from convertkit.containers.folder import EDIT_FOLDER
from convertkit.conversion.syscalls import Kernel
from convertkit.errors import ConvertError
from convertkit.verbs.case import Options
from convertkit.verbs.fix_keys import Keys, fix_keys
from tests.crash.pipeline import contents
from tests.dialects.tiny import LM_CONFIG, causal_lm, write
from tests.verbs.test_fix_keys import LONG, edited

RULE = "model.layers.{rest}=model.slayer.{rest}"


def model(folder: Path) -> Path:
    return write(folder, causal_lm(), LM_CONFIG)


def refused(*places: Path, **words: Any) -> ConvertError:
    with pytest.raises(ConvertError) as caught:
        fix_keys(*places, rename=[RULE], **words)
    return caught.value


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("--force", Options(force=True)),
        ("--resume", Options(resume=True)),
        ("--no-keep", Options(keep=False)),
        ("--report-dir", Options(report_dir=Path("reports"))),
        ("--publish-anyway", Options(publish_anyway=True)),
        ("--engine", Options(engines=("vllm",))),
    ],
)
def test_options_of_new_outputs_are_refused_in_place(tmp_path: Path, name: str, options: Options) -> None:
    source = model(tmp_path / "source")
    before = contents(source)
    error = refused(source, in_place=True, options=options)
    assert (error.code, error.status) == ("E_USAGE", 2)
    assert name in error.findings[0].message
    assert contents(source) == before


@pytest.mark.parametrize("options", [Options(engines=("vllm",)), Options(publish_anyway=True)])
def test_checks_are_refused_where_none_is_made(tmp_path: Path, options: Options) -> None:
    source = model(tmp_path / "source")
    assert refused(source, tmp_path / "out", quick=True, options=options).code == "E_USAGE"
    assert refused(source, tmp_path / "out", report=tmp_path / "report.json").code == "E_USAGE"
    assert not (tmp_path / "out").exists()


def test_a_quick_run_keeps_nothing_and_begins_at_the_start(tmp_path: Path) -> None:
    source = model(tmp_path / "source")
    fix_keys(source, tmp_path / "one", rename=[RULE], quick=True)
    fix_keys(source, tmp_path / "two", rename=[RULE], quick=True, options=Options(resume=True))
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def test_a_dry_run_leaves_an_interrupted_change_as_it_is(tmp_path: Path) -> None:
    class Deadly(Kernel):
        def fsync(self, fd: int) -> None:
            if (source / EDIT_FOLDER).exists():
                os.kill(os.getpid(), signal.SIGKILL)

    source = model(tmp_path / "source")
    child = os.fork()
    if not child:
        try:
            fix_keys(source, in_place=True, rename=[RULE], syscalls=Deadly())
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    before = contents(source)
    assert refused(source, in_place=True, only_plan=True).code == "E_EDIT_UNFINISHED"
    assert contents(source) == before
    assert (source / EDIT_FOLDER).is_dir()
    made = fix_keys(source, in_place=True, rename=[RULE])
    assert isinstance(made, Keys)
    assert "W_EDIT_RECOVERED" in [item.code for item in made.findings]


def test_slack_in_place_makes_a_longer_name_fit_the_next_time(tmp_path: Path) -> None:
    source = model(tmp_path / "source")
    edited(source, rename=[RULE], header_slack_bytes=20_000)
    size = (source / "model.safetensors").stat().st_size
    made = edited(source, rename=[LONG.replace("model.layers", "model.slayer", 1)])
    assert [row["method"] for row in made.document["files"]] == ["in place"]
    assert (source / "model.safetensors").stat().st_size == size


@pytest.mark.parametrize("can_shift", [True, False])
def test_the_longest_names_of_files_can_be_changed_and_taken_back(tmp_path: Path, can_shift: bool) -> None:
    class Failing(Kernel):
        def shift(self, fd: int, size_bytes: int) -> None:
            raise OSError(errno.EOPNOTSUPP, "no")

    source = model(tmp_path / "source")
    (source / "model.safetensors").rename(source / f"{'m' * 243}.safetensors")
    before = contents(source)
    made = edited(source, rename=[LONG], syscalls=Kernel() if can_shift else Failing())
    assert made.action == "edited"
    back = fix_keys(source, in_place=True, rename=[LONG], reverse=True, prove=True)
    assert isinstance(back, Keys)
    assert contents(source).keys() == before.keys()


def test_a_change_that_cannot_be_taken_back_says_how_to_go_on(tmp_path: Path) -> None:
    class Broken(Kernel):
        def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
            if (source / EDIT_FOLDER).exists():
                raise OSError(errno.EIO, "Input/output error")
            return super().pwrite(fd, data, offset)

    source = model(tmp_path / "source")
    before = contents(source)
    error = refused(source, in_place=True, syscalls=Broken())
    assert error.code == "E_EDIT_UNFINISHED"
    assert "--undo" in error.findings[0].fix
    fix_keys(source, in_place=True, recovery="undo")
    assert contents(source) == before
