"""A report may replace a report of ours and nothing else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from convertkit.errors import ConvertError
from convertkit.verbs.audit import audit
from convertkit.verbs.gate import gate

DRAFTER = Path(__file__).parents[2] / "fixtures" / "dflash-tiny"
VERBS: dict[str, Callable[[Path, Path], object]] = {
    "gate": lambda source, report: gate(source, source, report=report),
    "audit": lambda source, report: audit(source, report=report),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DRAFTER, tmp_path / "source"))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("model.safetensors", "E_USAGE"),
        ("config.json", "E_OUT_EXISTS"),
        ("fifo.json", "E_OUT_EXISTS"),
        ("folder.json", "E_OUT_EXISTS"),
        ("list.json", "E_OUT_EXISTS"),
        ("link.json", "E_OUT_EXISTS"),
        ("nowhere/report.json", "E_WRITE"),
    ],
)
def test_what_is_no_report_is_never_written_over(source: Path, verb: str, name: str, code: str) -> None:
    os.mkfifo(source / "fifo.json")
    (source / "folder.json").mkdir()
    (source / "list.json").write_text("[]")
    (source / "link.json").symlink_to("config.json")
    before = {path.name: path.read_bytes() for path in source.iterdir() if path.is_file()}
    with pytest.raises(ConvertError) as caught:
        VERBS[verb](source, source / name)
    assert caught.value.code == code
    assert {path.name: path.read_bytes() for path in source.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_report_replaces_a_report_in_one_step(source: Path, verb: str) -> None:
    report = source.parent / "report.json"
    VERBS[verb](source, report)
    first = report.stat().st_ino
    assert json.loads(report.read_text())["schema"].startswith("convertkit.")
    VERBS[verb](source, report)
    assert report.stat().st_ino != first
    assert sorted(path.name for path in source.parent.iterdir()) == ["report.json", "source"]
