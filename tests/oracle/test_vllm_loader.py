"""vLLM's own loader over every case again, against the golden files that the ordinary suite compares with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.write_cases import write_all

pytestmark = pytest.mark.oracle

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "engines" / "golden"


@pytest.mark.parametrize("name", ["drafters", "targets"])
def test_golden_files_are_what_the_loader_does(name: str, tmp_path: Path) -> None:
    vllm = pytest.importorskip("vllm")
    if not vllm.__version__.startswith("0.33.0"):
        pytest.skip("the tables describe vLLM 0.33.0")
    write_all(tmp_path / "all")
    words = ["cases", "target"] if name == "drafters" else ["targets"]
    out = tmp_path / "out.json"
    script = ROOT / "tests" / "oracle" / "vllm_loader.py"
    folders = [str(tmp_path / "all" / word) for word in words]
    subprocess.run([sys.executable, str(script), *folders, str(out)], check=True, timeout=1800)
    file = "vllm-0.33.0.json" if name == "drafters" else "vllm-0.33.0-targets.json"
    golden, found = (json.loads(path.read_text())["cases"] for path in (GOLDEN / file, out))
    for case, run in found.items():
        errors = run.pop("error", ""), golden[case].pop("error", "")  # messages name paths and addresses
        assert bool(errors[0]) == bool(errors[1])
    assert found == golden
