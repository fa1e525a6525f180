"""Repairs of the shard index and of tensors that several files hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from convertkit.conversion.repair_work import RepairRequest
from convertkit.errors import ConvertError
from convertkit.verbs.audit import audit
from convertkit.verbs.case import Result
from convertkit.verbs.manifest import manifest
from convertkit.verbs.repair import Untouched, repair
from convertkit.verbs.verify import verify
from tests.dialects.tiny import LM_CONFIG, causal_lm, write
from tests.release.makers import safetensors
from tests.verbs.test_pack_and_expand import tensors
from tests.verbs.test_repair import fixed, refused


def shards(
    root: Path, *files: Mapping[str, tuple[str, tuple[int, ...], bytes]], index: Mapping[str, str] | None
) -> Path:
    root.mkdir()
    for number, held in enumerate(files, start=1):
        (root / f"model-{number:05d}-of-{len(files):05d}.safetensors").write_bytes(safetensors(held))
    if index is not None:
        document = {"metadata": {"total_size": 1}, "weight_map": dict(index)}
        (root / "model.safetensors.index.json").write_text(json.dumps(document))
    (root / "config.json").write_text("{}")
    return root


A = {"a.weight": ("F32", (2,), b"abcdefgh")}
B = {"b.weight": ("F32", (2,), b"ijklmnop")}
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_a_missing_index_is_made_from_the_headers(tmp_path: Path) -> None:
    out = fixed(tmp_path, shards(tmp_path / "source", A, B, index=None), rebuild_index=True, shard_bytes=8)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index == {"metadata": {"total_size": 16}, "weight_map": {"a.weight": ONE, "b.weight": TWO}}
    assert tensors(out) == A | B


def test_an_index_of_other_shards_is_replaced_and_what_it_lost_is_named(tmp_path: Path) -> None:
    source = shards(tmp_path / "source", A, B, index={"a.weight": ONE, "b.weight": ONE, "c.weight": TWO})
    assert refused(tmp_path, source, set_config=True).code == "E_INDEX_MISMATCH"
    out = tmp_path / "out"
    made = repair(source, out, RepairRequest(rebuild_index=True))
    assert isinstance(made, Result)
    assert [item.data["tensors"] for item in made.findings if item.code == "W_INDEX_LOST"] == [["c.weight"]]
    assert tensors(out) == A | B


def test_an_index_that_is_no_json_is_replaced(tmp_path: Path) -> None:
    source = shards(tmp_path / "source", A, B, index={})
    (source / "model.safetensors.index.json").write_text("{'not': json")
    assert tensors(fixed(tmp_path, source, rebuild_index=True)) == A | B


def test_a_shard_that_is_not_there_cannot_be_made_up(tmp_path: Path) -> None:
    source = shards(tmp_path / "source", A, B, index=None)
    (source / TWO).unlink()
    error = refused(tmp_path, source, rebuild_index=True)
    assert (error.code, error.findings[0].where.file) == ("E_SHARD_MISSING", TWO)


def test_each_missing_shard_is_named_once(tmp_path: Path) -> None:
    source = shards(tmp_path / "source", A, {}, B, {}, index=None)
    for number in (2, 4):
        (source / f"model-{number:05d}-of-00004.safetensors").unlink()
    error = refused(tmp_path, source, rebuild_index=True)
    assert [item.where.file for item in error.findings] == [
        "model-00002-of-00004.safetensors", "model-00004-of-00004.safetensors",
    ]  # fmt: skip


def test_equal_duplicates_are_kept_once_and_different_ones_refused(tmp_path: Path) -> None:
    source = shards(tmp_path / "source", A, B | A, index={"a.weight": ONE, "b.weight": TWO})
    assert refused(tmp_path, source, rebuild_index=True).code == "E_INDEX_MISMATCH"
    other = shards(tmp_path / "other", A, B | {"a.weight": ("F32", (2,), b"ABCDEFGH")}, index=None)
    assert refused(tmp_path, other, dedupe=True).code == "E_DUPLICATE_DIFFERS"
    assert tensors(fixed(tmp_path, source, dedupe=True, rebuild_index=True)) == A | B


def test_an_index_that_is_right_is_nothing_to_do(tmp_path: Path) -> None:
    source = shards(tmp_path / "source", A, B, index={"a.weight": ONE, "b.weight": TWO})
    (source / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 16}, "weight_map": {"a.weight": ONE, "b.weight": TWO}})
    )
    assert isinstance(repair(source, tmp_path / "out", RepairRequest(rebuild_index=True)), Untouched)
    plain = write(tmp_path / "one", causal_lm(), LM_CONFIG)
    assert isinstance(repair(plain, tmp_path / "out", RepairRequest(rebuild_index=True)), Untouched)
    assert not (tmp_path / "out").exists()


def test_a_stray_file_is_told_before_it_is_taken_in(tmp_path: Path) -> None:
    source = shards(tmp_path / "source", A, B, index={"a.weight": ONE, "b.weight": TWO})
    (source / "consolidated.safetensors").write_bytes(safetensors({"x": ("F32", (2,), b"abcdefgh")}))
    made = repair(source, tmp_path / "out", RepairRequest(rebuild_index=True))
    assert isinstance(made, Result)
    [item] = [item for item in made.findings if item.code == "W_SHARD_UNLISTED"]
    assert item.where.file == "consolidated.safetensors"
    assert "x" in tensors(tmp_path / "out")


@pytest.mark.parametrize("words", [{"rebuild_index": True}, {"dedupe": True}, {"merge": True}])
def test_a_half_changed_folder_is_not_repaired(tmp_path: Path, words: dict[str, bool]) -> None:
    source = shards(tmp_path / "source", A, B, index={"a.weight": ONE, "b.weight": TWO})
    (source / ".convertkit-edit").mkdir()
    assert refused(tmp_path, source, **words).code == "E_EDIT_UNFINISHED"


def test_shards_without_their_index_are_neither_listed_nor_audited(tmp_path: Path) -> None:
    source = shards(tmp_path / "source", A, B, index=None)
    for verb in (manifest, audit):
        with pytest.raises(ConvertError, match="E_AMBIGUOUS_WEIGHTS"):
            verb(source)
    fixed(tmp_path, source, rebuild_index=True)
    manifest(tmp_path / "out")
    assert verify(tmp_path / "out", strict=False).status == 0
