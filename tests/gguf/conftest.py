"""What the tests of GGUF share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gguf.models import write_model


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target of the drafters: config, tokenizer, weights. Nobody writes to it."""
    return write_model(tmp_path_factory.mktemp("target") / "target", "qwen3")
