"""A checkpoint in a subfolder is changed in place: manifests above never go on stating digests of before."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from convertkit.containers.folder import EDIT_FOLDER
from convertkit.errors import ConvertError
from convertkit.release.sums import read_sums
from convertkit.verbs.fix_keys import Keys, fix_keys
from convertkit.verbs.manifest import manifest
from convertkit.verbs.verify import verify
from tests.crash.test_in_place_kills import DeadlyEdit, Swift, killed
from tests.dialects.tiny import LM_CONFIG, causal_lm, write
from tests.release.makers import snapshot

RULE = "model.layers.{rest}=model.language_model.with_a_much_longer_name_than_before.layers.{rest}"
BLOCK = {"quant_method": "modelopt", "ignore": ["model.layers.0*"]}


def release(root: Path, inner: str = "bf16", own: bool = True) -> Path:
    """A root with weights and a whole checkpoint below it; the root's manifest lists both."""
    write(root, causal_lm(), LM_CONFIG)
    write(root / inner, causal_lm(), {**LM_CONFIG, "quantization_config": BLOCK})
    if own:
        manifest(root / inner)
    manifest(root)
    return root / inner


def edited(folder: Path, **words: Any) -> Keys:
    made = fix_keys(folder, in_place=True, rename=[RULE], **words)
    assert isinstance(made, Keys)
    return made


def codes(folder: Path, **words: Any) -> list[str]:
    return [item.code for item in verify(folder, **words).findings if item.severity == "error"]


@pytest.mark.parametrize("own", [True, False], ids=["own manifest", "root only"])
@pytest.mark.parametrize("inner", ["bf16", "some/where/bf16"])
def test_the_root_says_pending_and_lists_the_other_files_as_they_are(tmp_path: Path, inner: str, own: bool) -> None:
    folder = release(tmp_path / "release", inner, own)
    root = tmp_path / "release"
    before = json.loads((root / "MANIFEST.json").read_text())
    made = edited(folder)
    assert [item.code for item in made.findings if item.severity == "warning"] == ["W_MANIFEST_ABOVE"]
    document = json.loads((root / "MANIFEST.json").read_text())
    assert [row["path"] for row in document["pending"]] == [f"{inner}/model.safetensors"]
    assert f"{inner}/model.safetensors" not in read_sums((root / "SHA256SUMS").read_bytes())
    assert set(codes(root)) == {"E_DIGEST_PENDING"}
    assert document.get("plan") == before.get("plan")
    names = {row["name"] for row in document["tensors"] if row["file"] == f"{inner}/model.safetensors"}
    assert any("with_a_much_longer_name" in name for name in names)
    assert {row["sha256"] for row in document["tensors"]} == {row["sha256"] for row in before["tensors"]}
    manifest(folder) if own else None
    manifest(root)
    assert codes(root, strict=True) == []


def test_proved_digests_reach_the_root_at_once(tmp_path: Path) -> None:
    folder = release(tmp_path / "release")
    edited(folder, prove=True)
    assert codes(tmp_path / "release", strict=True) == []
    assert codes(folder, strict=True) == []


def test_sums_alone_lose_the_line(tmp_path: Path) -> None:
    folder = release(tmp_path / "release", own=False)
    root = tmp_path / "release"
    (root / "MANIFEST.json").unlink()
    sums = {
        name: digest for name, digest in read_sums((root / "SHA256SUMS").read_bytes()).items() if "MANIFEST" not in name
    }
    (root / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))
    edited(folder)
    after = read_sums((root / "SHA256SUMS").read_bytes())
    assert sums.keys() - after.keys() == {"bf16/model.safetensors"}
    assert "E_DIGEST" not in codes(root)


def test_a_chain_of_manifests_follows_to_the_top(tmp_path: Path) -> None:
    folder = release(tmp_path / "outer" / "release")
    write(tmp_path / "outer", causal_lm(), LM_CONFIG)
    manifest(tmp_path / "outer")
    made = edited(folder)
    assert [item.code for item in made.findings].count("W_MANIFEST_ABOVE") == 2
    for root in (tmp_path / "outer", tmp_path / "outer" / "release"):
        assert set(codes(root)) == {"E_DIGEST_PENDING"}
    for root in (folder, folder.parent, folder.parent.parent):
        manifest(root)
    assert codes(tmp_path / "outer", strict=True) == []


def test_a_manifest_above_that_lists_nothing_of_the_folder_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "release", causal_lm(), LM_CONFIG)
    manifest(tmp_path / "release")
    before = snapshot(tmp_path / "release")
    folder = write(tmp_path / "release" / "new", causal_lm(), LM_CONFIG)
    edited(folder)
    assert {name: data for name, data in snapshot(tmp_path / "release").items() if not name.startswith("new")} == before


def _link(path: Path) -> None:
    os.link(path, path.with_name("second"))


def _symlink(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


@pytest.mark.parametrize("spoil", [_link, _symlink])
def test_a_manifest_above_that_others_see_too_refuses_the_change(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    folder = release(tmp_path / "release")
    spoil(tmp_path / "release" / "MANIFEST.json")
    before = snapshot(tmp_path / "release")
    with pytest.raises(ConvertError, match="E_NOT_IN_PLACE"):
        edited(folder)
    assert snapshot(tmp_path / "release") == before


def test_two_changes_below_one_manifest_do_not_lose_each_other(tmp_path: Path) -> None:
    folder = release(tmp_path / "release")
    fd = os.open(tmp_path / "release", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(ConvertError, match="E_OUT_LOCKED"):
        edited(folder)
    os.close(fd)
    edited(folder)


def test_an_unfinished_change_above_comes_first(tmp_path: Path) -> None:
    folder = release(tmp_path / "release")
    (tmp_path / "release" / EDIT_FOLDER).mkdir()
    with pytest.raises(ConvertError, match="E_EDIT_UNFINISHED"):
        edited(folder)


@pytest.mark.slow
def test_a_kill_leaves_folder_and_root_old_or_new_together(tmp_path: Path) -> None:
    release(tmp_path / "source")
    old = snapshot(tmp_path / "source")
    shutil.copytree(tmp_path / "source", tmp_path / "undisturbed")
    tap = Swift()
    edited(tmp_path / "undisturbed" / "bf16", syscalls=tap)
    new = snapshot(tmp_path / "undisturbed")
    assert {name for name in new if new[name] != old[name]} >= {"MANIFEST.json", "SHA256SUMS", "bf16/model.safetensors"}
    for number in range(0, len(tap.names), 3):
        root = tmp_path / "victim"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(tmp_path / "source", root)
        assert killed(root / "bf16", DeadlyEdit(number, None, no_shift=False))
        pending = (root / "bf16" / EDIT_FOLDER).exists()
        undo = bool(number % 2)
        fix_keys(root / "bf16", in_place=True, recovery="undo" if undo else "finish", syscalls=Swift())
        assert snapshot(root) == ((old if undo else new) if pending else snapshot(root))
        assert snapshot(root) in (old, new)


def test_a_manifest_written_anew_after_a_kill_is_not_overwritten(tmp_path: Path) -> None:
    folder = release(tmp_path / "release")
    assert killed(folder, DeadlyEdit(_at_shift(tmp_path), None, no_shift=False))
    fresh = (tmp_path / "release" / "MANIFEST.json").read_bytes() + b"\n"
    (tmp_path / "release" / "MANIFEST.json").write_bytes(fresh)
    fix_keys(folder, in_place=True, recovery="finish")
    assert (tmp_path / "release" / "MANIFEST.json").read_bytes() == fresh


def _at_shift(tmp_path: Path) -> int:
    tap = Swift()
    edited(release(tmp_path / "other"), syscalls=tap)
    return tap.names.index("shift") + 1


@pytest.mark.parametrize("name", ["../../etc", "../x", "/etc/passwd", "..", "a/b", "../MANIFEST.json/x", ""])
@pytest.mark.parametrize("key", ["headers", "files"])
def test_a_journal_from_a_stranger_leads_nowhere(tmp_path: Path, name: str, key: str) -> None:
    folder = write(tmp_path / "a" / "b", causal_lm(), LM_CONFIG)
    journal = folder / EDIT_FOLDER
    journal.mkdir()
    row = {"name": name, "old": None, "new": None, "payload_bytes": 8}
    (journal / "edit.json").write_text(json.dumps({"version": 1, "headers": [], "files": [], key: [row]}))
    before = snapshot(tmp_path)
    for side in ("finish", "undo"):
        with pytest.raises(ConvertError, match="E_EDIT_BROKEN"):
            fix_keys(folder, in_place=True, recovery=side)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1}', '{"version": 1, "headers": 3}'])
def test_a_journal_that_is_no_journal_is_told(tmp_path: Path, text: str) -> None:
    folder = write(tmp_path / "m", causal_lm(), LM_CONFIG)
    (folder / EDIT_FOLDER).mkdir()
    (folder / EDIT_FOLDER / "edit.json").write_text(text)
    with pytest.raises(ConvertError, match="E_EDIT_BROKEN"):
        fix_keys(folder, in_place=True, recovery="finish")


def test_a_journal_never_writes_through_a_link(tmp_path: Path) -> None:
    folder = release(tmp_path / "m")
    assert killed(folder, DeadlyEdit(_at_shift(tmp_path), None, no_shift=False))
    weights = folder / "model.safetensors"
    weights.rename(tmp_path / "elsewhere")
    weights.symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    with pytest.raises(ConvertError, match="E_EDIT_BROKEN"):
        fix_keys(folder, in_place=True, recovery="undo")
    assert (tmp_path / "elsewhere").read_bytes() == before
