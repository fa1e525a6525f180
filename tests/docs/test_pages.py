"""The pages made from the program are those in the tree."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def pages():
    spec = importlib.util.spec_from_file_location("docs_pages", DOCS / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PAGES


@pytest.mark.parametrize("name", list(pages()))
def test_page_is_the_generated_one(name):
    assert (DOCS / name).read_text(encoding="utf-8") == pages()[name](), "run `make docs`"
