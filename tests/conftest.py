"""Every document that a test makes a command print with ``--json`` is held against the schema that it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from convertkit.cli import runner
from tests.documents import check_document


@pytest.fixture(autouse=True)
def _documents_follow_their_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    text_of = runner.json_text

    def checked(document: Mapping[str, Any]) -> str:
        text = text_of(document)
        if "schema" in document:
            check_document(document)
        return text

    monkeypatch.setattr(runner, "json_text", checked)
