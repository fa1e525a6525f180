"""Stacked experts are what the real classes make of experts stored one by one, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from convertkit.containers.folder import open_checkpoint
from convertkit.conversion.repair_work import RepairRequest
from convertkit.demo.generate import generate
from convertkit.errors import ConvertError
from convertkit.verbs.case import Result
from convertkit.verbs.dequant import dequant
from convertkit.verbs.pack import pack_nvfp4
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
        ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM"),
        ("Qwen3_5MoeConfig", "Qwen3_5MoeForConditionalGeneration"),
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
    words = {"text_config": sizes} if config == "Qwen3_5MoeConfig" else sizes
    with torch.device("meta"):
        made = getattr(transformers, model)(getattr(transformers, config)(**words))
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
    back = repair(tmp_path / "out", tmp_path / "back", RepairRequest(split=("experts",)))
    assert isinstance(back, Result)
    again = {name: ref.spec for name, ref in open_checkpoint(tmp_path / "back").tensors.items()}
    assert again == {item.name: item for item in apart}


@pytest.mark.parametrize("dialect", ["modelopt", "compressed-tensors"])
def test_packed_experts_expand_and_stack_to_what_the_class_loads(dialect: str, tmp_path: Path) -> None:
    """Packed, stacked, taken apart, expanded and stacked again: the class holds the values of the expanded pack."""
    torch = pytest.importorskip("torch")
    generate("qwen3-moe", tmp_path / "dense")
    pack_nvfp4(tmp_path / "dense", tmp_path / "pack", dialect=dialect)
    dequant(tmp_path / "pack", tmp_path / "expanded")
    for kind in ("experts", "w13"):
        root = tmp_path / kind
        root.mkdir()
        repair(tmp_path / "pack", root / "stacked", RepairRequest(fuse=(kind,)))
        repair(root / "stacked", root / "apart", RepairRequest(split=(kind,)))
        dequant(root / "apart", root / "dense")
        repair(root / "dense", root / "together", RepairRequest(fuse=("experts",)))
        one, two = loaded(tmp_path / "expanded"), loaded(root / "together")
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("config", "model"), [("Llama4TextConfig", "Llama4ForCausalLM"), ("GptOssConfig", "GptOssForCausalLM")]
)
def test_classes_that_hold_the_input_first_are_the_ones_we_refuse(config: str, model: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tests.dialects.tiny import spec, write

    sizes = {
        "hidden_size": 32, "num_local_experts": 2, "num_hidden_layers": 1, "vocab_size": 64, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48, "intermediate_size_mlp": 48,
    }  # fmt: skip
    stated = getattr(transformers, config)(**sizes)
    with torch.device("meta"):
        made = getattr(transformers, model)(stated)
    stacks = [
        spec(name, "BF16", *value.shape) for name, value in made.state_dict().items()
        if name.endswith(("experts.gate_up_proj", "experts.down_proj"))
    ]  # fmt: skip
    assert [item.shape for item in stacks] == [(2, 32, 96), (2, 48, 32)]
    for hidden in ({"hidden_size": 32}, {}):  # told by the shape, and by the kind
        source = write(tmp_path / f"s{len(hidden)}", stacks, {"model_type": stated.model_type, **hidden})
        with pytest.raises(ConvertError, match="E_LAYOUT_SHAPE"):
            repair(source, tmp_path / "out", RepairRequest(split=("experts",)))


def test_what_modelopt_writes_for_experts_in_one_tensor_is_named_and_refused(tmp_path: Path) -> None:
    """gpt-oss, W4A4: the input comes first in codes and block scales, one global scale stands for all experts."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    mtq = pytest.importorskip("modelopt.torch.quantization")
    from modelopt.torch.export import export_hf_checkpoint

    config = transformers.GptOssConfig(
        hidden_size=32, num_local_experts=2, num_experts_per_tok=1, num_hidden_layers=1, vocab_size=64,
        num_attention_heads=2, num_key_value_heads=2, head_dim=16, intermediate_size=48,
        architectures=["GptOssForCausalLM"],
    )  # fmt: skip
    model = transformers.GptOssForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.linspace(-0.02, 0.03 + number / 1000, parameter.numel()).reshape(parameter.shape))
    model = mtq.quantize(model, mtq.NVFP4_DEFAULT_CFG, lambda made: made(torch.arange(8).reshape(1, 8)))
    export_hf_checkpoint(model, export_dir=tmp_path / "export")
    home = "model.layers.0.mlp.experts."
    found = {
        name.removeprefix(home): (ref.spec.dtype, ref.spec.shape)
        for name, ref in open_checkpoint(tmp_path / "export").tensors.items()
        if name.startswith(home) and "_bias" not in name
    }
    assert found == {
        "gate_up_proj": ("U8", (2, 16, 96)),
        "gate_up_proj_weight_scale": ("F8_E4M3", (2, 2, 96)),
        "gate_up_proj_weight_scale_2": ("F32", ()),
        "gate_up_proj_input_scale": ("F32", ()),
        "down_proj": ("U8", (2, 24, 32)),
        "down_proj_weight_scale": ("F8_E4M3", (2, 3, 32)),
        "down_proj_weight_scale_2": ("F32", ()),
        "down_proj_input_scale": ("F32", ()),
    }
    with pytest.raises(ConvertError, match="E_PACK_STACKED") as caught:
        dequant(tmp_path / "export", tmp_path / "out")
    assert all(item.data["transposed"] for item in caught.value.findings)
    with pytest.raises(ConvertError, match="E_LAYOUT_SHAPE"):
        repair(tmp_path / "export", tmp_path / "out", RepairRequest(split=("experts",)))
