"""Resuming: the same bytes as an undisturbed run, and no journal vouches for what it did not see."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import convertkit.conversion.sink as sink_module
import convertkit.verbs.line as line
from convertkit.conversion.journal import Entry
from convertkit.conversion.stop import Interrupted
from convertkit.errors import ConvertError
from convertkit.verbs.case import Options, Result
from convertkit.verbs.pack import pack_nvfp4

ROOT = Path(__file__).parents[2]
DRAFTER = ROOT / "fixtures" / "dflash2-tiny"


def interrupted(monkeypatch: pytest.MonkeyPatch, out: Path) -> Path:
    """Stop a run after all tensors are written; its staging folder."""
    execute: Callable[..., dict[str, str]] = vars(line)["execute"]

    def stop(*words: Any) -> dict[str, str]:
        execute(*words)
        raise Interrupted(15)

    with monkeypatch.context() as patch:
        patch.setattr(line, "execute", stop)
        with pytest.raises(Interrupted):
            pack_nvfp4(DRAFTER, out, options=Options(workers=1))
    return next(path for path in out.parent.iterdir() if ".partial-" in path.name)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_a_resumed_run_gives_the_bytes_of_an_undisturbed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack_nvfp4(DRAFTER, tmp_path / "whole")
    interrupted(monkeypatch, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    pack_nvfp4(DRAFTER, tmp_path / "out", options=Options(resume=True))
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


def test_a_journal_cannot_vouch_for_other_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged bytes and their journal line are both forged: the copy is compared with its source all the same."""
    interrupted(monkeypatch, tmp_path / "out")
    keep: Callable[..., list[Entry]] = vars(sink_module)["entries_to_keep"]

    def forged(staging: Any, names: Any, places: Mapping[str, tuple[str, int, int]], *rest: Any) -> list[Entry]:
        file, start, size = places["norm.weight"]
        path = staging.files / file
        data = bytearray(path.read_bytes())
        kept = keep(staging, names, places, *rest)
        data[start] ^= 1
        path.write_bytes(data)
        wrong = hashlib.sha256(data[start : start + size]).hexdigest()
        return [replace(item, sha256=wrong) if item.name == "norm.weight" else item for item in kept]

    monkeypatch.setattr(sink_module, "entries_to_keep", forged)
    with pytest.raises(ConvertError) as caught:
        pack_nvfp4(DRAFTER, tmp_path / "out", options=Options(resume=True))
    assert caught.value.code == "E_RESUME"
    assert not (tmp_path / "out").exists()


def test_with_nothing_to_resume_the_run_begins_at_the_start(tmp_path: Path) -> None:
    pack_nvfp4(DRAFTER, tmp_path / "whole")
    made = pack_nvfp4(DRAFTER, tmp_path / "out", options=Options(resume=True))
    assert isinstance(made, Result)
    assert [(item.code, item.severity) for item in made.findings] == [("N_NOTHING_TO_RESUME", "note")]
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


def test_a_finished_output_is_left_alone(tmp_path: Path) -> None:
    pack_nvfp4(DRAFTER, tmp_path / "out", options=Options(resume=True))
    before = digests(tmp_path / "out")
    with pytest.raises(ConvertError) as caught:
        pack_nvfp4(DRAFTER, tmp_path / "out", options=Options(resume=True))
    assert (caught.value.code, caught.value.status) == ("E_OUT_EXISTS", 5)
    assert digests(tmp_path / "out") == before


@pytest.mark.slow
def test_the_loop_of_the_docs_ends_whatever_happens_to_its_runs(tmp_path: Path) -> None:
    """``until [ -e out ] || convertkit … --resume``: nothing there, killed, another try, and once more when done."""
    counted = tmp_path / "convertkit"
    counted.write_text(
        f"""#!/bin/sh
echo run >> {tmp_path}/runs
if [ $(wc -l < {tmp_path}/runs) -eq 1 ]; then
    export CONVERTKIT_TEST_STOP=1
fi
exec {sys.executable} -c '
import os, sys
import convertkit.verbs.line as line
from convertkit.cli.main import main
execute = line.execute
def stopped(*words):
    made = execute(*words)
    if "CONVERTKIT_TEST_STOP" in os.environ:
        os.kill(os.getpid(), 9)
    return made
line.execute = stopped
sys.exit(main(sys.argv[1:]))' "$@"
"""
    )
    counted.chmod(0o755)
    loop = f"until [ -e out ] || {counted} pack-nvfp4 {DRAFTER} out --resume --quiet; do :; done"
    for _ in range(2):
        subprocess.run(["bash", "-c", loop], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    assert (tmp_path / "runs").read_text() == "run\nrun\n"
    pack_nvfp4(DRAFTER, tmp_path / "whole")
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_a_changed_source_is_not_resumed_with_old_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(DRAFTER, tmp_path / "source")
    monkeypatch.setitem(globals(), "DRAFTER", tmp_path / "source")
    interrupted(monkeypatch, tmp_path / "out")
    path = tmp_path / "source" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    pack_nvfp4(tmp_path / "source", tmp_path / "fresh")
    try:
        pack_nvfp4(tmp_path / "source", tmp_path / "out", options=Options(resume=True))
    except ConvertError as error:
        assert error.code == "E_RESUME"
        assert not (tmp_path / "out").exists()
    else:
        assert digests(tmp_path / "out") == digests(tmp_path / "fresh")
