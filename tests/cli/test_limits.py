"""Limits of the process: open files are raised as far as allowed, and what cannot be had is said plainly."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from convertkit.cli.limits import raise_open_files
from convertkit.cli.main import main
from convertkit.cli.runner import NO_THREAD, findings_of
from convertkit.containers.files import MANY_FILES, open_regular
from convertkit.conversion.failures import write_failure
from convertkit.errors import ConvertError

DRAFTER = Path(__file__).parents[2] / "fixtures" / "dflash-tiny"


def test_open_files_are_raised_to_what_is_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
    try:
        raise_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_too_many_open_files_come_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert write_failure(OSError(errno.EMFILE, "Too many open files"), tmp_path).findings[0].fix == MANY_FILES
    (tmp_path / "a").write_text("")

    def fail(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(ConvertError) as caught:
        open_regular(tmp_path, "a")
    assert caught.value.findings[0].fix == MANY_FILES


def test_a_thread_that_cannot_start_is_a_lack_of_memory_and_no_bug() -> None:
    findings, status = findings_of(RuntimeError(NO_THREAD))
    assert ([item.code for item in findings], status) == (["E_MEMORY"], 4)
    assert findings_of(RuntimeError("another"))[1] == 70


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
def test_limits_that_are_no_numbers_are_a_matter_of_usage(
    tmp_path: Path, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gate", str(DRAFTER), "--reference", str(DRAFTER), "--min-sqnr", value]) == 2
    assert main(["pack-nvfp4", str(DRAFTER), str(tmp_path / "out"), f"--max-rel-rms={value}"]) == 2
    assert capsys.readouterr().err.count("E_USAGE") == 2
    assert not (tmp_path / "out").exists()
