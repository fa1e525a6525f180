"""The pages made from the program are those in the tree."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def pages() -> dict[str, Callable[[], str]]:
    spec = importlib.util.spec_from_file_location("docs_pages", DOCS / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Callable[[], str]] = module.PAGES
    return found


@pytest.mark.parametrize("name", list(pages()))
def test_page_is_the_generated_one(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == pages()[name](), "run `make docs`"
