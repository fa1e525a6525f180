"""What of a folder is verified, what may lie in it unlisted, and what is never opened."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from convertkit.errors import ConvertError
from convertkit.verbs.manifest import manifest
from convertkit.verbs.verify import verify
from tests.release.makers import model, put, sha256, sharded
from tests.verbs.test_verify import found, two_folders


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return two_folders(tmp_path / "release")


def test_one_folder_of_two(release: Path) -> None:
    assert verify(release, only=["bf16/*"]).summary["files"] == 6  # and MANIFEST.json itself
    assert verify(release, only=["!bf16/*"]).status == 0
    assert verify(release / "bf16", strict=True).status == 0
    (release / "README.md").write_bytes(b"changed card")
    put(release, {"extra": b""})
    assert verify(release, only=["bf16/*"]).status == 0
    assert found(verify(release, only=["!bf16/*"])) == [("E_SIZE", "README.md"), ("E_FILE_EXTRA", "extra")]
    put(release, {"bf16/extra": b""})
    assert found(verify(release, only=["bf16/*"])) == [("E_FILE_EXTRA", "bf16/extra")]


def test_downloads_of_one_folder_only(release: Path, tmp_path: Path) -> None:
    part = tmp_path / "part"
    shutil.copytree(release / "bf16", part / "bf16")
    assert verify(part / "bf16").status == 0
    for name in ("MANIFEST.json", "SHA256SUMS"):
        shutil.copy(release / name, part)
    assert verify(part, only=["bf16/*"]).status == 0
    assert {code for code, _ in found(verify(part))} == {"E_FILE_MISSING"}
    rest = tmp_path / "rest"
    shutil.copytree(release, rest, ignore=shutil.ignore_patterns("bf16"))
    assert verify(rest, only=["!bf16/*"]).status == 0


def test_one_file_of_a_shard_set(tmp_path: Path) -> None:
    root = sharded(tmp_path)
    manifest(root)
    (root / "model-00002-of-00002.safetensors").unlink()
    assert verify(root, only=["model-00001*"]).status == 0
    assert verify(root / "model-00001-of-00002.safetensors").status == 0


def test_a_pattern_that_matches_nothing_is_an_error(release: Path) -> None:
    for pattern in ("bf17/*", "!gone", "BF16/*"):
        with pytest.raises(ConvertError) as raised:
            verify(release, only=[pattern])
        assert (raised.value.code, raised.value.status) == ("E_PATTERN_EMPTY", 2)


def test_allowed_extras_are_listed(release: Path) -> None:
    put(
        release,
        {".gitattributes": b"", ".cache/huggingface/x/y": b"", ".cache/other": b"", "log.txt": b"", ".git/HEAD": b""},
    )
    assert {path for _, path in found(verify(release))} == {".gitattributes", ".cache", ".git", "log.txt"}
    assert {path for _, path in found(verify(release, hub=True))} == {".cache", ".git", "log.txt"}
    result = verify(release, hub=True, allow_extra=["*.txt", ".git/*", ".cache/other"])
    assert result.status == 0
    assert set(result.summary["allowed"]) == {
        ".gitattributes", ".cache/huggingface/x/y", ".cache/other", ".git/HEAD", "log.txt",
    }  # fmt: skip
    for relaxed in ({"hub": True}, {"allow_extra": ["*.txt"]}):
        with pytest.raises(ConvertError) as raised:
            verify(release, strict=True, **relaxed)
        assert raised.value.status == 2


def test_a_listed_file_is_never_excused(release: Path) -> None:
    (release / "README.md").write_bytes(b"# Card\n")
    assert found(verify(release, allow_extra=["*"])) == [("E_DIGEST", "README.md")]


def test_an_unchecked_signature_is_a_warning(release: Path) -> None:
    put(release, {"model.sig": b"", "bf16/x.sig": b""})
    assert found(verify(release)) == [("E_FILE_EXTRA", "bf16/x.sig"), ("W_SIGNATURE_UNCHECKED", "model.sig")]
    (release / "bf16" / "x.sig").unlink()
    assert (verify(release).status, verify(release, strict=True).status) == (0, 1)


def test_names_that_differ_in_case_only(release: Path) -> None:
    (release / "README.md").rename(release / "Readme.md")
    result = verify(release)
    assert found(result) == [("E_FILE_MISSING", "README.md"), ("E_FILE_EXTRA", "Readme.md")]
    assert "'Readme.md'" in result.findings[0].message


def test_links(release: Path, tmp_path: Path) -> None:
    put(tmp_path, {"outside": (release / "README.md").read_bytes()})
    (release / "README.md").unlink()
    (release / "README.md").symlink_to("../outside")
    assert (verify(release).status, found(verify(release))) == (3, [("E_PATH_ESCAPE", "README.md")])
    (release / "README.md").unlink()
    (release / "README.md").symlink_to("README.md")
    assert (verify(release).status, found(verify(release))) == (3, [("E_PATH_LOOP", "README.md")])
    (release / "README.md").unlink()
    (release / "README.md").symlink_to("bf16/LICENSE")
    assert found(verify(release)) == [("E_SIZE", "README.md")]
    (release / "README.md").unlink()
    os.mkfifo(release / "README.md")
    assert (verify(release).status, found(verify(release))) == (3, [("E_NOT_REGULAR", "README.md")])


def test_a_snapshot_of_the_hub_cache(release: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    snapshot_ = repository / "snapshots" / "0123"
    for path in [path for path in release.rglob("*") if path.is_file()]:
        blob = repository / "blobs" / sha256(path.read_bytes())
        put(blob.parent, {blob.name: path.read_bytes()})
        link = snapshot_ / path.relative_to(release)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    assert verify(snapshot_, strict=True).status == 0
    assert verify(snapshot_ / "bf16", strict=True).status == 0
    outside = put(tmp_path, {"copy": (release / "README.md").read_bytes()})
    (snapshot_ / "README.md").unlink()
    (snapshot_ / "README.md").symlink_to(outside / "copy")
    assert found(verify(snapshot_)) == [("E_PATH_ESCAPE", "README.md")]


def test_nothing_is_opened_when_a_path_leads_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = model(tmp_path / "x")
    put(tmp_path, {"secret": b"x"})
    put(root, {"SHA256SUMS": f"{sha256(b'x')}  ../secret\n{'0' * 64}  config.json\n".encode()})
    opened: list[str] = []
    real = os.open

    def spy(path: Any, *rest: Any, **more: Any) -> int:
        opened.append(str(path))
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", spy)
    result = verify(root)
    assert (result.status, [item.code for item in result.findings]) == (3, ["E_MANIFEST_PATH"])
    assert opened
    assert not any("secret" in path for path in opened)
