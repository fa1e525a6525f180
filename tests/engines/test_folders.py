"""Folders whose files do not belong together, or cannot be read: the audit against three engines' own loaders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from convertkit.engines.files import CHOICES, RULES, chosen
from convertkit.errors import ConvertError
from convertkit.verbs.audit import AuditResult, audit
from tests.engines.cases import slug
from tests.engines.drafters import TARGET
from tests.engines.folder_cases import folder_cases
from tests.engines.loads import read_golden

CASES = dict(folder_cases())
VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23", "transformers": "5.19.0"}
RUNS: Mapping[str, Mapping[str, Any]] = {
    engine: {**read_golden(f"{engine}-{version}-folders")["cases"],
             **read_golden(f"{engine}-{version}-model-folders")["cases"]}
    for engine, version in VERSIONS.items()
}  # fmt: skip
NO_WEIGHTS = {"dflash, upper case", "qwen3, upper case"}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    (folder / "config.json").write_text(json.dumps(dict(TARGET)))
    return folder


def holes(run: Mapping[str, Any]) -> bool:
    """Whether a run left a parameter open that is read and that the target does not lend."""
    left = {*run.get("unfilled", ()), *run.get("partly filled", ()), *run.get("missing", ())}
    return bool(left - {*run.get("lent", ()), "model.mask_embedding"})


def dropped(run: Mapping[str, Any]) -> bool:
    return bool(run.get("unused") or run.get("unexpected"))


def expected(run: Mapping[str, Any]) -> str:
    return "refused" if not run["loads"] else "wrong" if holes(run) or dropped(run) else "loads"


def audited(name: str, engines: list[str], target: Path, folder: Path) -> AuditResult:
    alone = not name.startswith("dflash")
    return audit(CASES[name](folder), engines=engines, target_model=None if alone else target)


@pytest.mark.parametrize("name", sorted(set(CASES) - NO_WEIGHTS))
def test_agrees_with_the_loaders(name: str, target: Path, tmp_path: Path) -> None:
    made = audited(name, list(VERSIONS), target, tmp_path / "f")
    found = {view["engine"]: view["verdict"] for view in made.document["engines"]}
    assert found == {engine: expected(runs[slug(name)]) for engine, runs in RUNS.items()}
    assert made.status == (3 if any(item.code.startswith(STRICT) for item in made.findings) else made.status)


STRICT = ("E_AMBIGUOUS", "E_INDEX", "E_SHARD", "E_ST_", "E_JSON")
"""Codes of folders that convertkit itself refuses."""


@pytest.mark.parametrize("name", sorted(NO_WEIGHTS))
def test_without_weights_there_is_nothing_to_ask_about(name: str, target: Path, tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="E_NO_WEIGHTS"):
        audited(name, ["vllm"], target, tmp_path / "f")
    assert all(not runs[slug(name)]["loads"] for runs in RUNS.values())


def test_every_case_was_run() -> None:
    for runs in RUNS.values():
        assert set(runs) == {slug(name) for name in CASES}
    assert len(CASES) > 120


def test_every_rule_is_named_by_some_choice(target: Path, tmp_path: Path) -> None:
    """Each rule of files is what some folder rests on, but those of TensorRT-LLM, which is read only."""
    named = set()
    for number, name in enumerate(sorted(set(CASES) - NO_WEIGHTS)):
        made = audited(name, list(VERSIONS), target, tmp_path / str(number))
        named |= {item.data.get("rule") for item in made.findings if item.data}
    assert {rule for rule in RULES if not rule.startswith("tensorrt")} <= named


def test_without_an_engine_a_refused_folder_stays_refused(tmp_path: Path) -> None:
    folder = CASES["dflash, two files, no index"](tmp_path / "f")
    with pytest.raises(ConvertError, match="E_AMBIGUOUS_WEIGHTS"):
        audit(folder)
    assert audit(folder, engines=["vllm"]).document["verdict"] == "fail"


def test_order_of_files() -> None:
    names = ["model-10.safetensors", "model-2.safetensors"]
    assert chosen("vllm", names, {}).files == ("model-2.safetensors", "model-10.safetensors")
    assert chosen("sglang", names, {}).files == ("model-10.safetensors", "model-2.safetensors")
    assert set(CHOICES) == {"vllm", "sglang", "llama.cpp", "tensorrt-llm", "transformers"}
