"""``from_pretrained`` over every case again, against the golden files that the ordinary suite compares with.

They are those of transformers 5.19.0. Under 5.20.2 all but what compressed-tensors packed must be the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from convertkit.engines.transformers_load import VERSION, VERSIONS
from tests.engines.kind_cases import told
from tests.engines.target_kind_cases import write_target_kinds
from tests.engines.target_value_cases import write_target_values
from tests.engines.transformers_cases import outcome, write_values
from tests.oracle.test_sglang_loader import GOLDEN, ROOT, SETS, installed, without_messages, write_sets
from tests.oracle.watching import stated_config

pytestmark = pytest.mark.oracle


def packed(folder: Path) -> bool:
    """Whether compressed-tensors packed a case."""
    config = stated_config(folder)
    block = config.get("quantization_config") or config.get("compression_config") or {}
    return isinstance(block, dict) and block.get("quant_method") == "compressed-tensors"


def run_loader(folder: Path, out: Path) -> None:
    command = [sys.executable, "-m", "tests.oracle.transformers_loader", str(folder), str(out)]
    subprocess.run(command, check=True, timeout=1800, cwd=ROOT)


@pytest.mark.parametrize("name", SETS)
def test_golden_files_are_what_from_pretrained_does(name: str, tmp_path: Path) -> None:
    if installed("transformers") not in VERSIONS or not installed("torch"):
        pytest.skip(f"the tables describe transformers {', '.join(VERSIONS)}")
    folder, file = write_sets(tmp_path)[name][0], f"transformers-{VERSION}{name}.json"
    out = tmp_path / "out.json"
    run_loader(folder, out)
    golden, found = (json.loads(path.read_text())["cases"] for path in (GOLDEN / file, out))
    if installed("transformers") != VERSION:
        golden, found = ({case: run for case, run in cases.items() if not packed(folder / case)}
                         for cases in (golden, found))  # fmt: skip
    assert {case: without_messages(run) for case, run in found.items()} == {
        case: without_messages(run) for case, run in golden.items()
    }


def test_values_that_no_model_has_are_what_from_pretrained_does(tmp_path: Path) -> None:
    if installed("transformers") not in VERSIONS or not installed("torch"):
        pytest.skip(f"the tables describe transformers {', '.join(VERSIONS)}")
    write_values(tmp_path / "values", every=25)
    run_loader(tmp_path / "values", tmp_path / "out.json")
    golden = json.loads((GOLDEN / f"transformers-{VERSION}-values.json").read_text())
    found = json.loads((tmp_path / "out.json").read_text())["cases"]
    if installed("transformers") != VERSION:
        found = {name: run for name, run in found.items() if not packed(tmp_path / "values" / name)}
    assert {name: outcome(run) for name, run in found.items()} == {
        name: golden["outcomes"][golden["cases"][name]] for name in found
    }
    assert len(found) > 80


def test_values_of_the_wrong_kind_in_targets_are_what_from_pretrained_does(tmp_path: Path) -> None:
    if installed("transformers") not in VERSIONS or not installed("torch"):
        pytest.skip(f"the tables describe transformers {', '.join(VERSIONS)}")
    picked = write_target_kinds(tmp_path, 10)
    run_loader(tmp_path / "target-kinds", tmp_path / "out.json")
    golden = json.loads((GOLDEN / f"transformers-{VERSION}-target-kinds.json").read_text())["cases"]
    runs = json.loads((tmp_path / "out.json").read_text())["cases"]
    found = {case.name: told(runs[name], runs[case.kind]) for name, case in picked.items()}
    assert found == {case.name: golden[case.kind][case.path][json.dumps(case.value)] for case in picked.values()}
    assert len(found) > 90


def test_values_of_targets_are_what_from_pretrained_does(tmp_path: Path) -> None:
    if installed("transformers") not in VERSIONS or not installed("torch"):
        pytest.skip(f"the tables describe transformers {', '.join(VERSIONS)}")
    picked = write_target_values(tmp_path, 4)
    run_loader(tmp_path / "target-values", tmp_path / "out.json")
    golden = json.loads((GOLDEN / f"transformers-{VERSION}-target-values.json").read_text())["cases"]
    runs = json.loads((tmp_path / "out.json").read_text())["cases"]
    found = {case.name: told(runs[name], runs[case.kind]) for name, case in picked.items()}
    assert found == {name: golden[name] for name in found}
    assert len(found) > 30
