"""Whether what ``--json`` printed follows the schema that it names."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator

from convertkit.release.schemas import load_schema


@lru_cache(maxsize=64)
def _validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(load_schema(kind))


def kind_of(document: Any) -> str:
    """The name of the schema that a document states: ``plan`` of ``convertkit.plan/1``."""
    text = str(document["schema"])
    kind = text.removeprefix("convertkit.").removesuffix("/1")
    assert text == f"convertkit.{kind}/1", text
    return kind


def check_document(document: Any) -> str:
    """The kind of a document, which must follow its schema; a report inside it must follow its own."""
    kind = kind_of(document)
    faults = [f"{kind}, {error.json_path}: {error.message[:300]}" for error in _validator(kind).iter_errors(document)]
    assert not faults, "\n".join(faults)
    if kind == "release":
        check_document(document["report"])
    return kind
