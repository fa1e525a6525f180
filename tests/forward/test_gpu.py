"""The functional gate on a GPU: the bytes of its report are those of the CPU. Run where there is a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from convertkit.demo.generate import generate
from convertkit.errors import ConvertError
from convertkit.verbs.calibration import generate_calibration
from convertkit.verbs.gate import gate
from convertkit.verbs.gate_forward import gate_forward
from convertkit.verbs.pack import pack_nvfp4
from tests.drafters.make import DV, FULL3, SLIDING3, drafter, speculators, target
from tests.forward.damage import DAMAGES, change, copied

torch = pytest.importorskip("torch")
HAS_GPU = torch.cuda.is_available()
on_gpu = pytest.mark.skipif(not HAS_GPU, reason="no GPU")

YARN = {"rope_type": "yarn", "rope_theta": 1e7, "factor": 8.0, "original_max_position_embeddings": 512}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dflash, reduced": ("dflash", {"draft_vocab_size": DV, "layer": {**SLIDING3, "rope_parameters": YARN}}),
    "dflash, whole": ("dflash", {"layer": {**FULL3, "attention_bias": False, "rope_parameters": LLAMA3}}),
    "dspark, gated": ("dspark", {"draft_vocab_size": DV, "markov_head_type": "gated"}),
    "dspark, rnn": ("dspark", {"markov_head_type": "rnn"}),
    "dspark, vanilla": ("dspark", {"markov_head_type": "vanilla"}),
    "eagle3": ("eagle3", {"draft_vocab_size": DV}),
}


def both(tmp_path: Path, candidate: Path, reference: Path, **words: Any) -> None:
    """Bytes of the report and the verdict by either device."""
    place = tmp_path / "FIDELITY_GATE.json"
    found = []
    for device in ("cpu", "cuda"):
        made = gate_forward(candidate, reference, device=device, report=place, **words)
        found.append((place.read_bytes(), made.status, made.findings))
    assert found[0] == found[1]


@on_gpu
@pytest.mark.parametrize("scale", ["tiny", "small"])
def test_a_pack_of_dflash2(scale: str, tmp_path: Path) -> None:
    source, big = (generate(kind, tmp_path / kind, scale=scale).root for kind in ("dflash2", "target"))
    pack_nvfp4(source, tmp_path / "p", include=["layers.{i}.{rest}"])
    generate_calibration(tmp_path / "c.safetensors", source, seed=4)
    for words in ({}, {"seed": 1}, {"stored": "bf16"}, {"as_served": "vllm-marlin"},
                  {"calibration": tmp_path / "c.safetensors"}):  # fmt: skip
        both(tmp_path, tmp_path / "p", source, target_model=big, **words)
    torch.save({"embedding": torch.ones(64 if scale == "tiny" else 512), "mask_token_id": 187 if scale == "tiny"
                else 4090}, tmp_path / "p" / "mask_embedding.pt")  # fmt: skip
    both(tmp_path, tmp_path / "p", source, target_model=big)


@on_gpu
@pytest.mark.parametrize("what", list(DAMAGES))
def test_damage(what: str, tmp_path: Path) -> None:
    source, big = (generate(kind, tmp_path / kind).root for kind in ("dflash2", "target"))
    pack_nvfp4(source, tmp_path / "p")
    broken = copied(tmp_path / "p", tmp_path / "b")
    DAMAGES[what](broken)
    both(tmp_path, broken, source, target_model=big)
    change(broken, "layers.1.self_attn.q_proj.weight", lambda data: b"\xc0\x7f" + data[2:])
    both(tmp_path, broken, source, target_model=big)


@on_gpu
@pytest.mark.parametrize("case", list(CASES))
def test_other_kinds(case: str, tmp_path: Path) -> None:
    kind, over = CASES[case]
    source = drafter(tmp_path / "a", f"speculators-{kind}", speculators(kind, **over))
    pack_nvfp4(source, tmp_path / "p", include=["layers.{i}.{rest}"], dialect="compressed-tensors")
    both(tmp_path, tmp_path / "p", source, target_model=target(tmp_path / "t", weights=True))


@on_gpu
@pytest.mark.parametrize("words", [{}, {"stored": "bf16"}, {"as_served": "vllm-marlin"}, {"as_served": "ggml"}])
def test_the_gate_of_weights(words: dict[str, Any], tmp_path: Path) -> None:
    source = generate("dflash2", tmp_path / "s", scale="small").root
    pack_nvfp4(source, tmp_path / "p", include=["layers.{i}.{rest}"])
    reports = []
    for device in ("cpu", "cuda"):
        gate(tmp_path / "p", source, device=device, report=tmp_path / "FIDELITY_GATE.json", **words)
        reports.append((tmp_path / "FIDELITY_GATE.json").read_bytes())
    assert reports[0] == reports[1]


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_no_gpu_is_said(tmp_path: Path) -> None:
    source = generate("dflash2", tmp_path / "s").root
    with pytest.raises(ConvertError) as raised:
        gate_forward(source, source, device="cuda")
    assert raised.value.code == "E_DEVICE"
