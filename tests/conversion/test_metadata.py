"""Pairs in the headers of weight files travel with a conversion where the files agree about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from convertkit.containers.folder import open_checkpoint
from convertkit.containers.safetensors import encode_header
from convertkit.verbs.case import Result
from convertkit.verbs.convert import convert
from convertkit.verbs.dequant import dequant
from convertkit.verbs.pack import pack_nvfp4
from convertkit.verbs.planned import DryRun
from convertkit.verbs.release import release
from tests.dialects.tiny import LM_CONFIG, causal_lm
from tests.release.recipes import write_recipe


def sharded(folder: Path, *metadata: Mapping[str, str]) -> Path:
    """A language model of as many files as there are headers' pairs."""
    folder.mkdir()
    weight_map: dict[str, str] = {}
    for number, pairs in enumerate(metadata):
        header = encode_header(causal_lm()[number :: len(metadata)], pairs)
        name = f"part-{number}.safetensors"
        (folder / name).write_bytes(header.prefix + bytes(header.size_bytes - len(header.prefix)))
        weight_map |= dict.fromkeys((spec.name for spec in header.order), name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(LM_CONFIG))
    return folder


def pairs_of(folder: Path) -> list[Mapping[str, str]]:
    return [file.metadata for file in open_checkpoint(folder).files]


def test_pairs_are_kept_and_the_format_is_always_that_of_pytorch(tmp_path: Path) -> None:
    source = sharded(tmp_path / "source", {"run": "690", "format": "np"}, {"run": "690", "format": "np"})
    made = convert(source, tmp_path / "f16", to="f16")
    assert isinstance(made, Result)
    assert pairs_of(tmp_path / "f16") == [{"format": "pt", "run": "690"}]
    assert "N_METADATA" not in {item.code for item in made.findings}
    convert(source, tmp_path / "shards", to="f16", max_shard_bytes=8192)
    assert pairs_of(tmp_path / "shards") == [{"format": "pt", "run": "690"}] * 5


def test_pairs_that_files_do_not_share_are_left_and_named(tmp_path: Path) -> None:
    source = sharded(
        tmp_path / "source", {"run": "690", "part": "1"}, {"run": "690", "part": "2", "more": "x"}, {"run": "690"}
    )
    made = convert(source, tmp_path / "f16", to="f16")
    assert isinstance(made, Result)
    assert pairs_of(tmp_path / "f16") == [{"format": "pt", "run": "690"}]
    assert [item.data for item in made.findings if item.code == "N_METADATA"] == [{"keys": ["more", "part"]}]


def test_other_pairs_are_another_plan(tmp_path: Path) -> None:
    plans = []
    for run in ("690", "753"):
        planned = convert(sharded(tmp_path / run, {"run": run}), tmp_path / "out", to="f16", only_plan=True)
        assert isinstance(planned, DryRun)
        plans.append(planned.plan.fingerprint)
    assert len(set(plans)) == 2


def test_pairs_go_through_a_whole_release(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    weights = tmp_path / "drafter" / "model.safetensors"
    data = weights.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header["__metadata__"]["run"] = "690"
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    weights.write_bytes(len(text).to_bytes(8, "little") + text + data[start:])
    release(recipe, tmp_path / "out")
    assert pairs_of(tmp_path / "out") == pairs_of(tmp_path / "out" / "bf16") == [{"format": "pt", "run": "690"}]
    pack_nvfp4(tmp_path / "drafter", tmp_path / "pack")
    dequant(tmp_path / "pack", tmp_path / "dense")
    assert pairs_of(tmp_path / "dense") == [{"format": "pt", "run": "690"}]
