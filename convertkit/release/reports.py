"""Reports: one envelope, the same bytes everywhere, validated when they are written and when they are read.

A report never holds a clock, a host, an absolute path or a worker count. Floats are rounded to nine significant
digits, enough to give back any FP32 number. Above ``MAX_INLINE_ROWS`` the rows go to a file beside the report.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from convertkit import __version__
from convertkit.containers.files import read_small
from convertkit.containers.strict_json import dump_json, parse_json
from convertkit.errors import ConvertError, Finding, finding, refusal, shown
from convertkit.release.paths import folder_of, join
from convertkit.release.schemas import load_schema, schema_of

MAX_INLINE_ROWS = 2_000
MAX_REPORT_BYTES = 1 << 31
MAX_FAULTS = 20
"""Schema faults named per report; the rest are as a rule their echo."""


@dataclass(frozen=True)
class Rendered:
    """A report ready to be written: ``document`` as it will be read, and ``files`` (name to bytes), rows first."""

    document: Mapping[str, Any]
    files: Mapping[str, bytes]


def envelope(
    report: str,
    *,
    source: Iterable[Mapping[str, Any]],
    output: Iterable[Mapping[str, Any]],
    verb: str,
    fingerprint: str | None,
    parameters: Mapping[str, Any],
    summary: Mapping[str, Any],
    findings: Sequence[Finding] = (),
) -> dict[str, Any]:
    """What all reports have in common; ``report`` is a schema name, files are {path, size_bytes, sha256}.

    The verdict is ``fail`` if a finding is an error.
    """
    return {
        "schema": f"convertkit.{report}/1",
        "tool": {"name": "convertkit", "version": __version__},
        "source": {"files": _sorted(source)},
        "output": {"files": _sorted(output)},
        "plan": {"verb": verb, "fingerprint": fingerprint, "parameters": dict(parameters)},
        "verdict": "fail" if any(item.severity == "error" for item in findings) else "pass",
        "summary": dict(summary),
        "findings": [item.as_json() for item in findings],
    }


def _sorted(files: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = [{key: item[key] for key in ("path", "size_bytes", "sha256")} for item in files]
    return sorted(rows, key=lambda row: str(row["path"]).encode("utf-8", "surrogatepass"))


def settled(value: Any) -> Any:
    """``value`` as JSON values with settled floats: nine significant digits, finite.

    Raises ``ConvertError`` with ``E_SCHEMA`` (status 70) for NaN or infinity: no report has a place for them.
    """
    if isinstance(value, float):
        if not isfinite(value):
            raise refusal("E_SCHEMA", f"a report would hold {value}")
        return float(format(value, ".9g"))
    if isinstance(value, Mapping):
        return {str(key): settled(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [settled(item) for item in value]
    return value


def render_report(name: str, document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Rendered:
    """The bytes of report ``name`` (a plain file name ending in .json) with its rows.

    Raises ``ConvertError`` with ``E_SCHEMA`` (status 70) if the envelope, its first or its last row does not follow
    the schema.
    """
    complete = settled(document)
    listed = [settled(row) for row in rows]
    files: dict[str, bytes] = {}
    if len(listed) > MAX_INLINE_ROWS:
        rows_name = name.removesuffix(".json") + ".rows.jsonl"
        data = b"".join(_line(row) for row in listed)
        files[rows_name] = data
        digest = hashlib.sha256(data).hexdigest()
        complete["rows_file"] = {"path": rows_name, "sha256": digest, "count": len(listed)}
    else:
        complete["rows"] = listed
    schema = load_schema(complete["schema"].removeprefix("convertkit.").partition("/")[0])
    ends = listed[:1] + listed[1:][-1:]
    faults = [*_faults(schema, _without_rows(complete)), *_row_faults(schema, enumerate(ends))]
    if faults:
        raise ConvertError([finding("E_SCHEMA", "error", fault, file=name) for fault in faults])
    files[name] = dump_json(complete)
    return Rendered(complete, files)


def _line(row: Mapping[str, Any]) -> bytes:
    text = json.dumps(row, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return (text + "\n").encode("utf-8")


def _without_rows(document: Mapping[str, Any]) -> dict[str, Any]:
    """The envelope alone; rows are validated one by one, which names the row and not the whole list."""
    return {**document, "rows": []} if isinstance(document.get("rows"), list) else dict(document)


def _faults(schema: Mapping[str, Any], value: Any) -> list[str]:
    """What ``value`` has against the schema, in words, in a settled order."""
    from jsonschema import Draft202012Validator

    errors = sorted(Draft202012Validator(schema).iter_errors(value), key=lambda error: list(map(str, error.path)))
    return [f"{error.json_path}: {shown(error.message)}" for error in errors[:MAX_FAULTS]]


def _row_faults(schema: Mapping[str, Any], rows: Iterable[tuple[int, Any]]) -> list[str]:
    """The same for rows, each with its number."""
    from jsonschema import Draft202012Validator

    validator = Draft202012Validator({"$ref": "#/$defs/row", "$defs": schema["$defs"]})
    found = []
    for number, row in rows:
        found += [f"row {number}, {error.json_path}: {shown(error.message)}" for error in validator.iter_errors(row)]
        if len(found) >= MAX_FAULTS:
            break
    return found[:MAX_FAULTS]


def report_faults(root: Path, path: str, document: Mapping[str, Any], *, rows: bool = True) -> list[Finding]:
    """``E_REPORT_SCHEMA`` for what a parsed report at ``path`` (from ``root``) has against its schema.

    With ``rows`` every row is validated, those of its rows file too, whose digest and count must be as stated.
    """
    try:
        schema = schema_of(document.get("schema"), path)
        faults = _faults(schema, _without_rows(document))
        if rows and not faults and "row" in schema.get("$defs", {}):
            faults += _row_faults(schema, enumerate(document.get("rows", ())))
            if "rows_file" in document:
                faults += _rows_file_faults(root, path, document["rows_file"], schema)
    except ConvertError as error:
        return list(error.findings)
    return [finding("E_REPORT_SCHEMA", "error", fault, file=path) for fault in faults]


def _rows_file_faults(root: Path, path: str, stated: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    place = join(folder_of(path), stated["path"])
    data = read_small(root, place, MAX_REPORT_BYTES)
    if hashlib.sha256(data).hexdigest() != stated["sha256"]:
        return [f"{shown(stated['path'])} has other bytes than the report states"]
    lines = data.splitlines()
    if len(lines) != stated["count"]:
        return [f"{shown(stated['path'])} has {len(lines)} rows, the report states {stated['count']}"]
    return _row_faults(schema, _parsed(lines, place))


def _parsed(lines: Sequence[bytes], file: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines):
        yield number, parse_json(line, file)


def validate_report(path: Path, *, all_rows: bool = True) -> dict[str, Any]:
    """Read a report from disk and validate it; its document.

    Raises ``ConvertError`` (status 3) if it is not strict JSON, of an unknown kind or version, or not as its schema.
    """
    document = parse_json(read_small(path.parent, path.name, MAX_REPORT_BYTES), path.name)
    if not isinstance(document, dict):
        raise refusal("E_REPORT_SCHEMA", "not a JSON object", file=path.name)
    faults = report_faults(path.parent, path.name, document, rows=all_rows)
    if faults:
        raise ConvertError(faults)
    return document
