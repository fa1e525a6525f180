from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from convertkit.errors import ConvertError
from convertkit.release.manifest import (
    MAX_INLINE_ROWS,
    EarlierRelease,
    FileEntry,
    Manifest,
    TensorEntry,
    content_id,
    encode_manifest,
    rebased,
)
from convertkit.release.manifest_reader import parse_manifest, read_earlier
from convertkit.release.sums import write_sums

A, B = "a" * 64, "b" * 64
SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "manifest.schema.json").read_text())
ENTRIES = (FileEntry("model.safetensors", 10, A), FileEntry("config.json", 2, B))
ROW = TensorEntry("model.safetensors", "x", "F32", (1, 2), B)
FULL = Manifest(
    ENTRIES,
    (ROW,),
    ({"path": "model.safetensors", "size": 4, "sha256": A, "repo": "org/name"},),
    {"verb": "pack-nvfp4", "fingerprint": A, "parameters": {"scales": "amax"}},
    (EarlierRelease(A, B, (FileEntry("model.safetensors", None, B),)),),
)


def document(**changes: Any) -> dict[str, Any]:
    made = {
        "schema": "convertkit.manifest/1",
        "files": [{"path": "model.safetensors", "size": 10, "sha256": A}],
        "tensors": [{"file": "model.safetensors", "name": "x", "dtype": "F32", "shape": [2], "sha256": B}],
    }
    made.update(changes)
    return made


def codes(value: Any) -> list[str]:
    with pytest.raises(ConvertError) as raised:
        parse_manifest(json.dumps(value).encode(), "MANIFEST.json")
    return [item.code for item in raised.value.findings]


def test_what_is_written_is_valid_and_read_back() -> None:
    data, rows = encode_manifest(FULL)
    assert rows is None
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(data))
    assert parse_manifest(data, "MANIFEST.json").manifest == Manifest(
        tuple(sorted(ENTRIES, key=lambda entry: entry.path)), FULL.tensors, FULL.source, FULL.plan, FULL.supersedes
    )
    assert parse_manifest(data, "MANIFEST.json").sha256 == hashlib.sha256(data).hexdigest()


def test_the_schema_is_a_schema_and_knows_bad_paths() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    validator.validate(document())
    for path in ("../x", "/x", "a//b", "a/", ".", "a\\b", "a\nb", ""):
        assert not validator.is_valid(document(files=[{"path": path, "size": 0, "sha256": A}]))
    assert not validator.is_valid(document(files=[]))
    assert not validator.is_valid(document(surprise=1))


def test_many_tensors_go_to_a_file_of_rows() -> None:
    many = tuple(
        TensorEntry("model.safetensors", f"t{number}", "F32", (number,), A) for number in range(MAX_INLINE_ROWS + 1)
    )
    data, rows = encode_manifest(Manifest(ENTRIES, many))
    assert rows is not None
    stated = json.loads(data)["tensors_file"]
    assert stated == {
        "path": "MANIFEST.rows.jsonl",
        "size": len(rows),
        "sha256": hashlib.sha256(rows).hexdigest(),
        "count": len(many),
    }
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(data))
    assert parse_manifest(data, "MANIFEST.json", lambda name: rows).manifest.tensors == many
    for wrong in (rows[:-2], rows + b"\n", rows.replace(b"t7", b"u7", 1)):
        with pytest.raises(ConvertError) as raised:
            parse_manifest(data, "MANIFEST.json", lambda name, wrong=wrong: wrong)  # type: ignore[misc]
        assert raised.value.code == "E_MANIFEST_CONFLICT"


def test_content_ids_depend_on_tensors_only() -> None:
    first = TensorEntry("model.safetensors", "x", "BF16", (2, 3), A)
    second = TensorEntry("model.safetensors", "y", "F32", (), B)
    moved = TensorEntry("model-00002-of-00002.safetensors", "y", "F32", (), B)
    renamed = TensorEntry("model.safetensors", "z", "F32", (), B)
    for named in (False, True):
        assert content_id((first, second), named=named) == content_id((moved, first), named=named)
    assert content_id((first, second), named=False) == content_id((first, renamed), named=False)
    assert content_id((first, second), named=True) != content_id((first, renamed), named=True)
    lines = f"BF16 [2,3] {A} x\nF32 [] {B} y\n"
    assert content_id((second, first), named=True) == hashlib.sha256(lines.encode()).hexdigest()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"schema": "convertkit.manifest/2"}, "E_MANIFEST_SCHEMA"),
        ({"schema": "other"}, "E_MANIFEST_SCHEMA"),
        ({"schema": None}, "E_MANIFEST_SCHEMA"),
        ({"files": []}, "E_MANIFEST_EMPTY"),
        ({"files": {}}, "E_MANIFEST_SCHEMA"),
        ({"files": [1]}, "E_MANIFEST_SCHEMA"),
        ({"files": [{"path": "x", "size": -1, "sha256": A}]}, "E_MANIFEST_SCHEMA"),
        ({"files": [{"path": "x", "size": True, "sha256": A}]}, "E_MANIFEST_SCHEMA"),
        ({"files": [{"path": "x", "size": 1, "sha256": A[1:]}]}, "E_MANIFEST_SCHEMA"),
        ({"files": [{"path": "x", "size": 1, "sha1": "0" * 40}]}, "E_MANIFEST_ALGO"),
        ({"files": [{"path": "x/../y", "size": 1, "sha256": A}]}, "E_MANIFEST_PATH"),
        ({"files": [{"path": "MANIFEST.json", "size": 1, "sha256": A}]}, "E_MANIFEST_PATH"),
        ({"files": [{"path": "SHA256SUMS", "size": 1, "sha256": A}]}, "E_MANIFEST_PATH"),
        ({"files": [{"path": "x", "size": 1, "sha256": A}] * 2}, "E_MANIFEST_DUP"),
        ({"tensors": {}}, "E_MANIFEST_SCHEMA"),
        ({"tensors": [{"file": "model.safetensors", "name": "x"}]}, "E_MANIFEST_SCHEMA"),
        ({"tensors": document()["tensors"] * 2}, "E_MANIFEST_DUP"),
        ({"tensors": [{**document()["tensors"][0], "file": "gone"}]}, "E_MANIFEST_SCHEMA"),
        ({"tensors": [{**document()["tensors"][0], "dtype": "F5"}]}, "E_MANIFEST_SCHEMA"),
        ({"content_id": A}, "E_MANIFEST_CONFLICT"),
        ({"plan": []}, "E_MANIFEST_SCHEMA"),
        ({"source": {"files": [{"path": "x"}]}}, "E_MANIFEST_ALGO"),
        ({"supersedes": {}}, "E_MANIFEST_SCHEMA"),
        ({"supersedes": [{"files": []}]}, "E_MANIFEST_EMPTY"),
        ({"supersedes": [{"sums_sha256": "x", "files": [{"path": "x", "sha256": A}]}]}, "E_MANIFEST_SCHEMA"),
    ],
)
def test_refused_documents(changes: dict[str, Any], expected: str) -> None:
    kept = {key: value for key, value in document(**changes).items() if key != "tensors" or key in changes}
    assert codes(kept) == [expected]


def test_all_faults_are_named_together() -> None:
    files = [
        {"path": "../x", "size": 1, "sha256": A},
        {"path": "y", "size": 1},
        {"path": "z", "size": "1", "sha256": A},
    ]
    assert codes(document(files=files, tensors=[])) == ["E_MANIFEST_PATH", "E_MANIFEST_ALGO", "E_MANIFEST_SCHEMA"]


def test_a_nested_manifest_seen_from_the_root() -> None:
    moved = rebased(FULL, "bf16")
    assert [entry.path for entry in moved.files] == ["bf16/model.safetensors", "bf16/config.json"]
    assert [row.file for row in moved.tensors] == ["bf16/model.safetensors"]
    assert rebased(FULL, "") == FULL


def test_an_earlier_release_is_read_from_its_folder_or_either_file(tmp_path: Path) -> None:
    data, _ = encode_manifest(FULL)
    sums = write_sums({"model.safetensors": A, "config.json": B, "MANIFEST.json": hashlib.sha256(data).hexdigest()})
    (tmp_path / "MANIFEST.json").write_bytes(data)
    (tmp_path / "SHA256SUMS").write_bytes(sums)
    release, before = read_earlier(tmp_path)
    assert before == FULL.supersedes[0]
    assert (release.manifest_sha256, release.sums_sha256) == tuple(hashlib.sha256(x).hexdigest() for x in (data, sums))
    assert {entry.path: entry.size_bytes for entry in release.files} == {"model.safetensors": 10, "config.json": 2}
    assert read_earlier(tmp_path / "MANIFEST.json")[0].sums_sha256 is None
    (only_sums,) = read_earlier(tmp_path / "SHA256SUMS")
    assert {entry.path: entry.size_bytes for entry in only_sums.files} == {
        "model.safetensors": None,
        "config.json": None,
    }


def test_an_earlier_release_that_contradicts_itself_or_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConvertError) as raised:
        read_earlier(tmp_path)
    assert (raised.value.code, raised.value.status) == ("E_MANIFEST_MISSING", 3)
    with pytest.raises(ConvertError) as raised:
        read_earlier(tmp_path / "SHA256SUMS")
    assert raised.value.code == "E_NOT_FOUND"
    (tmp_path / "MANIFEST.json").write_bytes(encode_manifest(FULL)[0])
    (tmp_path / "SHA256SUMS").write_bytes(write_sums({"config.json": A}))
    with pytest.raises(ConvertError) as raised:
        read_earlier(tmp_path)
    assert (raised.value.code, raised.value.status) == ("E_MANIFEST_CONFLICT", 3)
