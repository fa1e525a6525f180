"""Renaming beside odd files: indexes of other names, files of rules and references."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from convertkit.dialects.spelling import spelling_of
from convertkit.verbs.case import Result
from convertkit.verbs.fix_keys import fix_keys
from tests.dialects.tiny import LM_CONFIG, Plane, causal_lm, planes, spec, write
from tests.release.makers import safetensors
from tests.verbs.test_fix_keys import edited, refused, renamed
from tests.verbs.test_pack_and_expand import tensors


@pytest.mark.parametrize("in_place", [False, True])
def test_an_index_keeps_its_name_and_what_else_it_says(tmp_path: Path, in_place: bool) -> None:
    """Also that of one shard, without which no reader finds it."""
    source = tmp_path / "source"
    source.mkdir()
    name, index = "model-00001-of-00001.safetensors", "diffusion_pytorch_model.safetensors.index.json"
    (source / name).write_bytes(safetensors({"a.weight": ("F32", (2,), b"abcdefgh")}))
    document = {"metadata": {"total_size": 8, "made": "by x"}, "weight_map": {"a.weight": name}, "more": [1]}
    (source / index).write_text(json.dumps(document))
    (source / "config.json").write_text("{}")
    out = edited(source, rename=["a.{x}=b.{x}"]) and source if in_place else None
    out = out or renamed(source, tmp_path / "out", rename=["a.{x}=b.{x}"])
    assert json.loads((out / index).read_text()) == {**document, "weight_map": {"b.weight": name}}
    assert [path.name for path in out.glob("*.index.json")] == [index]
    assert tensors(out) == {"b.weight": ("F32", (2,), b"abcdefgh")}


def test_a_file_of_rules_may_come_from_another_system(tmp_path: Path) -> None:
    source = write(tmp_path / "source", causal_lm(), LM_CONFIG)
    (tmp_path / "rules").write_bytes(b"\xef\xbb\xbf# from elsewhere\r\nlm_head.{x}=head.{x}\r\n\r\n")
    out = renamed(source, tmp_path / "out", rules=tmp_path / "rules")
    assert "head.weight" in tensors(out)


def test_a_reference_that_names_nothing_is_no_reference(tmp_path: Path) -> None:
    source = write(tmp_path / "source", causal_lm(), LM_CONFIG)
    (tmp_path / "names").write_text("# nothing\n")
    assert refused(source, tmp_path / "out", like=tmp_path / "names").code == "E_USAGE"


@pytest.mark.parametrize("dialect", ["modelopt", "compressed-tensors"])
@pytest.mark.parametrize("form", ["names", "index", "folder"])
def test_a_packed_reference_is_understood_in_every_form(tmp_path: Path, dialect: str, form: str) -> None:
    """A list of names has the planes of packed linears, which count as one weight."""
    over: dict[str, Plane | None] = {spelling_of(dialect).input_scale: ("F32", ())}
    specs = [item for e in range(2) for item in planes(f"model.layers.0.mlp.experts.{e}.up_proj", dialect, over=over)]
    specs += [spec("model.visual.blocks.0.attn.qkv.weight", "BF16", 12, 16)]
    right = write(tmp_path / "right", specs, LM_CONFIG)
    names = [item.name for item in specs]
    reference = {"folder": right, "names": tmp_path / "names", "index": tmp_path / "x.safetensors.index.json"}[form]
    (tmp_path / "names").write_text("\n".join(names))
    (tmp_path / "x.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(names, "a")}))
    broken = renamed(right, tmp_path / "broken", presets=["nested-vision"], reverse=True)
    made = fix_keys(broken, tmp_path / "out", like=reference)
    assert isinstance(made, Result)
    assert len(made.plan.parameters["rules"]) == 1
    assert "W_LIKE_LEFT" not in [item.code for item in made.findings]
    assert tensors(tmp_path / "out") == tensors(right)


def test_a_file_of_the_user_under_a_report_s_name_stays(tmp_path: Path) -> None:
    source = write(tmp_path / "source", causal_lm(), LM_CONFIG)
    (source / "REPAIR_REPORT.json").write_text('{"notes": "mine"}')
    (source / "REPAIR_REPORT.rows.jsonl").write_text("mine too")
    made = edited(source, rename=["lm_head.{x}=head.{x}"])
    assert (source / "REPAIR_REPORT.json").read_text() == '{"notes": "mine"}'
    assert (source / "REPAIR_REPORT.rows.jsonl").read_text() == "mine too"
    assert "W_REPORT_REMOVED" not in [item.code for item in made.findings]
