"""Renaming where a checkpoint lies: what is written, what follows, and whose files are left alone."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from convertkit.conversion.syscalls import Kernel
from convertkit.errors import ConvertError
from convertkit.release.reports import validate_report
from convertkit.verbs.fix_keys import fix_keys
from convertkit.verbs.manifest import manifest
from convertkit.verbs.verify import verify
from tests.dialects.tiny import LM_CONFIG, causal_lm, write
from tests.verbs.test_fix_keys import LONG, NESTED, edited, refused, renamed, vision
from tests.verbs.test_pack_and_expand import tensors


@pytest.mark.parametrize("prove", [False, True])
def test_in_place_writes_headers_only_and_the_manifest_says_what_is_pending(tmp_path: Path, prove: bool) -> None:
    folder = write(tmp_path / "model", causal_lm(pack=("up_proj",)), LM_CONFIG)
    manifest(folder)
    payload = (folder / "model.safetensors").read_bytes()[-1000:]
    before = {row["name"]: row["sha256"] for row in json.loads((folder / "MANIFEST.json").read_text())["tensors"]}
    report = tmp_path / "RENAME_REPORT.json"
    made = edited(folder, rename=[LONG], prove=prove, report=report)
    assert made.action == "edited"
    assert (folder / "model.safetensors").read_bytes()[-1000:] == payload
    document = json.loads((folder / "MANIFEST.json").read_text())
    rule = LONG.split("=")[1].removesuffix(".layers.{rest}")
    after = {row["name"].replace(f"{rule}.layers", "model.layers"): row["sha256"] for row in document["tensors"]}
    assert after == before
    sums = (folder / "SHA256SUMS").read_text()
    found = verify(folder)
    if prove:
        assert "pending" not in document
        assert found.status == 0
    else:
        assert document["pending"] == [
            {"path": "model.safetensors", "size": (folder / "model.safetensors").stat().st_size}
        ]
        assert "model.safetensors" not in sums
        assert found.status == 1
        assert [item.code for item in found.findings if item.severity == "error"] == ["E_DIGEST_PENDING"]
        manifest(folder)
        assert verify(folder, strict=True).status == 0
    written = validate_report(report)
    assert written["summary"]["mode"] == "in place"
    [row] = written["summary"]["files"]
    assert (
        row["size_after"] - row["data_start_after"]
        == row["size_before"] - row["data_start_before"]
        == row["payload_bytes"]
    )
    assert (row["payload_sha256"] is not None) is prove
    assert {item["sha256"] for item in written["rows"]} == set(before.values())


def test_a_damaged_tensor_is_found_while_the_file_is_pending(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", causal_lm(), LM_CONFIG)
    manifest(folder)
    edited(folder, rename=[LONG])
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    found = [item for item in verify(folder).findings if item.severity == "error"]
    assert found[0].code == "E_DIGEST_PENDING"
    assert found[0].data["tensors_count"] == 1


def test_a_shorter_name_is_written_into_the_padding(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", causal_lm(), LM_CONFIG)
    size = (folder / "model.safetensors").stat().st_size
    made = edited(folder, rename=["model.layers.{rest}=m.{rest}"])
    assert [row["method"] for row in made.document["files"]] == ["in place"]
    assert (folder / "model.safetensors").stat().st_size == size


def test_slack_makes_a_longer_name_fit(tmp_path: Path) -> None:
    source = write(tmp_path / "source", causal_lm(), LM_CONFIG)
    out = renamed(source, tmp_path / "out", rename=["model.layers.{rest}=m.{rest}"], header_slack_bytes=8192)
    made = edited(out, rename=["m.{rest}=model.a_long_name_that_needs_room.layers.{rest}"])
    assert [row["method"] for row in made.document["files"]] == ["in place"]


def test_reports_about_the_bytes_before_are_removed(tmp_path: Path) -> None:
    source = write(tmp_path / "source", causal_lm(), LM_CONFIG)
    out = renamed(source, tmp_path / "out", rename=[LONG])
    made = edited(out, rename=[LONG], reverse=True)
    assert "W_REPORT_REMOVED" in [item.code for item in made.findings]
    assert not (out / "RENAME_REPORT.json").exists()
    assert not (out / "LOAD_SHAPE_AUDIT.json").exists()
    manifest(out)
    assert verify(out, strict=True).status == 0


def test_a_file_with_a_second_name_is_not_changed(tmp_path: Path) -> None:
    folder = vision(tmp_path / "model")
    os.link(folder / "model.safetensors", tmp_path / "other-name")
    error = refused(folder, rename=[NESTED], in_place=True)
    assert (error.code, error.status) == ("E_NOT_IN_PLACE", 5)


def test_a_symbolic_link_is_not_written_through(tmp_path: Path) -> None:
    folder = vision(tmp_path / "model")
    shutil.move(folder / "model.safetensors", folder / "real.bin")
    (folder / "model.safetensors").symlink_to("real.bin")
    assert refused(folder, rename=[NESTED], in_place=True).code == "E_NOT_IN_PLACE"


def test_a_snapshot_of_a_download_cache_is_not_changed(tmp_path: Path) -> None:
    cache = tmp_path / "models--org--name"
    snapshot_ = cache / "snapshots" / "abc"
    blobs = cache / "blobs"
    blobs.mkdir(parents=True)
    folder = vision(tmp_path / "model")
    snapshot_.mkdir(parents=True)
    for path in folder.iterdir():
        shutil.move(path, blobs / f"blob-{path.name}")
        (snapshot_ / path.name).symlink_to(blobs / f"blob-{path.name}")
    before = (blobs / "blob-model.safetensors").read_bytes()
    with pytest.raises(ConvertError, match="E_NOT_IN_PLACE"):
        fix_keys(snapshot_, rename=[NESTED], in_place=True)
    assert (blobs / "blob-model.safetensors").read_bytes() == before
    renamed(snapshot_, tmp_path / "out", rename=[NESTED])


def test_a_file_that_is_open_for_writing_elsewhere_is_left_alone(tmp_path: Path) -> None:
    folder = vision(tmp_path / "model")
    with (folder / "model.safetensors").open("r+b"):
        assert refused(folder, rename=[NESTED], in_place=True).code == "E_OUT_LOCKED"


def test_a_full_rewrite_keeps_the_mode_and_says_so(tmp_path: Path) -> None:
    class Rigid(Kernel):
        def shift(self, fd: int, size_bytes: int) -> None:
            raise OSError(95, "not supported")

    folder = write(tmp_path / "model", causal_lm(), LM_CONFIG)
    os.chmod(folder / "model.safetensors", 0o640)
    before = tensors(folder)
    made = edited(folder, rename=[LONG], syscalls=Rigid())
    assert "W_FULL_REWRITE" in [item.code for item in made.findings]
    assert stat.S_IMODE((folder / "model.safetensors").stat().st_mode) == 0o640
    edited(folder, rename=[LONG], reverse=True)
    assert tensors(folder) == before
