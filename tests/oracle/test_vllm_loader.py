"""vLLM's own loader over every case again, against the golden files that the ordinary suite compares with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.engines.write_cases import write_all

pytestmark = pytest.mark.oracle

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "engines" / "golden"
SETS: Mapping[str, tuple[str, ...]] = {
    "": ("cases", "target"),
    "-targets": ("targets",),
    "-ranks": ("ranks", "target"),
    "-target-ranks": ("target-ranks",),
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
