"""Run llama.cpp's own ``convert_hf_to_gguf.py`` on several models, in one process of its own.

``python their_converter.py TREE JOBS.json``: TREE holds ``convert_hf_to_gguf.py``, ``conversion`` and ``gguf-py`` of a
source release. A job is a list of its arguments. Only its recognition of pre-tokenizers is replaced: it goes by the
ids that a sample text gets, and the small vocabularies of the tests are in no table of its.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PRE = "qwen2"
"""The pre-tokenizer of the test models."""

TREE = "CONVERTKIT_LLAMA_CPP"
"""Environment variable with the place of the tree; ``make oracle`` fetches and names it."""


UNUSED: dict[str, Any] = {"torchvision": None, "torchaudio": None}
"""Hidden from transformers, as in ``conftest.py``: a wheel for another torch breaks the import."""


def tree() -> Path | None:
    """The source tree, or None if none is named, as in an environment that lacks what it imports."""
    named = os.environ.get(TREE)
    return Path(named).absolute() if named and (Path(named) / "convert_hf_to_gguf.py").is_file() else None


def convert(jobs: Sequence[Sequence[str]], folder: Path) -> None:
    """Carry out all jobs; a failure is an assertion with what was printed."""
    found = tree()
    assert found is not None
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, __file__, str(found), str(folder / "jobs.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def main(place: str, jobs: str) -> None:
    sys.modules.update(UNUSED)
    sys.path[:0] = [place, f"{place}/gguf-py"]
    from conversion import base  # type: ignore[import-not-found]

    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: PRE
    for job in json.loads(Path(jobs).read_text()):
        sys.argv = ["convert_hf_to_gguf.py", *job]
        runpy.run_path(f"{place}/convert_hf_to_gguf.py", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
