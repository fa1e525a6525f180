"""One view per engine: what values do to a verdict, GGUF files, ranks, notes, and the text for people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from convertkit.cli.main import main
from convertkit.cli.text import PAGE_WIDTH
from convertkit.verbs.audit import audit
from convertkit.verbs.to_gguf import to_gguf
from tests.engines.cases import build, cases
from tests.engines.drafters import TARGET, draft, write
from tests.engines.target_cases import build_target, target_cases
from tests.gguf.models import write_model


def _target(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(TARGET)))
    return folder


@pytest.mark.parametrize("name", ["mixed, unequal scales", "ct mlp, unequal scales", "absolute d2t"])
def test_values_that_load_and_are_served_wrong(name: str, tmp_path: Path) -> None:
    folder = write(build(dict(cases())[name]), tmp_path / "d")
    view = audit(folder, engines=["vllm"], target_model=_target(tmp_path / "t")).document["engines"][0]
    assert view["verdict"] == "wrong"
    assert len(view["reasons"]) >= 1


def test_a_gguf_is_for_llamacpp(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target", "qwen3")
    to_gguf(write_model(tmp_path / "dflash", "dflash"), tmp_path / "d.gguf", target_model=target)
    views = audit(tmp_path / "d.gguf", engines=["all"]).document["engines"]
    found = {view["engine"]: view["verdict"] for view in views}
    assert (found["llama.cpp"], found["vllm"]) == ("loads", "unknown")


def test_kernels_ask_for_something(tmp_path: Path) -> None:
    folder = write(build(dict(cases())["mixed mlp"]), tmp_path / "d")
    view = audit(folder, engines=["vllm"], target_model=_target(tmp_path / "t")).document["engines"][0]
    assert any("compute capability 7.5" in note for note in view["notes"])
    assert any("padded at every call" in note for note in view["notes"])
    dense = audit(write(draft("dflash"), tmp_path / "e"), engines=["vllm"], target_model=tmp_path / "t")
    assert dense.document["engines"][0]["notes"] == []


@pytest.mark.parametrize(("ranks", "verdict"), [(1, "loads"), (2, "loads"), (4, "loads"), (3, "refused")])
def test_ranks_of_a_target(ranks: int, verdict: str, tmp_path: Path) -> None:
    folder = write(build_target(dict(target_cases())["qwen3, whole"]), tmp_path / "t")
    assert audit(folder, engines=["vllm"], tp=ranks).document["engines"][0]["verdict"] == verdict


def test_ranks_of_a_packed_drafter(tmp_path: Path) -> None:
    folder, target = write(build(dict(cases())["mixed mlp"]), tmp_path / "d"), _target(tmp_path / "t")
    verdicts = [
        audit(folder, engines=["vllm"], target_model=target, tp=ranks).document["engines"][0]["verdict"]
        for ranks in (1, 2, 4)
    ]
    assert verdicts == ["loads", "loads", "refused"]  # 96 columns of down_proj: 24 for each of four ranks


def test_text_puts_problems_first_and_fits_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, target = write(build(dict(cases())["dflash, no q"]), tmp_path / "d"), _target(tmp_path / "t")
    words = ["audit", str(folder), "--engine", "all", "--target-model", str(target)]
    assert main(words) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("error E_L")
    told = ("error", "warning", "note", "  fix", "  --", "  num", "  method", "  decoding")
    assert max(len(line) for line in lines if not line.startswith(told)) <= PAGE_WIDTH
    assert any(line.split()[:1] == ["vllm"] and "loads but wrong" in line for line in lines)
    assert main([*words, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert {"engines", "rows", "findings"} <= set(document)


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("mixed, unequal scales", {"gate_proj": 64.0, "up_proj": 1.0}),  # the largest multiplier, 1, is kept
        ("ct mlp, unequal scales", {"gate_proj": 1.0, "up_proj": 1 / 64}),  # the largest divisor, 64, is kept
    ],
)
def test_what_unequal_scales_are_served_as(name: str, served: dict[str, float], tmp_path: Path) -> None:
    findings = audit(write(build(dict(cases())[name]), tmp_path / "d")).findings
    found = next(item for item in findings if item.code == "E_FUSED_SCALE")
    assert found.data["served"] == served
