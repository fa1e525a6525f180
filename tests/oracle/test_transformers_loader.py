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
from tests.engines.sglang_cases import write_drafters
from tests.engines.sglang_target_cases import write_targets
from tests.oracle.test_sglang_loader import GOLDEN, ROOT, installed, without_messages

pytestmark = pytest.mark.oracle


def packed(folder: Path) -> bool:
    """Whether compressed-tensors packed a case."""
    config = json.loads((folder / "config.json").read_text())
    block = config.get("quantization_config") or config.get("compression_config") or {}
    return isinstance(block, dict) and block.get("quant_method") == "compressed-tensors"


@pytest.mark.parametrize("name", ["drafters", "targets"])
def test_golden_files_are_what_from_pretrained_does(name: str, tmp_path: Path) -> None:
    if installed("transformers") not in VERSIONS or not installed("torch"):
        pytest.skip(f"the tables describe transformers {', '.join(VERSIONS)}")
    if name == "drafters":
        write_drafters(tmp_path / "all")
        folder, file = tmp_path / "all" / "cases", f"transformers-{VERSION}.json"
    else:
        write_targets(tmp_path / "all")
        folder, file = tmp_path / "all", f"transformers-{VERSION}-targets.json"
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "tests.oracle.transformers_loader", str(folder), str(out)]
    subprocess.run(command, check=True, timeout=1800, cwd=ROOT)
    golden, found = (json.loads(path.read_text())["cases"] for path in (GOLDEN / file, out))
    if installed("transformers") != VERSION:
        golden, found = ({case: run for case, run in cases.items() if not packed(folder / case)}
                         for cases in (golden, found))  # fmt: skip
    assert {case: without_messages(run) for case, run in found.items()} == {
        case: without_messages(run) for case, run in golden.items()
    }
