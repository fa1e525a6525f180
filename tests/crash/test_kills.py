"""SIGKILL: 200 times in the small pipeline, 200 in ``pack-nvfp4`` and 20 in the command that users run.

Half of the points are before, in or after a chosen system call, half are random moments. The rules are asserted in
``killer``, in processes that have nothing else loaded and fork a child for each kill.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def kill(module: str, *arguments: object) -> dict[str, int]:
    command = [sys.executable, "-m", f"tests.crash.{module}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    assert counts["killed"] >= 200
    assert counts["killed while resuming"] >= 10
    assert min(counts["target absent"], counts["target old"]) >= 40
    assert counts["target whole"] >= 4  # kills behind the rename
    assert counts["resumed"] >= 50
    return counts


def test_two_hundred_kills(tmp_path: Path) -> None:
    kill("killer", tmp_path, 200, 20)


@pytest.mark.slow
def test_two_hundred_kills_of_pack_and_twenty_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "field").mkdir()
    counts = kill("pack_killer", tmp_path / "field", 200, 20, 20)
    assert counts["commands killed"] == 20
