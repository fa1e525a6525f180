from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from convertkit.release.reports import envelope, render_report
from convertkit.verbs.manifest import manifest
from convertkit.verbs.verify import verify
from tests.release.makers import model, put, safetensors, sha256

NAME = "LOAD_SHAPE_AUDIT.json"
SUMMARY = {"tensors": 3, "packed_linears": 0, "errors": 0, "warnings": 0}
ROW = {
    "name": "a.weight", "count": 1, "first": "a.weight", "role": "weight", "grid": "as stored", "dtype": "F32",
    "shape": [2, 4], "planes": [], "config": None,
}  # fmt: skip


def audit(root: Path, rows: int = 1) -> dict[str, Any]:
    """A sound report about the weights of a folder."""
    data = (root / "model.safetensors").read_bytes()
    document = envelope(
        "load-shape-audit",
        source=[],
        output=[{"path": "model.safetensors", "size_bytes": len(data), "sha256": sha256(data)}],
        verb="audit",
        fingerprint=None,
        parameters={},
        summary=SUMMARY,
    )
    put(root, render_report(NAME, document, [ROW] * rows).files)
    value = json.loads((root / NAME).read_bytes())
    assert isinstance(value, dict)
    return value


def listed(root: Path) -> list[tuple[str, str | None]]:
    manifest(root)
    result = verify(root)
    assert result.status == max([3 if "SCHEMA" in item.code or "JSON" in item.code else 1 for item in result.findings
                                 if item.severity == "error"], default=0)  # fmt: skip
    return [(item.code, item.where.file) for item in result.findings]


@pytest.mark.parametrize("rows", [1, 2001])
def test_a_report_about_these_bytes_passes(tmp_path: Path, rows: int) -> None:
    root = model(tmp_path)
    audit(model(root / "bf16"), rows)
    audit(root, rows)
    assert listed(root) == []
    assert verify(root, strict=True).status == 0


def test_a_report_about_other_bytes_fails(tmp_path: Path) -> None:
    root = model(tmp_path)
    audit(root)
    put(root, {"model.safetensors": safetensors()[:-1] + b"\xff"})
    assert listed(root) == [("E_REPORT_BYTES", NAME)]


def test_a_damaged_file_is_not_the_fault_of_its_report(tmp_path: Path) -> None:
    root = model(tmp_path)
    audit(root)
    manifest(root)
    put(root, {"model.safetensors": safetensors()[:-1] + b"\xff"})
    assert [item.code for item in verify(root).findings] == ["E_DIGEST"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda d: d.update(schema="convertkit.load-shape-audit/2"), "E_REPORT_SCHEMA"),
        (lambda d: d.update(schema="convertkit.other/1"), "E_REPORT_SCHEMA"),
        (lambda d: d.pop("summary"), "E_REPORT_SCHEMA"),
        (lambda d: d["output"]["files"][0].update(path="../x"), "E_REPORT_SCHEMA"),
        (lambda d: d["output"]["files"][0].update(path="gone"), "E_REPORT_BYTES"),
        (lambda d: d["output"]["files"][0].update(sha256="0" * 64), "E_REPORT_BYTES"),
        (lambda d: d.update(verdict="fail"), "W_REPORT_VERDICT"),
    ],
)
def test_reports_that_are_wrong(tmp_path: Path, change: Callable[[dict[str, Any]], object], code: str) -> None:
    root = model(tmp_path)
    document = audit(root)
    change(document)
    put(root, {NAME: json.dumps(document).encode()})
    assert listed(root) == [(code, NAME)]
    assert verify(root, strict=True).status in (1, 3)


def test_a_report_that_is_no_json(tmp_path: Path) -> None:
    root = model(tmp_path, {NAME: b"{"})
    assert listed(root) == [("E_JSON", NAME)]


def test_rows_are_validated_strictly_only(tmp_path: Path) -> None:
    root = model(tmp_path)
    document = audit(root)
    document["rows"][0]["count"] = 0
    put(root, {NAME: json.dumps(document).encode()})
    assert listed(root) == []
    assert [item.code for item in verify(root, strict=True).findings] == ["E_REPORT_SCHEMA"]


def test_a_file_of_rows_that_belongs_to_another_report(tmp_path: Path) -> None:
    root = model(tmp_path)
    audit(root, 2001)
    rows = root / NAME.replace(".json", ".rows.jsonl")
    rows.write_bytes(rows.read_bytes().replace(b"[2,4]", b"[4,2]", 1))
    assert listed(root) == [("E_REPORT_BYTES", NAME)]


def test_reports_of_unchosen_folders_are_not_looked_at(tmp_path: Path) -> None:
    root = model(tmp_path)
    document = audit(model(root / "bf16"))
    document["output"]["files"][0]["sha256"] = "0" * 64
    put(root, {f"bf16/{NAME}": json.dumps(document).encode()})
    assert listed(root) == [("E_REPORT_BYTES", f"bf16/{NAME}")]
    assert verify(root, only=["!bf16/*"]).status == 0
