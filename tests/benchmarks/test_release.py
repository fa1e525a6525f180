"""The benchmark of a release runs at small scale and its figures are those of the release."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import release as benchmark


def test_figures_of_a_tiny_release(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main([str(tmp_path), "--scale", "tiny"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["expansion"]["differing"] == found["on_grid"]["differing"] == 0
    assert found["verify_status"] == 0
    assert found["pack_bytes_against_published"] == found["sizes"]["."] / benchmark.PACK_BYTES
    assert set(found["sizes"]) == {".", "bf16/", "gguf/"}
    assert min(found["sizes"].values()) > 0
    assert found["peak_mib"] > 0
    assert list(tmp_path.iterdir()) == []
