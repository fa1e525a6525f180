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
from tests.oracle.test_sglang_loader import GOLDEN, ROOT, SETS, installed, without_messages, write_sets
from tests.oracle.watching import stated_config

pytestmark = pytest.mark.oracle


def packed(folder: Path) -> bool:
    """Whether compressed-tensors packed a case."""
    config = stated_config(folder)
    block = config.get("quantization_config") or config.get("compression_config") or {}
    return isinstance(block, dict) and block.get("quant_method") == "compressed-tensors"


@pytest.mark.parametrize("name", SETS)
def test_golden_files_are_what_from_pretrained_does(name: str, tmp_path: Path) -> None:
    if installed("transformers") not in VERSIONS or not installed("torch"):
        pytest.skip(f"the tables describe transformers {', '.join(VERSIONS)}")
    folder, file = write_sets(tmp_path)[name][0], f"transformers-{VERSION}{name}.json"
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
