"""The demo does the whole line and replaces nothing but its own."""

import json
from pathlib import Path

import pytest

from convertkit.cli.main import main
from convertkit.errors import ConvertError
from convertkit.verbs.demo import EXPANDED, PACKED, PAGE, SOURCE, demo


def test_all_steps_pass_and_leave_the_evidence(tmp_path: Path) -> None:
    made = demo(tmp_path / "out", scale="tiny")
    assert made.status == 0
    assert [step.status for step in made.steps] == [0] * len(made.steps)
    assert {step.kind for step in made.steps} == {"generated", "written", "expanded", "gated", "audited", "verified"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {SOURCE, PACKED, EXPANDED, PAGE}
    for name, reports in {
        PACKED: ["FIDELITY_GATE.json", "LOAD_SHAPE_AUDIT.json", "MANIFEST.json", "SHA256SUMS"],
        EXPANDED: ["DEQUANT_REPORT.json", "LOAD_SHAPE_AUDIT.json", "MANIFEST.json", "SHA256SUMS"],
    }.items():
        assert all((tmp_path / "out" / name / report).is_file() for report in reports)
    report = json.loads((tmp_path / "out" / EXPANDED / "DEQUANT_REPORT.json").read_bytes())
    assert report["summary"]["expanded"] == 15
    assert report["summary"]["differing"] == 0


def test_expansion_is_what_the_pack_says(tmp_path: Path) -> None:
    made = demo(tmp_path / "out", scale="tiny")
    against = [step for step in made.steps if step.title == "gate: pack against expansion"]
    assert [step.facts["whole"]["exact"] for step in against] == [True]


def test_force_replaces_a_demo_and_keeps_what_else_is_there(tmp_path: Path) -> None:
    out = tmp_path / "out"
    demo(out, scale="tiny")
    before = (out / PACKED / "SHA256SUMS").read_bytes()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ConvertError, match="E_OUT_EXISTS"):
        demo(out, scale="tiny")
    demo(out, scale="tiny", force=True)
    assert (out / PACKED / "SHA256SUMS").read_bytes() == before
    assert (out / "notes.txt").read_text() == "mine"


def test_force_does_not_touch_a_folder_that_is_no_demo(tmp_path: Path) -> None:
    precious = tmp_path / SOURCE
    precious.mkdir()
    (precious / "model.safetensors").write_bytes(b"precious")
    (tmp_path / PAGE).write_text("# My models\n")
    with pytest.raises(ConvertError, match="E_OUT_EXISTS"):
        demo(tmp_path, scale="tiny", force=True)
    assert (precious / "model.safetensors").read_bytes() == b"precious"


def test_command_prints_text_for_people_and_json_for_programs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", str(tmp_path / "one"), "--scale", "tiny"]) == 0
    out, err = capfd.readouterr()
    assert out.rstrip().endswith("all steps passed")
    assert err == ""
    assert main(["demo", str(tmp_path / "two"), "--scale", "tiny", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["status"] == 0
    assert err == ""
