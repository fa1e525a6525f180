"""The jobs of docs/pipelines.md and the composite action are well formed, and the action's steps do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

from convertkit.cli.main import COMMANDS
from tests.release.recipes import write_recipe

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")


def test_every_job_parses_and_names_commands_that_exist() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    for block in blocks:
        assert isinstance(yaml.safe_load(block), dict)
    verbs = re.findall(r"convertkit ([a-z][a-z-]+) [a-z]", PAGE)
    assert {"release", "verify", "sign"} <= set(verbs)
    assert set(verbs) - {"verify"} <= set(COMMANDS)


def test_the_action_verifies(tmp_path: Path) -> None:
    from convertkit.verbs.release import release

    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    (verify,) = [step for step in action["runs"]["steps"] if step["name"] == "verify"]
    release(write_recipe(tmp_path), tmp_path / "out")
    (tmp_path / "convertkit" / "bin").mkdir(parents=True)
    command = tmp_path / "convertkit" / "bin" / "convertkit"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec "{sys.executable}" -m convertkit "$@"\n')
    command.chmod(0o755)
    words = {**os.environ, "FOLDER": str(tmp_path / "out"), "ARGUMENTS": "--card --strict", "PLACE": str(tmp_path)}

    def run(**more: str) -> int:
        return subprocess.run(["bash", "-e", "-c", verify["run"]], env=words | more, check=False).returncode

    assert run() == 0
    assert run(ARGUMENTS="") == 0
    (tmp_path / "out" / "extra").write_text("x")
    assert run() == 1
