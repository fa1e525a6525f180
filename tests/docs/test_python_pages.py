"""docs/python.md runs cell by cell and shows what it gives; the Python of other pages runs as it stands."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from convertkit.demo.generate import generate
from convertkit.verbs.case import Options
from convertkit.verbs.release import release
from convertkit.verbs.release_init import release_init

DOCS = Path(__file__).resolve().parents[2] / "docs"
CELL = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


def value_of(cell: str, names: dict[str, Any]) -> object:
    """Run a cell; the value of its last line if that is an expression."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else None


def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = CELL.findall((DOCS / "python.md").read_text(encoding="utf-8"))
    assert len(cells) > 10
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code, shown in cells:
        found = value_of(code, names)
        assert repr(found) + "\n" == shown, code


@pytest.mark.parametrize("page", ["release.md", "verify.md"])
def test_python_of_a_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    generate("dflash2", tmp_path / "drafter-bf16", on_grid=True)
    release_init(tmp_path / "drafter-bf16", target_id="Qwen/Qwen3.8-27B", output=tmp_path / "drafter.toml")
    release(tmp_path / "drafter.toml", tmp_path / "release", options=Options(workers=2))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    cells = CELL.findall((DOCS / page).read_text(encoding="utf-8"))
    assert cells
    for code, _ in cells:
        value_of(code, names)
