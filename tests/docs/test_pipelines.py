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


def test_nothing_is_installed_that_only_has_our_name() -> None:
    installs = re.findall(r"pip install (.*)$", PAGE, re.MULTILINE)
    assert len(installs) == 3
    assert all(" @ git+https://" in line for line in installs)
    assert "convertkit/convertkit@" not in PAGE


def test_the_shell_job_does_what_it_says(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    lines = [line.removeprefix(".venv/bin/") for line in block.splitlines() if line.startswith(".venv/bin/convertkit")]
    assert [line.split()[1] for line in lines] == ["release", "verify", "sign"]
    write_recipe(tmp_path).rename(tmp_path / "drafter.toml")
    subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "key.pem"],
                   cwd=tmp_path, check=True)  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SIGNING_KEY_FILE": "key.pem"}
    for line in lines:
        command = line.replace("convertkit", f"{sys.executable} -m convertkit", 1)
        done = subprocess.run(["sh", "-euc", command], cwd=tmp_path, env=environment, check=False, capture_output=True)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.sig").is_file()


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
