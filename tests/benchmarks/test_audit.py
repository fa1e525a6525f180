"""The published models as headers without weights: what the audit says of each, for all engines."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from benchmarks import audit as benchmark
from benchmarks import seeds
from convertkit.verbs.audit import audit


def verdicts(folder: Path, target: Path | None) -> dict[str, str]:
    made = audit(folder, engines=["all"], target_model=target)
    return {view["engine"]: view["verdict"] for view in made.document["engines"]}


def test_dflash_of_35b_a3b(tmp_path: Path) -> None:
    target = seeds.a3b_target(tmp_path / "target")
    for kind in ("dflash", "dflash-april"):
        found = verdicts(seeds.dflash(tmp_path / kind, kind), target)
        assert (found["vllm"], found["sglang"], found["llama.cpp"]) == ("loads", "loads", "refused")


def test_dflash2_of_27b_drafts_nine_tokens(tmp_path: Path) -> None:
    target = seeds.target_27b(tmp_path / "target")
    for pack in (False, True):
        folder = seeds.dflash2(tmp_path / str(pack), pack=pack)
        made = audit(folder, engines=["vllm"], target_model=target)
        view = made.document["engines"][0]
        assert (made.status, view["verdict"]) == (0, "loads")
        settings = {row["name"]: row["value"] for row in view["settings"]}
        assert settings == {"method": "dflash", "num_speculative_tokens": 9, "VLLM_USE_V2_MODEL_RUNNER": "1"}
        assert sum(row["count"] for row in made.document["rows"] if row["planes"]) == (15 if pack else 0)
        assert [item.code for item in made.findings if item.code == "W_PAIR"] == ["W_PAIR"]  # a window, a hybrid target


def test_dspark_in_speculators_form_loads_in_vllm_only(tmp_path: Path) -> None:
    found = verdicts(seeds.dspark(tmp_path / "draft"), seeds.a3b_target(tmp_path / "target"))
    assert (found["vllm"], found["sglang"], found["tensorrt-llm"]) == ("loads", "refused", "refused")


@pytest.mark.slow
def test_122880_expert_tensors(tmp_path: Path) -> None:
    folder = seeds.moe_nvfp4(tmp_path / "moe")
    with (folder / "model.safetensors").open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    assert sum(".experts." in name for name in header) == 122_880
    started = time.process_time()
    made = audit(folder, engines=["all"])
    seconds = time.process_time() - started
    assert (made.status, made.document["engines"][0]["verdict"]) == (0, "loads")
    assert made.document["summary"]["packed_linears"] == 30_880
    assert len(made.document["rows"]) < 100
    unit = min(benchmark.header_seconds(folder) for _ in range(3))
    assert seconds < 3 * (
        benchmark.LIMIT_FACTOR * unit + benchmark.LIMIT_SECONDS
    )  # the benchmark holds the limit itself
