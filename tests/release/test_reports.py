"""Reports: settled bytes, one envelope, rows beside the report, and schemas that refuse what is not one."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convertkit import __version__
from convertkit.checkpoint import TensorSpec
from convertkit.checks.compare import Dense, Planes, compare_tile
from convertkit.checks.expand import check_expand_tile
from convertkit.checks.fidelity import DEFAULT_LIMITS, Tally, judge
from convertkit.checks.reference import exact_rounded_table
from convertkit.errors import ConvertError, finding
from convertkit.release import rows as made
from convertkit.release.reports import (
    MAX_INLINE_ROWS,
    envelope,
    render_report,
    report_faults,
    settled,
    validate_report,
)
from convertkit.release.schemas import load_schema, schema_names
from tests.release.makers import put

REPORTS = {
    "dequant-report": "DEQUANT_REPORT.json",
    "fidelity-gate": "FIDELITY_GATE.json",
    "load-shape-audit": "LOAD_SHAPE_AUDIT.json",
}
SHA = "0" * 64
GLOBAL = 0x39D1B717


def file(path: str) -> dict[str, Any]:
    return {"path": path, "size_bytes": 12, "sha256": SHA}


def expanded_row(**options: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (2, 16)).astype(np.uint8)
    scales = rng.integers(1, 127, (2, 2)).astype(np.uint8)
    nibbles = np.stack([codes & 15, codes >> 4], axis=-1).reshape(2, 32)
    out = exact_rounded_table(GLOBAL, "multiplier", "BF16")[np.repeat(scales, 16, axis=1), nibbles]
    tally = check_expand_tile(codes, scales, GLOBAL, "multiplier", out, "BF16")
    sources = made.planes(("m.weight", "m.weight_scale", "m.weight_scale_2"), {"m.weight": SHA, "m.weight_scale": SHA})
    spec = TensorSpec("m.weight", "BF16", (2, 32))
    return made.dequant_row(
        spec, SHA, tally, dialect="modelopt", sources=sources, global_bits=GLOBAL, sense="multiplier", **options
    )


def dequant_rows() -> list[dict[str, Any]]:
    respelled = made.respelled_row(
        TensorSpec("n.weight_packed", "U8", (2, 16)), SHA, dialect="modelopt",
        sources=made.planes(("n.weight", "n.weight_scale", "n.weight_scale_2"), {}), before=(GLOBAL, "multiplier"),
        after=(0x451C4000, "divisor"), reversible=False, changed_values=3,
    )  # fmt: skip
    copied = made.tensor_row(TensorSpec("norm.weight", "BF16", (4,)), "bytes", SHA)
    return [expanded_row(), respelled, copied]


def gate_tallies() -> tuple[Tally, Tally]:
    rng = np.random.default_rng(1)
    bits = (rng.standard_normal((2, 32)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    codes = rng.integers(0, 256, (2, 16)).astype(np.uint8)
    planes = Planes(codes, np.full((2, 2), 0x38, np.uint8), 0x3F800000, "multiplier")
    return compare_tile(Dense(bits, "BF16"), planes), compare_tile(Dense(bits, "BF16"), Dense(bits, "BF16"))


def gate_rows() -> list[dict[str, Any]]:
    packed, equal = gate_tallies()
    return [
        made.gate_row("m.weight", packed, group="m", packed=True, global_bits=0x3F800000, sense="multiplier"),
        made.gate_row("norm.weight", equal, packed=False),
        made.bytes_row("ids", True),
        made.gate_row("m", packed, scope="group", members=["m.weight"]),
        made.gate_row("whole", packed + equal, scope="whole"),
    ]


def audit_rows() -> list[dict[str, Any]]:
    return [{"name": "layers.{i}.norm.weight", "count": 2, "first": "layers.0.norm.weight", "role": "norm",
             "grid": "as stored", "dtype": "BF16", "shape": [64], "planes": [], "config": None}]  # fmt: skip


def summary_of(report: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    if report == "dequant-report":
        return made.dequant_summary(rows)
    if report == "fidelity-gate":
        packed, equal = gate_tallies()
        return made.gate_summary(rows, packed + equal, DEFAULT_LIMITS)
    return {"tensors": 2, "packed_linears": 0, "errors": 0, "warnings": 0, "layout": "plain"}


ROWS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "dequant-report": dequant_rows,
    "fidelity-gate": gate_rows,
    "load-shape-audit": audit_rows,
}


def document(report: str, rows: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    made_ = envelope(
        report, source=[file("b"), file("a")], output=[file("model.safetensors")], verb="dequant",
        fingerprint="f" * 64, parameters={"dtype": "BF16"}, summary=summary_of(report, rows),
        findings=changes.pop("findings", ()),
    )  # fmt: skip
    return made_ | changes


@pytest.mark.parametrize("report", sorted(REPORTS))
def test_each_report_is_written_read_and_validated(report: str, tmp_path: Path) -> None:
    rows = ROWS[report]()
    put(tmp_path, render_report(REPORTS[report], document(report, rows), rows).files)
    found = validate_report(tmp_path / REPORTS[report])
    jsonschema.Draft202012Validator(load_schema(report)).validate(found)
    assert found["schema"] == f"convertkit.{report}/1"
    assert found["tool"] == {"name": "convertkit", "version": __version__}
    assert [item["path"] for item in found["source"]["files"]] == ["a", "b"]
    assert found["verdict"] == "pass"
    assert len(found["rows"]) == len(rows)
    assert [entry.name for entry in tmp_path.iterdir()] == [REPORTS[report]]


def test_rows_say_what_was_counted() -> None:
    row = expanded_row(against=2)
    assert (row["differing"], row["recoverable"], row["elements"], row["blocks"]) == (0, True, 64, 4)
    assert row["differences"]["exact"] == {"values": 0, "zero_signs": 0}
    assert row["global_scale"] == {"bits": "0x39d1b717", "value": pytest.approx(4e-4), "sense": "multiplier"}
    assert [item["role"] for item in row["planes"]] == ["codes", "block_scale", "global_scale"]
    assert [item["sha256"] for item in row["planes"]] == [SHA, SHA, None]
    assert row["against"] == {"differing": 2}
    assert expanded_row(has_reference=True)["against"] == {"differing": None}
    assert "against" not in expanded_row()
    summary = made.dequant_summary([row, *dequant_rows()])
    counts = ("tensors", "expanded", "respelled", "elements", "differing", "against_differing")
    assert [summary[name] for name in counts] == [4, 2, 1, 192, 3, 2]
    summary = made.gate_summary(gate_rows(), gate_tallies()[0], DEFAULT_LIMITS, "BF16")
    assert (summary["tensors"], summary["packed"], summary["stored"], summary["worst"]) == (3, 1, "BF16", "m.weight")


def test_a_failed_gate_is_in_the_verdict() -> None:
    rows = gate_rows()
    found = judge(rows)
    assert {item.data["name"] for item in found} == {"m.weight", "m", "whole"}
    rendered = render_report("FIDELITY_GATE.json", document("fidelity-gate", rows, findings=found), rows)
    assert rendered.document["verdict"] == "fail"
    assert [item["code"] for item in rendered.document["findings"]] == ["E_GATE"] * len(found)
    warning = [finding("W_NO_CONFIG", "warning", "there is none")]
    assert document("fidelity-gate", rows, findings=warning)["verdict"] == "pass"


def test_the_same_report_has_the_same_bytes_whatever_the_order_of_keys() -> None:
    rows = dequant_rows()
    one = render_report("DEQUANT_REPORT.json", document("dequant-report", rows), rows)
    turned = dict(reversed(document("dequant-report", rows).items()))
    two = render_report("DEQUANT_REPORT.json", turned, [dict(reversed(row.items())) for row in rows])
    assert one.files == two.files


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_settled_to_nine_digits(value: float) -> None:
    once = settled(value)
    assert settled(once) == once
    assert json.loads(json.dumps(once)) == once
    assert once == pytest.approx(value, rel=1e-8)


@given(st.integers(0, 0x7F7FFFFF))
def test_nine_digits_give_back_any_fp32_number(bits: int) -> None:
    value = np.uint32(bits).view(np.float32)
    assert np.float32(settled(float(value))).view(np.uint32) == bits


def test_settled_leaves_integers_and_truth_alone() -> None:
    value = settled({"a": [True, 2**63, 0.1 + 0.2, None], "b": ("x", 1e-320)})
    assert value == {"a": [True, 2**63, 0.3, None], "b": ["x", settled(1e-320)]}
    assert value["a"][0] is True


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_has_not_is_our_bug(value: float) -> None:
    rows = gate_rows()
    rows[0]["metrics"]["rel_rms"] = value
    with pytest.raises(ConvertError, match="would hold") as caught:
        render_report("FIDELITY_GATE.json", document("fidelity-gate", rows), rows)
    assert (caught.value.code, caught.value.status) == ("E_SCHEMA", 70)


@pytest.mark.parametrize("report", sorted(REPORTS))
@pytest.mark.parametrize(
    "spoil",
    [
        lambda document, rows: document.update(verdict="maybe"),
        lambda document, rows: document.update(clock="now"),
        lambda document, rows: document.pop("plan"),
        lambda document, rows: document["source"]["files"][0].update(sha256="ABC"),
        lambda document, rows: document["summary"].pop("tensors"),
        lambda document, rows: rows[0].pop("name"),
        lambda document, rows: rows[-1].update(host="me"),
    ],
)
def test_what_does_not_follow_the_schema_is_not_written(
    report: str, spoil: Callable[[dict[str, Any], list[dict[str, Any]]], Any]
) -> None:
    rows = ROWS[report]()
    spoiled = document(report, rows)
    spoil(spoiled, rows)
    with pytest.raises(ConvertError) as caught:
        render_report(REPORTS[report], spoiled, rows)
    assert (caught.value.code, caught.value.status) == ("E_SCHEMA", 70)


def many(tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    rows = [audit_rows()[0] | {"name": f"t{i}"} for i in range(MAX_INLINE_ROWS + 1)]
    put(tmp_path, render_report("LOAD_SHAPE_AUDIT.json", document("load-shape-audit", rows), rows).files)
    return tmp_path / "LOAD_SHAPE_AUDIT.json", rows


def test_many_rows_go_to_a_file_of_their_own(tmp_path: Path) -> None:
    path, rows = many(tmp_path)
    data = (tmp_path / "LOAD_SHAPE_AUDIT.rows.jsonl").read_bytes()
    assert [json.loads(line) for line in data.splitlines()] == rows
    found = validate_report(path)
    assert found["rows_file"] == {
        "path": "LOAD_SHAPE_AUDIT.rows.jsonl", "sha256": hashlib.sha256(data).hexdigest(), "count": len(rows),
    }  # fmt: skip
    assert "rows" not in found
    rendered = render_report("LOAD_SHAPE_AUDIT.json", document("load-shape-audit", rows), rows[:-1])
    assert list(rendered.files) == ["LOAD_SHAPE_AUDIT.json"]


@pytest.mark.parametrize("row", [0, 1, 1000, MAX_INLINE_ROWS])
def test_a_bad_row_is_found_and_numbered(row: int, tmp_path: Path) -> None:
    path, rows = many(tmp_path)
    rows[row]["count"] = -1
    data = b"".join(json.dumps(item).encode() + b"\n" for item in rows)
    (tmp_path / "LOAD_SHAPE_AUDIT.rows.jsonl").write_bytes(data)
    with pytest.raises(ConvertError, match="has other bytes") as caught:
        validate_report(path)
    assert (caught.value.code, caught.value.status) == ("E_REPORT_SCHEMA", 3)
    found = json.loads(path.read_bytes())
    found["rows_file"]["sha256"] = hashlib.sha256(data).hexdigest()
    path.write_text(json.dumps(found))
    with pytest.raises(ConvertError, match=f"row {row}, "):
        validate_report(path)
    assert validate_report(path, all_rows=False) == found
    found["rows_file"]["count"] -= 1
    path.write_text(json.dumps(found))
    with pytest.raises(ConvertError, match="has 2001 rows, the report states 2000"):
        validate_report(path)


def test_a_bad_inline_row_is_found_when_all_rows_are_asked_for(tmp_path: Path) -> None:
    rows = dequant_rows()
    put(tmp_path, render_report("DEQUANT_REPORT.json", document("dequant-report", rows), rows).files)
    found = json.loads((tmp_path / "DEQUANT_REPORT.json").read_bytes())
    del found["rows"][0]["differences"]
    assert report_faults(tmp_path, "DEQUANT_REPORT.json", found, rows=False) == []
    faults = report_faults(tmp_path, "DEQUANT_REPORT.json", found, rows=True)
    assert [(item.code, item.where.file) for item in faults] == [("E_REPORT_SCHEMA", "DEQUANT_REPORT.json")]
    assert "row 0" in faults[0].message


@pytest.mark.parametrize("path", ["../x.rows.jsonl", "/etc/x.rows.jsonl", "sub/x.rows.jsonl", "x.json"])
def test_a_rows_file_elsewhere_is_refused(path: str, tmp_path: Path) -> None:
    report, _ = many(tmp_path)
    found = json.loads(report.read_bytes())
    found["rows_file"]["path"] = path
    report.write_text(json.dumps(found))
    with pytest.raises(ConvertError) as caught:
        validate_report(report)
    assert caught.value.code == "E_REPORT_SCHEMA"


@pytest.mark.parametrize(
    "schema", ["convertkit.dequant-report/2", "convertkit.other/1", "other", None, 1, "convertkit.../error/1"]
)
def test_unknown_reports_and_versions_are_not_acceptable(schema: object, tmp_path: Path) -> None:
    rows = dequant_rows()
    put(tmp_path, render_report("R.json", document("dequant-report", rows), rows).files)
    found = json.loads((tmp_path / "R.json").read_bytes())
    found["schema"] = schema
    (tmp_path / "R.json").write_text(json.dumps(found))
    with pytest.raises(ConvertError) as caught:
        validate_report(tmp_path / "R.json")
    assert (caught.value.code, caught.value.status) == ("E_REPORT_SCHEMA", 3)


def test_reports_that_are_not_strict_json_are_refused(tmp_path: Path) -> None:
    for text in ('{"schema": 1, "schema": 2}', "[]", "{", '{"a": NaN}'):
        (tmp_path / "R.json").write_text(text)
        with pytest.raises(ConvertError) as caught:
            validate_report(tmp_path / "R.json")
        assert caught.value.status == 3


def test_schemas_are_valid_and_stand_alone() -> None:
    assert set(REPORTS) <= set(schema_names())
    for name in schema_names():
        schema = load_schema(name)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$id"] == f"convertkit.{name}/1"
        assert all(ref.startswith("#/$defs/") for ref in references(schema))
    with pytest.raises(KeyError):
        load_schema("../pyproject")


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [ref for item in value.values() for ref in references(item)]
    return [ref for item in value for ref in references(item)] if isinstance(value, list) else []


def test_the_envelope_is_the_same_in_every_report() -> None:
    schemas = [load_schema(name) for name in REPORTS]
    for part in ("sha256", "count", "shape", "file", "files", "rows_file", "finding"):
        assert len({json.dumps(schema["$defs"][part], sort_keys=True) for schema in schemas}) == 1
    for field in ("tool", "plan", "verdict", "rows", "rows_file", "findings"):
        assert len({json.dumps(schema["properties"][field], sort_keys=True) for schema in schemas}) == 1
    assert load_schema("error")["$defs"]["finding"] == schemas[0]["$defs"]["finding"]
