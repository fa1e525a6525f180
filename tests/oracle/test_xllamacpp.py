"""Our drafters in a second, independent build of llama.cpp: the in-process server of ``xllamacpp``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from convertkit.verbs.to_gguf import to_gguf
from tests.gguf.models import write_model

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.oracle

RUN = """
import json, sys
import xllamacpp as build
target, draft, kind = sys.argv[1:]
given = build.CommonParams()
given.model.path, given.n_ctx, given.n_parallel, given.n_gpu_layers, given.fit_params = target, 512, 1, 0, False
given.cpuparams.n_threads = given.cpuparams_batch.n_threads = 1
given.speculative.types = [getattr(build.common_speculative_type, "COMMON_SPECULATIVE_TYPE_" + kind)]
given.speculative.draft.mparams.path, given.speculative.draft.n_max = draft, 7
server = build.Server(given)
prompt = {"prompt": "hello the cat", "n_predict": 24, "temperature": 0, "ignore_eos": True}
answer = server.handle_completions(prompt)
answer = answer if isinstance(answer, dict) else json.loads(answer)
print("ANSWER", json.dumps({"draft_n": answer["timings"].get("draft_n", 0), "text": answer["choices"][0]["text"]}))
"""
KINDS = {"dflash": "DRAFT_DFLASH", "dflash2": "DRAFT_DFLASH", "dspark": "DRAFT_DSPARK", "eagle3": "DRAFT_EAGLE3"}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    source = write_model(folder / "target", "qwen3", "F32")
    to_gguf(source, folder / "target.gguf", type="f32")
    return folder


@pytest.mark.parametrize("type_", ["bf16", "nvfp4"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_loads_and_drafts(kind: str, type_: str, target: Path, tmp_path: Path) -> None:
    source = write_model(tmp_path / kind, kind)
    to_gguf(source, tmp_path / "draft.gguf", type=type_, target_model=target / "target")
    words = [sys.executable, "-c", RUN, str(target / "target.gguf"), str(tmp_path / "draft.gguf"), KINDS[kind]]
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("ANSWER "))
    assert json.loads(line.removeprefix("ANSWER "))["draft_n"] > 0
