"""The compiled loops are cached: a second process compiles nothing and prints nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import numpy as np
from convertkit.grids.nvfp4 import decode, encode, tables
values = np.full((2, 32), 0x3F80, np.uint16)
codes, scales = np.zeros((2, 16), np.uint8), np.zeros((2, 2), np.uint8)
encode.encode_tile(values, tables.build_encode_tables("amax", "BF16", encode.amax_of_tile(values)), codes, scales)
"""


def run(cache: Path, **extra: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(cache), **extra}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout + done.stderr


def test_a_second_process_compiles_and_prints_nothing(tmp_path: Path) -> None:
    first = run(tmp_path, NUMBA_DEBUG_CACHE="1")
    assert first.count("data saved") == 7
    second = run(tmp_path, NUMBA_DEBUG_CACHE="1")
    assert "saved" not in second
    assert second.count("data loaded") == 7
    assert run(tmp_path) == ""
