"""The benchmark's own arithmetic: what it measures, adds up and prints."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "full_size.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("full_size", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["full_size"] = module
    spec.loader.exec_module(module)
    return module


def test_a_round_runs_every_verb_on_fresh_folders(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = bench.folders_in(tmp_path)
    at.source.mkdir()
    (at.source / "model.safetensors").write_bytes(b"weights")
    calls: list[tuple[str, ...]] = []

    def verb(*words: str) -> Any:
        calls.append(words)
        if words[0] in ("pack-nvfp4", "dequant"):
            Path(words[2]).mkdir()
        return bench.Measured(1.0, 1.0, 1, 0)

    monkeypatch.setattr(bench, "convertkit", verb)
    for _ in range(2):
        found, copied = bench.run_round(at, tuple(bench.VERBS), cold=True)
        assert list(found) == ["pack-nvfp4", "dequant", "gate", "verify"]
        assert copied > 0
    assert calls[4:] == calls[:4]
    assert calls[2] == ("gate", str(at.pack), "--reference", str(at.source), "--json")


def test_table_states_ratios_and_stages(bench: ModuleType) -> None:
    slow = bench.Measured(6.0, 8.0, 500 << 20, 0, {"timings": {"run": 4.0}})
    fast = bench.Measured(3.0, 5.0, 300 << 20, 0, {"timings": {"run": 2.0}})
    row = bench.Row("pack-nvfp4", (slow, fast), (2.0, 2.0))
    idle = bench.Measured(0.1, 0.1, 50 << 20, 0)
    lines = [line.split() for line in bench.table([row], idle, [1.0, 1.5]).splitlines()]
    assert lines[1] == ["pack-nvfp4", "3.00", "2.00", "2.25", "5.00", "500", "450"]
    assert lines[2] == ["run", "2.00", "1.00"]
    assert lines[3] == ["cp", "of", "the", "source", "1.00", "2.00", "0.50"]
    document = bench.document_of([row], idle, [1.0, 1.5], {"scale": "tiny"})
    assert document["verbs"]["pack-nvfp4"]["ratio"] == 2.25
    assert document["verbs"]["pack-nvfp4"]["peak_bytes_above_idle"] == 450 << 20
