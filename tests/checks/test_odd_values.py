"""Values that load and mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from convertkit.verbs.audit import audit
from tests.engines.drafters import TARGET, H, V, draft, value_of, write


def _codes(folder: Path, **more: object) -> dict[str, str]:
    return {item.code: item.where.tensor or "" for item in audit(folder, scan=True, **more).findings}  # type: ignore[arg-type]


def test_dead_rows_and_constant_matrices(tmp_path: Path) -> None:
    made = draft("dflash")
    fc, gate = made.specs["fc.weight"], made.specs["layers.0.mlp.gate_proj.weight"]
    rows = np.frombuffer(value_of(fc), "<u2").reshape(fc.shape).copy()
    rows[3] = 0x8000  # minus zero is zero
    made.values = {"fc.weight": rows.tobytes(), gate.name: b"\x80\x3f" * gate.elements}
    found = _codes(write(made, tmp_path / "d"))
    assert (found["W_DEAD_ROWS"], found["N_CONSTANT"]) == ("fc.weight", gate.name)
    assert not {"W_DEAD_ROWS", "N_CONSTANT"} & set(_codes(write(draft("dflash"), tmp_path / "whole")))


def test_copies_of_the_targets_tensors(tmp_path: Path) -> None:
    target = draft("dspark")
    target.config = dict(TARGET)
    target.specs = {}
    target.put("model.embed_tokens.weight", "BF16", V, H)
    target.put("lm_head.weight", "BF16", V, H)
    folder = write(target, tmp_path / "target")
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 8
    found = audit(write(draft("dspark"), tmp_path / "d"), scan=True, target_model=folder).findings
    copies = [item for item in found if item.code == "W_COPY_DIFFERS"]
    assert [item.where.tensor for item in copies] == ["embed_tokens.weight"]  # the head has the same name and bytes
    assert copies[0].data["elements"] == V * H


def test_copies_that_are_no_matrices_are_left_to_the_layout(tmp_path: Path) -> None:
    target, made = draft("dspark"), draft("dspark")
    target.config, target.specs = dict(TARGET), {}
    target.put("model.embed_tokens.weight", "BF16", V * H)
    made.put("embed_tokens.weight", "BF16", V * H)
    found = _codes(write(made, tmp_path / "d"), target_model=write(target, tmp_path / "target"))
    assert found["E_LAYOUT_SHAPE"] == "embed_tokens.weight"
    assert "W_COPY_DIFFERS" not in found
