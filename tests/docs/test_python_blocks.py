"""README's Python runs as it stands, and the Python API offers what it says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import convertkit

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_readme_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert any("pack_nvfp4" in block for block in blocks)
    shutil.copytree(ROOT / "fixtures" / "dflash2-tiny", tmp_path / "drafter-bf16")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert (tmp_path / "drafter-expanded" / "DEQUANT_REPORT.json").exists()
    assert len(repr(names["made"])) < 300


def test_every_offered_name_is_there() -> None:
    for name in convertkit.__all__:
        assert getattr(convertkit, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        convertkit.nothing  # noqa: B018
