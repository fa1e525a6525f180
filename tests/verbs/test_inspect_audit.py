"""The two verbs that only look: what they say, and that they write nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from convertkit.cli.main import main
from convertkit.cli.runner import document_of
from convertkit.cli.text import PAGE_WIDTH
from convertkit.errors import ConvertError
from convertkit.verbs.audit import audit
from convertkit.verbs.inspect import inspect
from tests.dialects.tiny import MLP, causal_lm, dflash, write

FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_inspect_counts_logical_parameters() -> None:
    dense = inspect(FIXTURES / "qwen3-tiny")
    packed = inspect(FIXTURES / "modelopt-export-tiny")
    grids = {row["grid"]: row for row in packed["grids"]}
    assert grids["nvfp4"]["parameters"] == sum(
        row["count"] * row["shapes"][0][0] * row["shapes"][0][1] for row in packed["packed"]
    )
    assert packed["parameters"] == sum(row["parameters"] for row in packed["grids"])
    assert dense["grids"][0]["share"] == 1.0
    assert (packed["dialect"], packed["quantization"]["algorithms"]) == ("modelopt", ["W4A16_NVFP4"])


def test_packing_changes_no_parameter_count(tmp_path: Path) -> None:
    one = inspect(write(tmp_path / "a", dflash()))
    two = inspect(write(tmp_path / "b", dflash(MLP)))
    assert one["parameters"] == two["parameters"]
    assert one["size_bytes"] > two["size_bytes"]
    assert (one["packable"]["by_default"], two["packable"]["by_default"]) == (6, 0)


def test_inspect_lists_tensors_by_family_on_request() -> None:
    document = inspect(FIXTURES / "dflash2-tiny", tensors=True)
    assert sum(row["count"] for row in document["families"]) == document["tensors"] == 81
    roles = {row["template"]: row["role"] for row in document["families"]}
    assert roles["fc.weight"] == "fusion"
    assert roles["layers.{i}.mlp.up_proj.weight"] == "mlp"
    assert roles["candidate_selector.successor_codebook"] == "codebook"
    assert "families" not in inspect(FIXTURES / "dflash2-tiny")
    packed = inspect(FIXTURES / "modelopt-export-tiny", tensors=True)["families"]
    assert {row["role"] for row in packed if ".mlp." in row["template"]} == {"mlp"}


def test_inspect_shows_faults_instead_of_failing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specs = [item for item in causal_lm(MLP) if not item.name.endswith("0.mlp.up_proj.weight_scale")]
    write(tmp_path, specs, {"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A17"}})
    assert main(["inspect", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "error E_PACK_MISSING" in text
    assert "error E_QCONFIG" in text


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.iterdir() if path.is_dir()))
def test_text_fits_the_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(FIXTURES / name), "--tensors"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("path")
    assert max(len(line) for line in lines if not line.startswith(("error", "warning", "note"))) <= PAGE_WIDTH


def test_json_output_is_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(FIXTURES / "dflash-tiny"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == document_of("inspect", inspect(FIXTURES / "dflash-tiny"))


def test_neither_verb_imports_torch_or_numba() -> None:
    code = (
        "import sys; from convertkit.cli.main import main; "
        f"main(['inspect', {str(FIXTURES / 'dflash-tiny')!r}, '--quiet']); "
        f"main(['audit', {str(FIXTURES / 'modelopt-export-tiny')!r}, '--quiet']); "
        "print(sorted({'torch', 'numba', 'jsonschema', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_audit_without_report_writes_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", dflash(MLP))
    before = sorted(path.name for path in folder.iterdir())
    result = audit(folder)
    assert sorted(path.name for path in folder.iterdir()) == before
    assert result.status == 1  # packed, and no config says so
    assert result.document["verdict"] == "fail"
    assert [item["code"] for item in result.document["findings"] if item["severity"] == "error"] == [
        "E_QCONFIG_MISMATCH"
    ]


def test_audit_report_names_files_with_digests_and_no_path(tmp_path: Path) -> None:
    report = tmp_path / "LOAD_SHAPE_AUDIT.json"
    result = audit(FIXTURES / "modelopt-export-tiny", report=report, scan=True)
    assert result.status == 0
    data = report.read_bytes()
    document = json.loads(data)
    assert document == result.document
    assert (document["schema"], document["verdict"]) == ("convertkit.load-shape-audit/1", "pass")
    assert [row["path"] for row in document["output"]["files"]] == [
        "config.json",
        "hf_quant_config.json",
        "model.safetensors",
    ]
    assert str(FIXTURES).encode() not in data
    audit(FIXTURES / "modelopt-export-tiny", report=report, scan=True, workers=2)
    assert report.read_bytes() == data


def test_audit_report_must_be_json_and_its_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConvertError) as caught:
        audit(FIXTURES / "dflash-tiny", report=tmp_path / "report.txt")
    assert caught.value.status == 2
    with pytest.raises(ConvertError) as caught:
        audit(FIXTURES / "dflash-tiny", report=tmp_path / "no" / "report.json")
    assert caught.value.code == "E_WRITE"


def test_audit_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(FIXTURES / "modelopt-export-tiny"), "--scan"]) == 0
    text = capsys.readouterr().out
    assert "14 packed linears in 4 fused groups" in text
    assert "passed: 0 errors, 0 warnings" in text
    assert main(["audit", str(FIXTURES / "modelopt-export-mixed-fp8-tiny"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "fail"
