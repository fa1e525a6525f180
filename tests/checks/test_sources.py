"""What each engine would load of a folder on the disk, of one that is only planned, of one file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from convertkit.checks.sources import Sources
from convertkit.containers.folder import open_any
from convertkit.containers.stored import read_any_folder
from convertkit.conversion.foreseen import foresee
from convertkit.conversion.repair_work import RepairRequest
from convertkit.verbs.planned import DryRun
from convertkit.verbs.repair import repair
from tests.dialects.tiny import LM_CONFIG, causal_lm, write

ENGINES = ("vllm", "sglang", "transformers")
NAMES = sorted(spec.name for spec in causal_lm())


def names(sources: Sources, engine: str) -> list[str]:
    return [spec.name for spec in sources.of(engine).tensors]


def test_engines_that_read_the_same_files_share_a_source(tmp_path: Path) -> None:
    folder = write(tmp_path / "s", causal_lm(), LM_CONFIG)
    sources = Sources(open_any(folder))
    assert sources.of("vllm") is sources.of("sglang") is sources.of("transformers")
    assert names(sources, "vllm") == NAMES


def test_a_file_that_no_index_names_is_read_by_some(tmp_path: Path) -> None:
    """With the index of another name every file is read but by transformers, which finds no model at all."""
    folder = write(tmp_path / "s", causal_lm(), LM_CONFIG)
    shutil.copy(folder / "model.safetensors", folder / "other.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(NAMES, "model.safetensors")}
    (folder / "x.safetensors.index.json").write_text(json.dumps(index))
    sources = Sources(open_any(folder))
    assert len(names(sources, "vllm")) == 2 * len(NAMES)
    assert names(sources, "transformers") == NAMES


@pytest.mark.parametrize("shard_bytes", [None, 8192])
def test_a_planned_folder_is_read_as_it_will_be(tmp_path: Path, shard_bytes: int | None) -> None:
    source = write(tmp_path / "s", causal_lm(), LM_CONFIG)
    request = RepairRequest(shard_bytes=shard_bytes, metadata={"a": "b"})
    seen = repair(source, tmp_path / "out", request, only_plan=True)
    assert isinstance(seen, DryRun)
    planned = Sources(foresee(seen.plan))
    repair(source, tmp_path / "out", request)
    made = Sources(open_any(tmp_path / "out"))
    for engine in ENGINES:
        assert names(planned, engine) == names(made, engine)
        assert planned.of(engine).config == made.of(engine).config
        assert planned.of(engine).refusal is None is made.of(engine).refusal


def test_one_file_is_read_without_what_lies_beside_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "s", causal_lm(), LM_CONFIG)
    found = Sources(open_any(folder / "model.safetensors")).of("vllm")
    assert (found.config, found.refusal, len(found.tensors)) == ({}, None, len(causal_lm()))


def test_what_is_no_regular_file_cannot_be_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "s", causal_lm(), LM_CONFIG)
    (folder / "a.safetensors").mkdir()
    (folder / "b.safetensors").symlink_to(folder / "nothing")
    found = read_any_folder(folder)
    assert found.names == ("a.safetensors", "b.safetensors", "model.safetensors")
    assert found.unreadable["a.safetensors"] == "not a regular file"
    assert "No such file" in found.unreadable["b.safetensors"]
