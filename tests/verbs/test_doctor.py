"""``doctor`` tells what is there, imports nothing heavy, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from convertkit.cli.main import main
from convertkit.verbs import doctor as module
from convertkit.verbs.doctor import doctor


def test_what_is_needed_is_found_and_nothing_stays(tmp_path: Path) -> None:
    checks = {item.name: item for item in doctor(tmp_path)}
    assert checks["numpy"].state == "ok"
    assert checks["hard links"].state in ("ok", "note")
    assert not [item for item in checks.values() if item.state == "missing"]
    assert list(tmp_path.iterdir()) == []


def test_something_missing_fails(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "NEEDED", ("no-such-package",))
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capfd.readouterr().out)["ready"] is False


def test_a_folder_that_cannot_be_written_is_a_note(tmp_path: Path) -> None:
    assert [item.name for item in doctor(tmp_path / "none") if item.group == "filesystem"] == ["writing"]


def test_nothing_heavy_is_imported() -> None:
    code = "import sys; from convertkit.cli.main import main; main(['doctor', '-q']); "
    code += "print(sorted({'torch', 'numba', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
