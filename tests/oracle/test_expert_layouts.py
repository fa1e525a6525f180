"""Stacked experts are what the real classes make of experts stored one by one, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from convertkit.containers.folder import open_checkpoint
from convertkit.conversion.repair_work import RepairRequest
from convertkit.demo.generate import generate
from convertkit.verbs.line import Result
from convertkit.verbs.repair import repair

pytestmark = pytest.mark.oracle


def loaded(root: Path) -> dict[str, Any]:
    """State of the class that the config names, all tensors used and none missing."""
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(root)
    made = getattr(transformers, config.architectures[0])
    model, info = made.from_pretrained(root, dtype="auto", output_loading_info=True)
    assert {name: value for name, value in info.items() if value} == {}
    state: dict[str, Any] = model.state_dict()
    return state


@pytest.mark.parametrize("kind", ["qwen3-moe", "qwen3.5-moe-unfused"])
def test_fused_experts_load_as_the_same_model(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    generate(kind, tmp_path / "apart")
    made = repair(tmp_path / "apart", tmp_path / "together", RepairRequest(fuse=("experts",)))
    assert isinstance(made, Result)
    one, two = loaded(tmp_path / "apart"), loaded(tmp_path / "together")
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    fused = [name for name in one if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]
    assert fused
    stored = open_checkpoint(tmp_path / "together").tensors
    for name in fused:
        assert stored[name].spec.shape == tuple(one[name].shape)


@pytest.mark.parametrize(
    ("config", "model"),
    [
        ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
        ("Qwen3NextConfig", "Qwen3NextForCausalLM"),
    ],
)
def test_names_and_shapes_are_those_of_the_class(config: str, model: str, tmp_path: Path) -> None:
    """Experts of a class on the meta device, written one by one and stacked again."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tests.dialects.tiny import spec, write

    sizes = {
        "hidden_size": 32, "moe_intermediate_size": 16, "num_experts": 4, "num_hidden_layers": 2, "vocab_size": 64,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 32,
    }  # fmt: skip
    with torch.device("meta"):
        made = getattr(transformers, model)(getattr(transformers, config)(**sizes))
    wanted = {name: tuple(value.shape) for name, value in made.state_dict().items() if ".mlp.experts." in name}
    assert len(wanted) == 4
    apart = []
    for name, (experts, rows, columns) in wanted.items():
        home, _, last = name.rpartition(".")
        parts = ("gate_proj", "up_proj") if last == "gate_up_proj" else ("down_proj",)
        apart += [
            spec(f"{home}.{e}.{part}.weight", "BF16", rows // len(parts), columns)
            for e in range(experts) for part in parts
        ]  # fmt: skip
    source = write(tmp_path / "apart", apart, {"model_type": "qwen3_moe", "num_hidden_layers": 2})
    assert isinstance(repair(source, tmp_path / "out", RepairRequest(fuse=("experts",))), Result)
    found = {name: ref.spec.shape for name, ref in open_checkpoint(tmp_path / "out").tensors.items()}
    assert found == wanted
