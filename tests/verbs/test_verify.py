from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from convertkit.errors import ConvertError
from convertkit.release.schemas import load_schema
from convertkit.verbs.manifest import manifest
from convertkit.verbs.verify import verify
from convertkit.verbs.verify_listed import VerifyResult
from tests.release.makers import TENSORS, model, put, safetensors, sha256, sharded


def found(result: VerifyResult) -> list[tuple[str, str | None]]:
    return [(item.code, item.where.file) for item in result.findings]


def two_folders(root: Path) -> Path:
    """A pack at the root, its expansion with its own manifest in bf16/, a README."""
    model(root, {"README.md": b"# card\n"})
    manifest(model(root / "bf16", {"LICENSE": b"free\n"}))
    manifest(root)
    return root


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return two_folders(tmp_path / "release")


def test_a_sound_release_passes_and_nothing_is_written(release: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in release.rglob("*")}
    result = verify(release, strict=True)
    assert (result.status, result.findings) == (0, ())
    assert result.summary == {
        "manifests": ["MANIFEST.json", "SHA256SUMS"],
        "release_sha256": sha256((release / "SHA256SUMS").read_bytes()),
        "files": 9,
        "files_ok": 9,
        "size_bytes": sum(path.stat().st_size for path in release.rglob("*") if path.is_file())
        - (release / "SHA256SUMS").stat().st_size,
        "tensors": 6,
        "allowed": [],
    }
    assert {path: path.stat().st_mtime_ns for path in release.rglob("*")} == before


def test_every_problem_is_listed(release: Path) -> None:
    (release / "README.md").write_bytes(b"# Card\n")
    (release / "config.json").write_bytes(b'{"model_type": "llama2"}\n')
    (release / "bf16" / "LICENSE").unlink()
    put(release, {"x.bin": b"", ".env": b"", "bf16/new": b""})
    result = verify(release)
    assert result.status == 1
    assert found(result) == [
        ("E_DIGEST", "README.md"),
        ("E_FILE_MISSING", "bf16/LICENSE"),
        ("E_SIZE", "config.json"),
        ("E_FILE_EXTRA", ".env"),
        ("E_FILE_EXTRA", "bf16/new"),
        ("E_FILE_EXTRA", "x.bin"),
    ]
    assert (result.summary["files"], result.summary["files_ok"]) == (9, 6)


def test_a_file_of_another_size_is_not_read(release: Path) -> None:
    with open(release / "README.md", "ab") as file:
        file.truncate(1 << 42)  # sparse: reading it would take hours
    assert found(verify(release)) == [("E_SIZE", "README.md")]


def test_a_changed_weight_file_names_its_changed_tensors(release: Path) -> None:
    data = bytearray((release / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (release / "model.safetensors").write_bytes(data)
    (item,) = verify(release).findings
    assert (item.code, item.data["tensors"]) == ("E_DIGEST", ["b.weight"])
    assert "'b.weight'" in item.message


def edit(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change MANIFEST.json and make SHA256SUMS agree with it again."""
    made = json.loads((root / "MANIFEST.json").read_bytes())
    for key in ("content_id", "content_id_named"):
        made.pop(key)
    change(made)
    old = sha256((root / "MANIFEST.json").read_bytes())
    (root / "MANIFEST.json").write_text(json.dumps(made))
    sums = (root / "SHA256SUMS").read_text()
    (root / "SHA256SUMS").write_text(sums.replace(old, sha256((root / "MANIFEST.json").read_bytes())))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda rows: rows[0].update(sha256="0" * 64), "E_TENSOR_DIGEST"),
        (lambda rows: rows[0].update(shape=[4, 2]), "E_TENSOR_SPEC"),
        (lambda rows: rows[0].update(dtype="U32"), "E_TENSOR_SPEC"),
        (lambda rows: rows.append({**rows[0], "name": "q"}), "E_TENSOR_MISSING"),
        (lambda rows: rows.pop(0), "E_TENSOR_EXTRA"),
    ],
)
def test_tensor_rows_that_lie(tmp_path: Path, change: Callable[[Any], object], code: str) -> None:
    root = model(tmp_path)
    manifest(root)
    edit(root, lambda made: change(made["tensors"]))
    result = verify(root)
    assert (result.status, [item.code for item in result.findings]) == (1, [code])
    assert result.findings[0].where.tensor in ("a.weight", "q")
    assert result.summary["tensors"] <= len(TENSORS)


def test_manifest_and_sums_that_disagree(tmp_path: Path) -> None:
    root = model(tmp_path, {"x": b"1"})
    manifest(root)
    sums = (root / "SHA256SUMS").read_text()
    lines = sums.splitlines(keepends=True)
    cases: dict[str, list[tuple[str, str | None]]] = {
        "".join(lines[:-1]): [("E_MANIFEST_CONFLICT", "x")],
        "".join(lines[1:]): [("E_MANIFEST_CONFLICT", "MANIFEST.json")],
        sums + f"{'0' * 64}  y\n": [("E_MANIFEST_CONFLICT", "y"), ("E_FILE_MISSING", "y")],
        sums.replace(lines[-1][:64], "0" * 64): [("E_MANIFEST_CONFLICT", "x")],
        sums.replace(lines[0][:64], "0" * 64): [("E_DIGEST", "MANIFEST.json")],
    }
    for text, expected in cases.items():
        (root / "SHA256SUMS").write_text(text)
        result = verify(root)
        assert (result.status, found(result)) == (1, expected)


def test_a_missing_completeness_marker_is_a_warning(tmp_path: Path) -> None:
    root = model(tmp_path)
    manifest(root)
    (root / "SHA256SUMS").unlink()
    assert found(verify(root)) == [("W_SUMS_MISSING", "SHA256SUMS")]
    assert verify(root).status == 0
    assert verify(root, strict=True).status == 1


def test_sums_alone_are_enough(tmp_path: Path) -> None:
    root = model(tmp_path)
    manifest(root)
    (root / "MANIFEST.json").unlink()
    lines = (root / "SHA256SUMS").read_text().splitlines(keepends=True)
    (root / "SHA256SUMS").write_text(
        "".join(line.upper().replace("\n", "\r\n") for line in lines if "MANI" not in line)
    )
    assert [code for code, _ in found(verify(root))] == ["E_FILE_MISSING"] * 2 + ["E_FILE_EXTRA"] * 2  # names too
    text = "".join(line[:64].upper() + line[64:].replace("\n", "\r\n") for line in lines if "MANI" not in line)
    (root / "SHA256SUMS").write_text(text)
    assert verify(root, strict=True).status == 0


def test_without_a_manifest_only_the_structure_is_checked(tmp_path: Path) -> None:
    result = verify(model(tmp_path / "sound"))
    assert (result.status, found(result)) == (1, [("E_MANIFEST_MISSING", None)])
    broken = verify(put(model(tmp_path / "broken"), {"model.safetensors": safetensors()[:-1]}))
    assert (broken.status, [code for code, _ in found(broken)]) == (3, ["E_ST_TRUNCATED"] * 2 + ["E_MANIFEST_MISSING"])


def test_where_the_manifest_is_instead(release: Path) -> None:
    for name in ("MANIFEST.json", "SHA256SUMS"):
        (release / name).rename(release.parent / name)
    assert "bf16" in verify(release).findings[-1].fix
    for name in ("MANIFEST.json", "SHA256SUMS"):
        (release.parent / name).rename(release / name)
        (release / "bf16" / name).unlink()
    assert "--only 'bf16/*'" in verify(release / "bf16").findings[-1].fix


def test_the_structure_of_every_folder_is_checked(tmp_path: Path) -> None:
    root = model(tmp_path)
    sharded(root / "bf16", total=1)
    put(root / "bf16", {"model-00003-of-00003.safetensors": safetensors()})
    codes = found(verify(root))
    assert ("E_INDEX_TOTAL", "bf16/model.safetensors.index.json") in codes
    assert ("E_SHARD_UNLISTED", "bf16/model-00003-of-00003.safetensors") in codes


def test_a_missing_shard_is_named_by_structure_and_manifest(tmp_path: Path) -> None:
    root = sharded(tmp_path)
    manifest(root)
    (root / "model-00001-of-00002.safetensors").unlink()
    result = verify(root)
    assert result.status == 3
    assert [code for code, _ in found(result)] == ["E_SHARD_MISSING", "E_FILE_MISSING"]


def test_files_of_the_earlier_release(tmp_path: Path) -> None:
    old = model(tmp_path / "old", {"README.md": b"one", "gone.txt": b"was there"})
    manifest(old)
    new = model(tmp_path / "new", {"README.md": b"version two", "added.txt": b"now there"})
    changed = {**TENSORS, "a.weight": ("F32", (2, 4), bytes(32))}
    put(new, {"model.safetensors": safetensors(changed)})
    manifest(new, supersedes=old)
    assert verify(new).status == 0
    stale = tmp_path / "stale"
    shutil.copytree(old, stale)
    shutil.copy(new / "MANIFEST.json", stale)
    result = verify(stale)  # the old SHA256SUMS too
    assert result.status == 6
    assert found(result) == [
        ("E_EARLIER_RELEASE", name)
        for name in ("SHA256SUMS", "README.md", "added.txt", "model.safetensors", "gone.txt")
    ]
    shutil.copy(new / "SHA256SUMS", stale)
    assert verify(stale).status == 6
    data = bytearray((stale / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (stale / "model.safetensors").write_bytes(data)
    assert verify(stale).status == 1
    assert ("E_DIGEST", "model.safetensors") in found(verify(stale))


def test_files_of_a_release_before_the_earlier_one_known_by_sums_only(tmp_path: Path) -> None:
    roots = [model(tmp_path / name, {"README.md": name.encode()}) for name in ("1", "2", "three")]
    manifest(roots[0])
    manifest(roots[1], supersedes=roots[0] / "SHA256SUMS")
    manifest(roots[2], supersedes=roots[1])
    put(roots[2], {"README.md": b"1"})
    (item,) = verify(roots[2]).findings
    assert (verify(roots[2]).status, item.code, item.data) == (6, "E_EARLIER_RELEASE", {"releases_ago": 2})


def test_a_nested_manifest_of_other_bytes(release: Path) -> None:
    put(release, {"bf16/LICENSE": b"not free\n"})
    manifest(release)
    result = verify(release)
    assert found(result) == [("E_MANIFEST_CONFLICT", "bf16/MANIFEST.json"), ("E_MANIFEST_CONFLICT", "bf16/SHA256SUMS")]
    manifest(release / "bf16")
    manifest(release)
    assert verify(release, strict=True).status == 0


def test_foreign_files_named_like_ours_in_subfolders_are_ordinary(tmp_path: Path) -> None:
    root = model(tmp_path, {"web/MANIFEST.json": b"[]", "web/SHA256SUMS": b"?", "docs/FIDELITY_GATE.json": b'{"a": 1}'})
    manifest(root)
    assert verify(root, strict=True).status == 0


def test_one_weight_file(tmp_path: Path) -> None:
    root = model(tmp_path)
    result = verify(root / "model.safetensors")
    assert (result.status, found(result)) == (0, [("W_MANIFEST_MISSING", "model.safetensors")])
    assert verify(root / "model.safetensors", strict=True).status == 1
    manifest(root)
    assert (verify(root / "model.safetensors").status, verify(root / "model.safetensors").findings) == (0, ())
    data = bytearray(safetensors())
    data[-1] ^= 1
    put(root, {"model.safetensors": bytes(data), "config.json": b"{}"})
    assert found(verify(root / "model.safetensors")) == [("E_DIGEST", "model.safetensors")]


def test_a_folder_that_cannot_be_listed(release: Path) -> None:
    with pytest.raises(ConvertError) as raised:
        verify(release / "gone")
    assert raised.value.code == "E_NOT_FOUND"


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_workers_do_not_change_the_answer(release: Path, workers: int) -> None:
    put(release, {"README.md": b"# Card\n", "x": b"", "bf16/LICENSE": b"Free\n"})
    assert verify(release, workers=workers) == verify(release)


def test_the_json_document_follows_its_schema(release: Path, tmp_path: Path) -> None:
    validator = jsonschema.Draft202012Validator(load_schema("verify"))
    put(release, {"x": b"", "log": b"", "README.md": b"# Card\n"})
    document = verify(release, allow_extra=["log"]).as_json()
    validator.validate(document)
    assert (document["verdict"], document["status"]) == ("fail", 1)
    assert str(release) not in json.dumps(document)
    for folder in (release / "bf16", model(tmp_path / "bare")):
        validator.validate(verify(folder).as_json())
