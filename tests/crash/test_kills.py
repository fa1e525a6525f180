"""SIGKILL at 200 points: half before, in or after a chosen system call, half at random moments.

The rules are asserted in ``killer``, in one process that has nothing else loaded and forks a child for each kill.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_two_hundred_kills(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.crash.killer", str(tmp_path), "200", "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["killed"] >= 200
    assert counts["killed while resuming"] >= 20
    assert min(counts["target absent"], counts["target old"]) >= 40
    assert counts["target whole"] >= 4  # kills behind the rename
    assert counts["resumed"] >= 100
