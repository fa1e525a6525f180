"""Searches give the same bytes on any processor: without vector extensions, and cut into other tiles."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import hashlib
import numpy as np
from convertkit.checks import reference
from convertkit.grids.nvfp4 import choice, encode, on_grid, recover
from tests.grids.grid_tensors import decoded, planes
digest = hashlib.sha256()
rng = np.random.default_rng(3)
values = rng.standard_normal((40, 96)) * np.exp2(rng.integers(-30, 2, (40, 1)))
for dtype in ("BF16", "F16", "F32"):
    bits = reference.narrowed(values.astype(np.float32), dtype)
    codes, scales = np.zeros((40, 48), np.uint8), np.zeros((40, 6), np.uint8)
    for name in choice.CHOICES:
        choice.choose_tile(bits, choice.build_choice_tables(name, dtype, encode.amax_of_tile(bits)), codes, scales)
        digest.update(codes.tobytes() + scales.tobytes())
for kind in ("mse", "random", "MXFP4", "subnormal weights"):
    bits = decoded(planes(kind, (16, 64), 1))
    found = recover.find_grid(lambda: (bits,)).found[0]
    codes, scales = np.zeros((16, 32), np.uint8), np.zeros((16, 4), np.uint8)
    built = on_grid.build_grid_tables(found.global_bits, "multiplier")
    on_grid.solve_tile(bits, built, on_grid.otherwise_tables(found.global_bits, "multiplier"), codes, scales)
    digest.update(codes.tobytes() + scales.tobytes() + found.global_bits.to_bytes(4, "little"))
print(digest.hexdigest())
"""


def run(**extra: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **extra}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.slow
def test_a_plain_processor_makes_the_same_planes(tmp_path: Path) -> None:
    plain = run(NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="", NUMBA_CACHE_DIR=str(tmp_path))
    assert len(plain) == 65
    assert plain == run()
