"""What a person watches: the bytes that are told as done are the bytes that were announced."""

from __future__ import annotations

from pathlib import Path

import pytest

from convertkit.containers.folder import open_checkpoint
from convertkit.progress import Progress
from convertkit.verbs.case import Options
from convertkit.verbs.to_gguf import to_gguf
from tests.gguf.models import write_model


class Counted:
    """Announced and done bytes of every stage."""

    def __init__(self) -> None:
        self.stages: dict[str, list[int]] = {}
        self._now = ""

    def stage(self, name: str, total_bytes: int) -> None:
        self._now = name
        self.stages[name] = [total_bytes, 0]

    def advance(self, size_bytes: int) -> None:
        self.stages[self._now][1] += size_bytes

    def done(self) -> None:
        pass

    def apart(self, title: str) -> Progress:
        return self


@pytest.mark.parametrize("type_name", ["bf16", "f32", "q8_0"])
def test_bytes_of_a_gguf_are_announced_and_done(tmp_path: Path, type_name: str) -> None:
    source = write_model(tmp_path / "source", "qwen3")
    counted = Counted()
    to_gguf(source, tmp_path / "out.gguf", type=type_name, options=Options(workers=1, progress=counted))
    announced, done = counted.stages["to-gguf"]
    assert announced == done == open_checkpoint(source).weight_bytes
