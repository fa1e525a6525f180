"""``audit --scan`` and ``inspect --scan`` say which dense weights lie on an NVFP4 grid."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from convertkit.demo.generate import generate
from convertkit.verbs.audit import audit
from convertkit.verbs.inspect import inspect
from tests.grids.grid_tensors import bf16, decoded, planes
from tests.verbs.test_scales import mlp


def test_a_drafter_on_the_grid_is_told_by_both(tmp_path: Path) -> None:
    generate("dflash2", tmp_path / "on", scale="tiny", on_grid=True)
    seen = [item for item in audit(tmp_path / "on", scan=True).findings if item.code == "N_ON_GRID"]
    assert {item.data["template"] for item in seen} >= {"layers.{i}.mlp.gate_proj", "layers.{i}.mlp.down_proj"}
    gate = next(item for item in seen if item.data["template"] == "layers.{i}.mlp.gate_proj")
    assert gate.data["count"] == 5
    assert gate.data["modules"][:2] == ["layers.0.mlp.gate_proj", "layers.0.mlp.up_proj"]
    assert "5 fused groups lie on an NVFP4 grid (10 BF16 weights)" in gate.message
    told = [item for item in inspect(tmp_path / "on", scan=True)["findings"] if item["code"] == "N_ON_GRID"]
    assert told == [item.as_json() for item in seen]
    assert audit(tmp_path / "on", scan=True).status == 0


def test_ordinary_weights_and_a_look_at_headers_tell_nothing(tmp_path: Path) -> None:
    generate("dflash2", tmp_path / "off", scale="tiny")
    generate("dflash2", tmp_path / "on", scale="tiny", on_grid=True)
    for findings in (
        audit(tmp_path / "off", scan=True).findings,
        audit(tmp_path / "on").findings,
    ):
        assert not {item.code for item in findings} & {"N_ON_GRID", "W_PART_GRID"}
    assert "N_ON_GRID" not in {item["code"] for item in inspect(tmp_path / "on")["findings"]}


def test_a_weight_that_is_partly_on_a_grid_is_noted(tmp_path: Path) -> None:
    values = decoded(planes("random", (64, 64), 5))
    values[7, 32:48] = bf16(np.random.default_rng(0).standard_normal((1, 16)))
    found = audit(mlp(tmp_path, down_proj=values), scan=True)
    (item,) = [item for item in found.findings if item.code == "W_PART_GRID"]
    assert item.severity == "note"
    assert item.data["tensors"][0]["off_grid"] == [[7, 2]]


def test_two_grids_in_one_weight_are_named_with_their_rows(tmp_path: Path) -> None:
    one, two = decoded(planes("amax", (64, 64), 1)), decoded(planes("random", (64, 64), 2))
    found = audit(mlp(tmp_path, down_proj=np.concatenate([one, two])), scan=True)
    (item,) = [item for item in found.findings if item.code == "W_PART_GRID"]
    assert item.message == "its blocks lie on two grids"
    assert len(item.data["grids"]) == 2
    spans = item.data["tensors"][0]["rows"]
    assert sorted(spans) == [[0, 63], [64, 127]]


def test_weights_expanded_from_mxfp4_lie_on_an_nvfp4_grid(tmp_path: Path) -> None:
    values = decoded(planes("MXFP4", (64, 64), 4))
    found = audit(mlp(tmp_path, down_proj=values), scan=True)
    (item,) = [item for item in found.findings if item.code == "N_ON_GRID"]
    assert item.data["modules"] == ["model.layers.0.mlp.down_proj"]
