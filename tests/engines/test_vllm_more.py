"""The audit of folders against vLLM 0.33.0's own loader, where two or three faults meet
(``golden/vllm-0.33.0-more.json``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from convertkit.checks import engines as checks
from convertkit.engines.model import Load
from convertkit.verbs.audit import audit
from tests.engines.cases import build, slug
from tests.engines.drafters import TARGET, write
from tests.engines.loads import by_outcome, check_holes, check_start, read_golden
from tests.engines.more_cases import more_cases

GOLDEN = read_golden("vllm-0.33.0-more")
CASES = dict(more_cases())
HARMLESS = ("training only", "the features are off", "unexpected scale")
"""Why a tensor is dropped that the model does without."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    (folder / "config.json").write_text(json.dumps(dict(TARGET)))
    return folder


def test_every_case_was_run() -> None:
    assert {slug(name) for name in CASES} == set(GOLDEN["cases"])
    assert len(CASES) == len(GOLDEN["cases"]) > 100


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_loader(name: str, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[Load] = []
    made = checks._load

    def kept(*given: Any) -> Load:
        loads.append(made(*given))
        return loads[-1]

    monkeypatch.setattr(checks, "_load", kept)
    view: dict[str, Any] = audit(
        write(build(CASES[name]), tmp_path / "draft"), engines=["vllm"], target_model=target
    ).document["engines"][0]
    load, run = loads[0], GOLDEN["cases"][slug(name)]
    if not check_start(load, run):
        assert view["verdict"] == "refused"
        return
    holes = check_holes(load, run, by_outcome(load, "defaulted", "borrowed"))
    assert by_outcome(load, "borrowed") == set(run["lent"])
    needed = [stored for stored in run["unused"] if load.fates[stored].skipped not in HARMLESS]
    if holes or needed:
        assert view["verdict"] == "wrong"
