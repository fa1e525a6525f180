"""Generated models in the real classes: every name and shape is expected, none is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from convertkit.demo.drafters import KINDS
from convertkit.demo.generate import generate

pytestmark = pytest.mark.oracle

DRAFTERS = [kind for kind in KINDS if kind.startswith("dflash")]
MODELS = [kind for kind in KINDS if kind.startswith("qwen3")]


def load(module: Any, root: Path) -> None:
    """Load a folder into the class that its config names; every tensor must be used and none missing."""
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(root)
    made = getattr(module, config.architectures[0])
    _, info = made.from_pretrained(root, dtype="auto", output_loading_info=True)
    assert {name: value for name, value in info.items() if value} == {}


@pytest.mark.parametrize("kind", DRAFTERS)
def test_drafters_load(kind: str, tmp_path: Path) -> None:
    module = pytest.importorskip("dflash.model")
    generate(kind, tmp_path / "a")
    load(module, tmp_path / "a")


@pytest.mark.parametrize("kind", MODELS)
def test_models_load(kind: str, tmp_path: Path) -> None:
    module = pytest.importorskip("transformers")
    generate(kind, tmp_path / "a")
    load(module, tmp_path / "a")


def test_shards_load(tmp_path: Path) -> None:
    module = pytest.importorskip("transformers")
    generate("qwen3-moe", tmp_path / "a", max_shard_bytes=60_000)
    load(module, tmp_path / "a")
