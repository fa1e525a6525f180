"""The benchmark of renaming runs, at a fortieth of its size, and its numbers are what they are called."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from convertkit.containers.folder import open_checkpoint

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "fix_keys.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_fix_keys", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_fix_keys"] = module
    spec.loader.exec_module(module)
    return module


def test_the_model_has_the_tensors_that_it_is_named_after(bench: ModuleType) -> None:
    experts = sum(".mlp.experts." in item.name for item in bench.specs(40))
    vision = [item.name for item in bench.specs(40) if ".visual." in item.name]
    assert (experts, len(vision)) == (122_880, 333)
    assert all(name.startswith("model.language_model.visual.") for name in vision)


@pytest.mark.slow
def test_a_small_run_measures_and_leaves_the_renamed_model(bench: ModuleType, tmp_path: Path) -> None:
    found = bench.measure(tmp_path, 1, full=False)
    assert found["tensors"] == 3072 + 3 + 2 + 333
    assert 0 < found["in place"]["io"] < found["in place"]["total"]
    assert 0 < found["in place, listed"]["io"] < found["in place, listed"]["total"]
    assert (found["diff"]["status"], found["diff"]["renamed"]) == (1, 333)
    assert 0 < found["diff"]["parse"] < found["diff"]["cpu"]
    names = open_checkpoint(tmp_path / "source").tensors
    assert sum(name.startswith("model.visual.") for name in names) == 333
    assert (tmp_path / "source" / "model.safetensors").stat().st_blocks * 512 < 64 << 20  # still sparse
