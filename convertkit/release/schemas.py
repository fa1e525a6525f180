"""The JSON Schemas of everything that convertkit writes, as shipped in the wheel or found in a checkout."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from convertkit.errors import refusal, shown

SUFFIX = ".schema.json"


def _folder() -> Traversable:
    """``convertkit/schemas`` of an installed wheel, else ``schemas`` beside the package of a checkout."""
    package = files("convertkit")
    installed = package / "schemas"
    return installed if installed.is_dir() else package / ".." / "schemas"


def schema_names() -> list[str]:
    """Names that ``load_schema`` knows, sorted."""
    return sorted(entry.name.removesuffix(SUFFIX) for entry in _folder().iterdir() if entry.name.endswith(SUFFIX))


@lru_cache(maxsize=16)
def load_schema(name: str) -> dict[str, Any]:
    """The schema called ``name``, such as ``dequant-report``. ``KeyError`` if there is none."""
    if name not in schema_names():
        raise KeyError(f"no schema is named {name}")
    schema: dict[str, Any] = json.loads((_folder() / (name + SUFFIX)).read_text(encoding="utf-8"))
    return schema


def schema_of(identifier: object, file: str) -> dict[str, Any]:
    """The schema that a document's ``schema`` field names, for example ``convertkit.dequant-report/1``.

    Raises ``ConvertError`` with ``E_REPORT_SCHEMA`` (status 3) for an unknown report or an unknown major version.
    """
    text = identifier if isinstance(identifier, str) else ""
    name = text.removeprefix("convertkit.").partition("/")[0]
    if not text.startswith("convertkit.") or name not in schema_names():
        raise refusal("E_REPORT_SCHEMA", f"'{shown(identifier)}' is not a report that convertkit knows", file=file)
    schema = load_schema(name)
    if schema["$id"] != text:
        raise refusal(
            "E_REPORT_SCHEMA", f"'{shown(text)}' is of another version; this convertkit reads {schema['$id']}",
            file=file, fix="read it with the version of convertkit that wrote it",
        )  # fmt: skip
    return schema
