"""Reports do not depend on the processor: the kernels give the same bits without any vector extension."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import numpy as np
from convertkit.checks.compare import Dense, Planes, compare_tile
from convertkit.checks.expand import check_expand_tile
from convertkit.checks.pack import check_pack_tile
rng = np.random.default_rng(11)
source = (rng.standard_normal((7, 1040)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
codes = rng.integers(0, 256, (7, 520)).astype(np.uint8)
scales = rng.integers(0, 127, (7, 65)).astype(np.uint8)
for dtype, bits in (("BF16", source), ("F16", source & np.uint16(0xBBFF)), ("F32", source.astype(np.uint32) << 16)):
    for arithmetic, g, sense in (("amax", 0x3A83126F, "multiplier"), ("amax-llmcompressor", 0x44000000, "divisor")):
        print(check_pack_tile(bits, dtype, codes, scales, g, sense, arithmetic))
        print(check_expand_tile(codes, scales, g, sense, bits, dtype))
        print(compare_tile(Planes(codes, scales, g, sense), Dense(bits, dtype)))
    print(compare_tile(Dense(bits, dtype), Dense(bits[::-1].copy(), dtype)))
"""


def run(cache: Path | None, **extra: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **extra}
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.slow
def test_a_plain_processor_gives_the_same_tallies(tmp_path: Path) -> None:
    here = run(None)
    assert here.count("Tally") > 20
    assert run(tmp_path, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="") == here


@pytest.mark.slow
def test_a_second_process_compiles_and_prints_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, NUMBA_DEBUG_CACHE="1").count("data saved") > 10
    assert "data saved" not in run(tmp_path, NUMBA_DEBUG_CACHE="1")
