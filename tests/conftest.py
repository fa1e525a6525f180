"""Every document that a test makes a command print with ``--json`` is held against the schema that it names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _documents_follow_their_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("jsonschema") is None:  # the environments of engines, where no command is run
        return
    from convertkit.cli import runner
    from tests.documents import check_document

    text_of = runner.json_text

    def checked(document: Mapping[str, Any]) -> str:
        text = text_of(document)
        if "schema" in document:
            check_document(document)
        return text

    monkeypatch.setattr(runner, "json_text", checked)
