"""vLLM's own loader over every case again, against the golden files that the ordinary suite compares with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.engines import damaged
from tests.engines.kind_cases import told, write_kinds
from tests.engines.target_kind_cases import write_target_kinds
from tests.engines.write_cases import write_all

pytestmark = pytest.mark.oracle

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "engines" / "golden"
SETS: Mapping[str, tuple[str, ...]] = {
    "": ("cases", "target"),
    "-config": ("config-cases", "target"),
    "-more": ("more-cases", "target"),
    "-targets": ("targets",),
    "-ranks": ("ranks", "target"),
    "-target-ranks": ("target-ranks",),
    "-folders": ("folders", "target"),
    "-model-folders": ("model-folders",),
}
"""End of the golden file's name: the folders to give to the loader."""


@pytest.mark.parametrize("name", SETS)
def test_golden_files_are_what_the_loader_does(name: str, tmp_path: Path) -> None:
    vllm = pytest.importorskip("vllm")
    if not vllm.__version__.startswith("0.33.0"):
        pytest.skip("the tables describe vLLM 0.33.0")
    write_all(tmp_path / "all")
    out = tmp_path / "out.json"
    script = ROOT / "tests" / "oracle" / "vllm_loader.py"
    folders = [str(tmp_path / "all" / word) for word in SETS[name]]
    subprocess.run([sys.executable, str(script), *folders, str(out)], check=True, timeout=1800)
    golden, found = (json.loads(path.read_text())["cases"] for path in (GOLDEN / f"vllm-0.33.0{name}.json", out))
    for case, run in found.items():
        errors = run.pop("error", ""), golden[case].pop("error", "")  # messages name paths and addresses
        assert bool(errors[0]) == bool(errors[1])
    assert found == golden


def brief(run: dict[str, Any]) -> Any:
    """A run as the golden file of damaged checkpoints holds it."""
    if not run["loads"]:
        return f"refused: {run['stage']}"
    return {key: run[key] for key in ("unfilled", "partly filled", "unused", "lent") if run[key]}


@pytest.mark.parametrize("words", [("damaged", "target"), ("damaged-targets",)])
def test_damaged_checkpoints_are_what_the_loader_does(words: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    golden = json.loads(damaged.GOLDEN.read_text())["cases"]
    damaged.write_sample(tmp_path / "all", golden)
    out = tmp_path / "out.json"
    script = ROOT / "tests" / "oracle" / "vllm_loader.py"
    folders = [str(tmp_path / "all" / word) for word in words]
    subprocess.run([sys.executable, str(script), *folders, str(out)], check=True, timeout=3600)
    found = {name: brief(run) for name, run in json.loads(out.read_text())["cases"].items()}
    assert found == {name: golden[name] for name in found}
    assert len(found) > 100


def test_values_of_the_wrong_kind_are_what_the_loader_does(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    golden = json.loads((GOLDEN / "vllm-0.33.0-kinds.json").read_text())["cases"]
    picked = write_kinds(tmp_path / "all", 15)
    write_all(tmp_path / "other")
    out = tmp_path / "out.json"
    words = [str(tmp_path / "all" / "kinds"), str(tmp_path / "other" / "target"), str(out)]
    subprocess.run(
        [sys.executable, str(ROOT / "tests" / "oracle" / "vllm_loader.py"), *words], check=True, timeout=1800
    )
    runs = json.loads(out.read_text())["cases"]
    found = {case.name: told(runs[name], runs[case.kind]) for name, case in picked.items()}
    assert found == {case.name: golden[case.kind][case.path][json.dumps(case.value)] for case in picked.values()}
    assert len(found) > 150


def test_values_of_the_wrong_kind_in_targets_are_what_the_loader_does(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    golden = json.loads((GOLDEN / "vllm-0.33.0-target-kinds.json").read_text())["cases"]
    picked, out = write_target_kinds(tmp_path / "all", 10), tmp_path / "out.json"
    script = ROOT / "tests" / "oracle" / "vllm_loader.py"
    words = [str(tmp_path / "all" / "target-kinds"), str(out)]
    subprocess.run([sys.executable, str(script), *words], check=True, timeout=1800)
    runs = json.loads(out.read_text())["cases"]
    found = {case.name: told(runs[name], runs[case.kind]) for name, case in picked.items()}
    assert found == {case.name: golden[case.kind][case.path][json.dumps(case.value)] for case in picked.values()}
    assert len(found) > 90
