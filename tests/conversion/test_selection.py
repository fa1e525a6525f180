"""Which linears are packed: policy, patterns, fused groups, widths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from convertkit.checkpoint import Checkpoint, TensorRef, TensorSpec
from convertkit.conversion.identify import identify
from convertkit.conversion.selection import Chosen, choose
from convertkit.errors import ConvertError
from convertkit.layouts.fused import user_groups


def model(width: int = 32, gate_dtype: str = "BF16") -> Checkpoint:
    shapes = {
        "model.embed_tokens.weight": (64, width),
        "lm_head.weight": (64, width),
        "model.norm.weight": (width,),
        **{f"model.layers.0.self_attn.{leaf}_proj.weight": (width, width) for leaf in "qkvo"},
        "model.layers.0.mlp.gate_proj.weight": (64, width),
        "model.layers.0.mlp.up_proj.weight": (64, width),
        "model.layers.0.mlp.down_proj.weight": (width, 64),
    }
    refs = {}
    for name, shape in shapes.items():
        dtype = gate_dtype if "gate_proj" in name else "BF16"
        refs[name] = TensorRef(TensorSpec(name, dtype, shape), "model.safetensors", 0)
    return Checkpoint(Path("nowhere"), "safetensors", (), refs, {"architectures": ["LlamaForCausalLM"]})


def chosen(checkpoint: Checkpoint, *include: str, exclude: tuple[str, ...] = (), fuse: tuple[str, ...] = ()) -> Chosen:
    return choose(checkpoint, identify(checkpoint).layout, include, exclude, user_groups(fuse))


def refusal_of(checkpoint: Checkpoint, *include: str, exclude: tuple[str, ...] = ()) -> ConvertError:
    with pytest.raises(ConvertError) as caught:
        chosen(checkpoint, *include, exclude=exclude)
    return caught.value


def test_a_language_model_packs_its_linears_in_fused_groups() -> None:
    found = chosen(model())
    layer = "model.layers.0."
    assert set(found.groups) == {
        tuple(f"{layer}self_attn.{leaf}_proj" for leaf in "qkv"),
        (f"{layer}self_attn.o_proj",),
        (f"{layer}mlp.gate_proj", f"{layer}mlp.up_proj"),
        (f"{layer}mlp.down_proj",),
    }
    assert set(found.left) == {"model.embed_tokens", "lm_head"}


def test_include_replaces_and_exclude_subtracts_with_counts() -> None:
    found = chosen(model(), "layers.{i}.mlp.{x}", exclude=("layers.{i}.mlp.down_proj",))
    assert found.groups == (("model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"),)
    assert found.matches == {"layers.{i}.mlp.{x}": 3, "layers.{i}.mlp.down_proj": 1}


def test_half_a_fused_layer_is_refused() -> None:
    error = refusal_of(model(), exclude=("layers.0.mlp.up_proj",))
    assert (error.code, error.status) == ("E_FUSED_SPLIT", 2)
    assert "up_proj" in str(error)


def test_the_same_half_in_many_layers_is_one_finding() -> None:
    one = model()
    refs = dict(one.tensors)
    for name, ref in one.tensors.items():
        for layer in range(1, 40):
            other = name.replace("layers.0.", f"layers.{layer}.")
            refs[other] = replace(ref, spec=replace(ref.spec, name=other))
    error = refusal_of(replace(one, tensors=refs), exclude=("layers.{i}.mlp.up_proj", "layers.{i}.self_attn.k_proj"))
    assert [item.where.tensor for item in error.findings] == [
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
    ]
    assert all("likewise in 39 more" in item.message for item in error.findings)
    assert len(error.findings[0].data["groups"]) == 40


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    assert refusal_of(model(), "layers.{i}.ffn.{x}").code == "E_PATTERN_EMPTY"


def test_widths_that_cannot_be_packed_are_all_named() -> None:
    error = refusal_of(model(width=24))
    assert error.code == "E_WIDTH"
    assert {item.where.tensor for item in error.findings} == {
        *(f"model.layers.0.self_attn.{leaf}_proj.weight" for leaf in "qkvo"),
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
    }


def test_a_group_of_two_dtypes_is_refused() -> None:
    assert refusal_of(model(gate_dtype="F32")).code == "E_WEIGHT_DTYPE"


def test_unknown_models_need_include() -> None:
    spec = TensorSpec("encoder.block.dense.weight", "BF16", (32, 32))
    checkpoint = Checkpoint(Path("nowhere"), "safetensors", (), {spec.name: TensorRef(spec, "m.safetensors", 0)})
    error = refusal_of(checkpoint)
    assert (error.code, error.status) == ("E_POLICY_UNKNOWN", 2)
    assert "encoder.block.dense" in str(error)
    assert chosen(checkpoint, "encoder.block.dense").groups == (("encoder.block.dense",),)


def test_users_can_declare_fused_groups() -> None:
    found = chosen(model(), fuse=("layers.{i}.self_attn.o_proj,layers.{i}.mlp.down_proj",))
    assert {"model.layers.0.self_attn.o_proj", "model.layers.0.mlp.down_proj"} in [set(group) for group in found.groups]


def test_a_fused_group_that_matches_nothing_is_refused() -> None:
    with pytest.raises(ConvertError) as caught:
        chosen(model(), fuse=("layers.{i}.attn.to_q,layers.{i}.attn.to_k",))
    assert caught.value.code == "E_PATTERN_EMPTY"


def test_a_fused_group_of_literal_names_is_one(tmp_path: Path) -> None:
    names = ("model.layers.0.self_attn.o_proj", "model.layers.0.mlp.down_proj")
    assert names in chosen(model(), fuse=(",".join(names),)).groups
    with pytest.raises(ConvertError) as caught:
        chosen(model(), fuse=(f"{names[0]},model.layers.0.mlp.dwn_proj",))
    assert caught.value.code == "E_PATTERN_EMPTY"
    assert "model.layers.0.mlp.dwn_proj matches no linear layer" in caught.value.findings[0].message


def test_layers_of_prediction_that_are_numbered_on_are_not_packed_by_default() -> None:
    source = model()
    spec = TensorSpec("model.layers.1.mlp.down_proj.weight", "BF16", (32, 64))
    tensors = {**source.tensors, spec.name: TensorRef(spec, "model.safetensors", 0)}
    config = {**source.config, "num_hidden_layers": 1}
    plain = replace(source, tensors=tensors, config=config)
    assert ("model.layers.1.mlp.down_proj",) in chosen(plain).groups
    more = replace(plain, config={**config, "num_nextn_predict_layers": 1})
    found = chosen(more)
    assert ("model.layers.0.mlp.down_proj",) in found.groups
    assert "model.layers.1.mlp.down_proj" in found.left
    assert ("model.layers.1.mlp.down_proj",) in chosen(more, "layers.{i}.mlp.down_proj").groups
