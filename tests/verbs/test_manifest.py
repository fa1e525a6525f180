from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from convertkit.errors import ConvertError
from convertkit.release import digests, inventory
from convertkit.verbs.manifest import manifest
from convertkit.verbs.verify import verify
from tests.release.makers import TENSORS, model, put, safetensors, sha256, sharded, snapshot

LINEAGE = {
    "source": {"files": [{"path": "model.safetensors", "size_bytes": 7, "sha256": "c" * 64}]},
    "plan": {"verb": "dequant", "fingerprint": "d" * 64, "parameters": {"dtype": "bf16"}},
}


def read(root: Path) -> dict[str, Any]:
    value = json.loads((root / "MANIFEST.json").read_bytes())
    assert isinstance(value, dict)
    return value


def coreutils_accepts(root: Path) -> bool:
    return (
        subprocess.run(["sha256sum", "--strict", "--quiet", "-c", "SHA256SUMS"], cwd=root, check=False).returncode == 0
    )


def test_what_is_written(tmp_path: Path) -> None:
    root = model(tmp_path, {"docs/a b.md": b"text", ".gitattributes": b"*"})
    result = manifest(root)
    made = read(root)
    names = [".gitattributes", "config.json", "docs/a b.md", "model.safetensors"]
    assert made["files"] == [
        {"path": name, "size": (root / name).stat().st_size, "sha256": sha256((root / name).read_bytes())}
        for name in names
    ]
    assert [(row["name"], row["dtype"], tuple(row["shape"]), row["sha256"]) for row in made["tensors"]] == [
        (name, dtype, shape, sha256(data)) for name, (dtype, shape, data) in TENSORS.items()
    ]
    sums = (root / "SHA256SUMS").read_text().splitlines()
    assert [line.split("  ")[1] for line in sums] == [
        ".gitattributes", "MANIFEST.json", "config.json", "docs/a b.md", "model.safetensors",
    ]  # fmt: skip
    assert result["release_sha256"] == sha256((root / "SHA256SUMS").read_bytes())
    assert (result["files"], result["tensors"], result["written"]) == (4, 3, ["MANIFEST.json", "SHA256SUMS"])
    assert coreutils_accepts(root)
    assert verify(root, strict=True).status == 0


def test_the_same_folder_gives_the_same_bytes_anywhere(tmp_path: Path) -> None:
    first, second = model(tmp_path / "x", {"b": b"1", "a": b"2"}), model(tmp_path / "y", {"a": b"2", "b": b"1"})
    manifest(first, workers=1)
    manifest(second, workers=3)
    assert snapshot(first) == snapshot(second)
    manifest(first)
    assert snapshot(first) == snapshot(second)


def test_a_dry_run_writes_nothing_and_says_what_it_would(tmp_path: Path) -> None:
    root = model(tmp_path)
    before = snapshot(root)
    dry = manifest(root, dry_run=True)
    assert snapshot(root) == before
    assert manifest(root) == dry


def test_tools_folders_and_signatures_are_left_out_and_named(tmp_path: Path) -> None:
    root = model(
        tmp_path, {".git/config": b"", ".git/a/b": b"", ".cache/huggingface/x": b"", "sub/.cache/y": b"", "m.sig": b""}
    )
    assert set(manifest(root)["skipped"]) == {".git/", ".cache/", "sub/.cache/", "m.sig"}
    assert {entry["path"] for entry in read(root)["files"]} == {"config.json", "model.safetensors"}


def test_digests_that_the_writer_took_are_not_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = model(tmp_path)
    taken = {name: sha256((root / name).read_bytes()) for name in ("model.safetensors", "config.json")}
    tensors = {name: sha256(data) for name, (_, _, data) in TENSORS.items()}
    read_paths: list[str] = []
    real = digests.sha256_all

    def spy(root: Path, files: Any, refs: Any, *rest: Any) -> Any:
        read_paths.extend([*files, *refs])
        return real(root, files, refs, *rest)

    monkeypatch.setattr(inventory, "sha256_all", spy)
    manifest(root, digests=taken, tensors=tensors)
    assert read_paths == []
    given = snapshot(root)
    for name in ("MANIFEST.json", "SHA256SUMS"):
        (root / name).unlink()
    manifest(root)
    assert snapshot(root) == given


def test_lineage_is_kept_while_the_weights_are_the_same(tmp_path: Path) -> None:
    root = model(tmp_path)
    manifest(root, lineage=LINEAGE)
    assert read(root)["source"]["files"] == [{"path": "model.safetensors", "size": 7, "sha256": "c" * 64}]
    put(root, {"README.md": b"# new"})
    assert manifest(root)["findings"] == []
    assert read(root)["plan"] == LINEAGE["plan"]
    changed = {**TENSORS, "a.weight": ("F32", (2, 4), bytes(32))}
    put(root, {"model.safetensors": safetensors(changed)})
    assert [item["code"] for item in manifest(root)["findings"]] == ["W_LINEAGE_DROPPED"]
    assert "plan" not in read(root)
    assert "source" not in read(root)
    assert read(root)["tensors"][0]["sha256"] == sha256(bytes(32))
    assert verify(root).status == 0


def test_known_tensors_of_unchanged_files_are_not_hashed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = model(tmp_path / "pack")
    manifest(model(root / "bf16"))
    hashed: list[str] = []
    real = digests.sha256_all

    def spy(root: Path, files: Any, refs: Any, *rest: Any) -> Any:
        hashed.extend(refs)
        return real(root, files, refs, *rest)

    monkeypatch.setattr(inventory, "sha256_all", spy)
    manifest(root)
    assert hashed == ["model.safetensors"]
    hashed.clear()
    written = snapshot(root)
    manifest(root)
    assert hashed == []
    assert snapshot(root) == written


def test_rows_of_an_old_manifest_that_do_not_fit_the_file_are_taken_anew(tmp_path: Path) -> None:
    root = model(tmp_path)
    manifest(root)
    wanted = snapshot(root)
    made = read(root)
    made["tensors"][0]["shape"] = [8]
    del made["content_id"], made["content_id_named"]
    put(root, {"MANIFEST.json": json.dumps(made).encode()})
    manifest(root)
    assert snapshot(root) == wanted


def test_two_folders_in_one_release(tmp_path: Path) -> None:
    root = model(tmp_path)
    manifest(model(root / "bf16"), lineage=LINEAGE)
    nested = snapshot(root / "bf16")
    manifest(root)
    assert snapshot(root / "bf16") == nested
    paths = {entry["path"] for entry in read(root)["files"]}
    assert {"bf16/MANIFEST.json", "bf16/SHA256SUMS", "bf16/model.safetensors", "model.safetensors"} <= paths
    assert {row["file"] for row in read(root)["tensors"]} == {"bf16/model.safetensors", "model.safetensors"}
    assert "plan" not in read(root)
    assert coreutils_accepts(root)
    assert coreutils_accepts(root / "bf16")


def test_many_tensors_go_to_a_file_beside_it_which_goes_away_again(tmp_path: Path) -> None:
    many = {f"t{number:04d}": ("U8", (1,), bytes([number % 256])) for number in range(2001)}
    root = model(tmp_path)
    put(root, {"model.safetensors": safetensors(many)})
    assert manifest(root)["written"] == ["MANIFEST.rows.jsonl", "MANIFEST.json", "SHA256SUMS"]
    assert len((root / "MANIFEST.rows.jsonl").read_bytes().splitlines()) == 2001
    assert coreutils_accepts(root)
    assert verify(root, strict=True).summary["tensors"] == 2001
    put(root, {"model.safetensors": safetensors()})
    manifest(root)
    assert not (root / "MANIFEST.rows.jsonl").exists()
    assert verify(root, strict=True).status == 0


def test_superseded_releases_form_a_chain(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in "123")
    for number, root in enumerate((first, second, third)):
        model(root, {"config.json": b'{"n": %d}\n' % number})
    manifest(first)
    assert manifest(second, supersedes=first / "SHA256SUMS")["supersedes"] == 1
    assert manifest(third, supersedes=second)["supersedes"] == 2
    chain = read(third)["supersedes"]
    assert chain[0]["sums_sha256"] == sha256((second / "SHA256SUMS").read_bytes())
    assert chain[0]["manifest_sha256"] == sha256((second / "MANIFEST.json").read_bytes())
    assert chain[1]["sums_sha256"] == sha256((first / "SHA256SUMS").read_bytes())
    before = snapshot(third)
    assert manifest(third, supersedes=second)["supersedes"] == 2
    assert manifest(third)["supersedes"] == 2
    assert snapshot(third) == before


def test_a_release_does_not_supersede_itself(tmp_path: Path) -> None:
    root = model(tmp_path)
    manifest(root)
    result = manifest(root, supersedes=root)
    assert [item["code"] for item in result["findings"]] == ["W_SUPERSEDES_SAME"]
    assert "supersedes" not in read(root)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("a\nb", "E_NAME_UNSAFE"),
        ("a\\b", "E_NAME_UNSAFE"),
        ("a\u202eb", "E_NAME_UNSAFE"),
        (b"a\xff", "E_NAME_UNSAFE"),
        ("CONFIG.json", "E_PATH_CASE"),
    ],
)
def test_names_that_cannot_be_listed(tmp_path: Path, name: str | bytes, code: str) -> None:
    root = model(tmp_path)
    path = os.path.join(os.fsencode(root), os.fsencode(name))
    with open(path, "wb"):
        pass
    before = sorted(os.listdir(root))
    with pytest.raises(ConvertError) as raised:
        manifest(root)
    assert (raised.value.code, raised.value.status) == (code, 3)
    assert sorted(os.listdir(root)) == before


def test_things_that_are_no_files(tmp_path: Path) -> None:
    root = model(tmp_path)
    os.mkfifo(root / "fifo")
    (root / "link").symlink_to(tmp_path)
    with pytest.raises(ConvertError) as raised:
        manifest(root)
    assert [(item.code, item.where.file) for item in raised.value.findings] == [
        ("E_NOT_REGULAR", "fifo"), ("E_NOT_REGULAR", "link"),
    ]  # fmt: skip


def test_links_inside_are_listed_and_links_that_lead_out_refused(tmp_path: Path) -> None:
    root = model(tmp_path / "x")
    (root / "alias.json").symlink_to("config.json")
    assert manifest(root)["files"] == 3
    assert coreutils_accepts(root)
    put(tmp_path, {"secret": b""})
    (root / "leak").symlink_to("../secret")
    with pytest.raises(ConvertError) as raised:
        manifest(root)
    assert (raised.value.code, raised.value.findings[0].where.file) == ("E_PATH_ESCAPE", "leak")


@pytest.mark.parametrize("content", [b"{}", b"not json", b'{"schema": "convertkit.manifest/9"}', b'{"schema": "x"}'])
def test_a_manifest_of_another_kind_is_not_replaced(tmp_path: Path, content: bytes) -> None:
    root = model(tmp_path, {"MANIFEST.json": content})
    before = snapshot(root)
    with pytest.raises(ConvertError) as raised:
        manifest(root)
    assert (raised.value.code, raised.value.status) == ("E_OUT_EXISTS", 5)
    assert snapshot(root) == before


def test_broken_weights_get_no_manifest(tmp_path: Path) -> None:
    root = sharded(tmp_path)
    (root / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ConvertError) as raised:
        manifest(root)
    assert (raised.value.code, raised.value.findings[0].where.file) == (
        "E_SHARD_MISSING", "model-00002-of-00002.safetensors",
    )  # fmt: skip
    (root / "model.safetensors.index.json").unlink()
    with pytest.raises(ConvertError) as raised:
        manifest(root)
    assert [item.code for item in raised.value.findings] == ["E_SHARD_MISSING"]
    with pytest.raises(ConvertError) as raised:
        manifest(sharded(tmp_path / "two", total=3))
    assert (raised.value.code, raised.value.status) == ("E_INDEX_TOTAL", 1)


def test_folders_that_are_not_there_or_empty(tmp_path: Path) -> None:
    for path, code in ((tmp_path / "no", "E_NOT_FOUND"), (tmp_path, "E_MANIFEST_EMPTY")):
        with pytest.raises(ConvertError) as raised:
            manifest(path)
        assert raised.value.code == code
    put(tmp_path, {"file": b""})
    with pytest.raises(ConvertError) as raised:
        manifest(tmp_path / "file")
    assert raised.value.code == "E_NOT_REGULAR"


def test_sharding_does_not_change_content_ids(tmp_path: Path) -> None:
    parts = {name: TENSORS[name] for name in ("a.weight", "b.weight")}
    root = model(tmp_path / "one")
    put(root, {"model.safetensors": safetensors(parts)})
    manifest(root)
    manifest(sharded(tmp_path / "two"))
    for key in ("content_id", "content_id_named"):
        assert read(root)[key] == read(tmp_path / "two")[key]


def test_the_release_digest_is_the_in_toto_dirhash_of_the_listed_tree(tmp_path: Path) -> None:
    root = model(tmp_path)
    result = manifest(root)
    names = sorted(path.name for path in root.iterdir() if path.name != "SHA256SUMS")
    text = "".join(f"{sha256((root / name).read_bytes())}  {name}\n" for name in names)
    assert result["release_sha256"] == hashlib.sha256(text.encode()).hexdigest()


def test_heavy_packages_are_not_imported(tmp_path: Path) -> None:
    root = model(tmp_path)
    code = (
        "import sys; from convertkit.cli.main import main; "
        f"assert main(['manifest', {str(root)!r}]) == 0; assert main(['verify', {str(root)!r}]) == 0; "
        "print(sorted({'torch', 'numba', 'jsonschema', 'gguf', 'safetensors', 'rich'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"
