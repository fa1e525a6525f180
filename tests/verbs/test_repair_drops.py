"""``repair --drop`` and ``--keep``: tensors are left out by name, told one by one, and never in part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from convertkit.cli.main import main
from convertkit.conversion.repair_work import RepairRequest
from convertkit.errors import ConvertError
from convertkit.verbs.audit import audit
from convertkit.verbs.case import Result
from convertkit.verbs.planned import DryRun
from convertkit.verbs.repair import repair
from convertkit.verbs.verify import verify
from tests.dialects.tiny import LM_CONFIG, causal_lm, planes, spec, write
from tests.verbs.test_pack_and_expand import tensors

MTP = [spec("mtp.fc.weight", "BF16", 32, 64), spec("mtp.norm.weight", "BF16", 32)]
CONFIG = {**LM_CONFIG, "num_nextn_predict_layers": 1}


def with_prediction(folder: Path, **config: Any) -> Path:
    return write(folder / "s", [*causal_lm(), *MTP], {**CONFIG, **config})


def fixed(source: Path, out: Path, **words: Any) -> Path:
    made = repair(source, out, RepairRequest(**words))
    assert isinstance(made, Result)
    assert made.status == 0
    return out


def refused(source: Path, out: Path, **words: Any) -> ConvertError:
    with pytest.raises(ConvertError) as caught:
        repair(source, out, RepairRequest(**words))
    assert not out.exists()
    return caught.value


def test_dropped_tensors_are_told_one_by_one_and_the_others_keep_their_bytes(tmp_path: Path) -> None:
    source = with_prediction(tmp_path)
    out = fixed(source, tmp_path / "out", drop=("mtp.{rest}",), set_config=True)
    before, after = tensors(source), tensors(out)
    assert before.keys() - after.keys() == {item.name for item in MTP}
    assert all(before[name] == after[name] for name in after)
    assert json.loads((out / "config.json").read_text())["num_nextn_predict_layers"] == 0
    report = json.loads((out / "REPAIR_REPORT.json").read_text())
    gone = [(row["name"], row["repair"], row["note"]) for row in report["rows"] if row["promise"] == "dropped"]
    assert gone == [(item.name, "--drop", "left out by --drop 'mtp.{rest}'") for item in MTP]
    assert report["summary"]["dropped"] == 2
    assert audit(out).status == 0
    assert verify(out, recompute=True).status == 0


def test_what_the_config_still_promises_rejects_it(tmp_path: Path) -> None:
    error = refused(with_prediction(tmp_path), tmp_path / "out", drop=("mtp.{rest}",))
    assert (error.code, error.status) == ("E_ADVERTISED_ABSENT", 1)


def test_keep_is_drop_of_all_others(tmp_path: Path) -> None:
    source = with_prediction(tmp_path)
    out = fixed(source, tmp_path / "out", keep=("mtp.{rest}",))
    assert tensors(out) == {name: row for name, row in tensors(source).items() if name.startswith("mtp.")}
    reasons = {row["note"] for row in json.loads((out / "REPAIR_REPORT.json").read_text())["rows"] if row["note"]}
    assert reasons == {"not named by --keep"}


def test_a_leading_model_may_be_left_out(tmp_path: Path) -> None:
    source = write(tmp_path / "s", causal_lm(), LM_CONFIG)
    planned = repair(source, tmp_path / "out", RepairRequest(keep=("layers.0.{rest}",)), only_plan=True)
    assert isinstance(planned, DryRun)
    assert set(planned.plan.outputs) == {item.name for item in causal_lm() if item.name.startswith("model.layers.0.")}
    assert planned.status == 1  # the config still counts two layers


def test_a_head_that_is_left_out_is_not_taken_for_tied(tmp_path: Path) -> None:
    source = write(tmp_path / "s", causal_lm(), {**LM_CONFIG, "tie_word_embeddings": False})
    error = refused(source, tmp_path / "out", drop=("lm_head.{x}",), set_config=True)
    assert error.code == "E_HEAD_MISSING"


def test_a_part_of_a_packed_weight_is_never_left_out(tmp_path: Path) -> None:
    module = "model.layers.0.mlp.down_proj"
    source = write(tmp_path / "s", [*planes(module), spec("lm_head.weight", "BF16", 48, 32)], LM_CONFIG)
    error = refused(source, tmp_path / "out", drop=("{rest}.weight_scale_2",))
    assert (error.code, error.findings[0].where.tensor) == ("E_FAMILY_SPLIT", f"{module}.weight_scale_2")
    out = fixed(source, tmp_path / "out", drop=(f"{module}.{{x}}",), strip_quant_residue=False)
    assert set(tensors(out)) == {"lm_head.weight"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"drop": ("nothing.{rest}",)}, "E_PATTERN_EMPTY"),
        ({"drop": ("{rest}",)}, "E_USAGE"),
        ({"drop": ("mtp.*",)}, "E_PATTERN"),
        ({"drop": ("mtp.{rest}",), "keep": ("mtp.{rest}",)}, "E_USAGE"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(tmp_path: Path, words: dict[str, Any], code: str) -> None:
    error = refused(with_prediction(tmp_path), tmp_path / "out", **words)
    assert (error.code, error.status) == (code, 2)


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["repair", str(with_prediction(tmp_path)), str(tmp_path / "out"), "--drop", "mtp.{rest}", "--set-config"]
    assert main([*words, "--dry-run", "--json"]) == 0
    plan = json.loads(capfd.readouterr().out)
    assert [row["tensor"] for row in plan["drops"]] == [item.name for item in MTP]
    assert plan["audit"]["verdict"] == "pass"
    assert main(words) == 0
    assert "dropped: 2 tensors, listed in REPAIR_REPORT.json" in capfd.readouterr().out
