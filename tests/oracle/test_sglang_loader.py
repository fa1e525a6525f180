"""SGLang's own loader over every case again, against the golden files that the ordinary suite compares with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from tests.engines.folder_cases import write_folders
from tests.engines.kind_cases import FLAT, PACKS, told, write_kinds
from tests.engines.sglang_cases import write_drafters
from tests.engines.sglang_more_cases import outcome, write_more
from tests.engines.sglang_target_cases import write_targets
from tests.engines.target_kind_cases import write_target_kinds
from tests.engines.target_value_cases import write_target_values

pytestmark = pytest.mark.oracle

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "engines" / "golden"


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def without_messages(case: dict[str, Any]) -> dict[str, Any]:
    """A case without the text of its error: messages name paths, addresses and lines."""
    ranks = [without_messages(run) for run in case.get("of two ranks", [])]
    kept = {key: value for key, value in case.items() if key not in ("error", "of two ranks")}
    return {**kept, "refused": bool(case.get("error")), "of two ranks": ranks}


def write_sets(out: Path) -> Mapping[str, tuple[Path, ...]]:
    """Every set of cases below ``out``: by the end of its golden file's name, its folder and that of the target."""
    write_drafters(out / "drafters")
    write_targets(out / "targets")
    write_folders(out)
    target = out / "drafters" / "target"
    return {
        "": (out / "drafters" / "cases", target),
        "-targets": (out / "targets",),
        "-folders": (out / "folders", target),
        "-model-folders": (out / "model-folders",),
    }


def runs_of(words: tuple[Path, ...], tmp_path: Path) -> dict[str, Any]:
    """What SGLang's own loader does with the folders, by case."""
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "tests.oracle.sglang_loader", *map(str, words), str(out)]
    subprocess.run(command, check=True, timeout=1800, cwd=ROOT)
    found: dict[str, Any] = json.loads(out.read_text())["cases"]
    return found


SETS = ("", "-targets", "-folders", "-model-folders")


@pytest.mark.parametrize("name", SETS)
def test_golden_files_are_what_the_loader_does(name: str, tmp_path: Path) -> None:
    if installed("sglang") != "0.5.23":
        pytest.skip("the tables describe SGLang 0.5.23")
    words, file = write_sets(tmp_path)[name], f"sglang-0.5.23{name}.json"
    golden, found = json.loads((GOLDEN / file).read_text())["cases"], runs_of(words, tmp_path)
    assert {case: without_messages(run) for case, run in found.items()} == {
        case: without_messages(run) for case, run in golden.items()
    }


@pytest.mark.parametrize("name", ["config", "more"])
def test_values_that_no_model_has_are_what_the_loader_does(name: str, tmp_path: Path) -> None:
    if installed("sglang") != "0.5.23":
        pytest.skip("the tables describe SGLang 0.5.23")
    write_drafters(tmp_path / "drafters")
    write_more(tmp_path, every=9)
    golden = json.loads((GOLDEN / f"sglang-0.5.23-{name}.json").read_text())
    found = runs_of((tmp_path / name, tmp_path / "drafters" / "target"), tmp_path)
    assert {case: outcome(run) for case, run in found.items()} == {
        case: golden["outcomes"][golden["cases"][case]] for case in found
    }
    assert len(found) > 100


def test_values_of_the_wrong_kind_are_what_the_loader_does(tmp_path: Path) -> None:
    if installed("sglang") != "0.5.23":
        pytest.skip("the tables describe SGLang 0.5.23")
    write_drafters(tmp_path / "drafters")
    picked = write_kinds(tmp_path, 15, (*FLAT, *PACKS))
    golden = json.loads((GOLDEN / "sglang-0.5.23-kinds.json").read_text())["cases"]
    runs = runs_of((tmp_path / "kinds", tmp_path / "drafters" / "target"), tmp_path)
    found = {case.name: told(runs[name], runs[case.kind]) for name, case in picked.items()}
    assert found == {case.name: golden[case.kind][case.path][json.dumps(case.value)] for case in picked.values()}
    assert len(found) > 80


def test_values_of_the_wrong_kind_in_targets_are_what_the_loader_does(tmp_path: Path) -> None:
    if installed("sglang") != "0.5.23":
        pytest.skip("the tables describe SGLang 0.5.23")
    picked = write_target_kinds(tmp_path, 10)
    golden = json.loads((GOLDEN / "sglang-0.5.23-target-kinds.json").read_text())["cases"]
    runs = runs_of((tmp_path / "target-kinds",), tmp_path)
    found = {case.name: told(runs[name], runs[case.kind]) for name, case in picked.items()}
    assert found == {case.name: golden[case.kind][case.path][json.dumps(case.value)] for case in picked.values()}
    assert len(found) > 90


def test_values_of_targets_are_what_the_loader_does(tmp_path: Path) -> None:
    if installed("sglang") != "0.5.23":
        pytest.skip("the tables describe SGLang 0.5.23")
    picked = write_target_values(tmp_path, 4)
    golden = json.loads((GOLDEN / "sglang-0.5.23-target-values.json").read_text())["cases"]
    runs = runs_of((tmp_path / "target-values",), tmp_path)
    found = {case.name: told(runs[name], runs[case.kind]) for name, case in picked.items()}
    assert found == {name: golden[name] for name in found}
    assert len(found) > 30
