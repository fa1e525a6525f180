from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.containers.folder import open_checkpoint
from convertkit.conversion.identify import Identity, identify
from convertkit.dialects.linears import default_packed
from tests.dialects.tiny import ATTENTION, DFLASH_CONFIG, LM_CONFIG, MLP, causal_lm, checkpoint, dflash, planes, spec

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.mark.parametrize(
    ("name", "layout", "kind", "dialect", "packed", "default"),
    [
        ("dflash-tiny", "dflash", "drafter", "dense", 0, 24),
        ("dflash2-tiny", "dflash2", "drafter", "dense", 0, 15),
        ("qwen3-tiny", "causal-lm", "causal-lm", "dense", 0, 14),
        ("qwen3-moe-sharded-tiny", "causal-lm", "causal-lm", "dense", 0, 32),
        ("modelopt-export-tiny", "causal-lm", "causal-lm", "modelopt", 14, 0),
        ("modelopt-export-w4a4-tiny", "causal-lm", "causal-lm", "modelopt", 14, 0),
        ("llmcompressor-oneshot-tiny", "causal-lm", "causal-lm", "compressed-tensors", 14, 0),
    ],
)
def test_fixtures(name: str, layout: str, kind: str, dialect: str, packed: int, default: int) -> None:
    found = identify(open_checkpoint(FIXTURES / name))
    assert (found.layout.name, found.kind, found.dialect, found.confidence) == (layout, kind, dialect, "certain")
    assert len(found.packed) == packed
    assert len(default_packed(found.linears, found.layout)) == default
    assert found.errors == ()
    assert {item.code for item in found.findings} <= {"W_INPUT_SCALES"}


def codes(found: Identity) -> list[str]:
    return [item.code for item in found.findings]


def drafter(tmp_path: Path, specs: list[TensorSpec] | None = None, **config: Any) -> Identity:
    return identify(checkpoint(tmp_path, dflash() if specs is None else specs, {**DFLASH_CONFIG, **config}))


def test_a_clean_drafter_has_no_finding(tmp_path: Path) -> None:
    found = drafter(tmp_path)
    assert (found.layout.name, found.confidence, codes(found)) == ("dflash", "certain", [])


def test_names_decide_and_a_wrong_label_is_reported(tmp_path: Path) -> None:
    conv = [spec(f"layers.{i}.attention_conv.kernel_projection.weight", "BF16", 32, 32) for i in range(2)]
    book = [spec("candidate_selector.hidden_projection.weight", "BF16", 8, 32)]
    found = drafter(tmp_path, [*dflash(), *conv, *book])
    assert (found.layout.name, codes(found)) == ("dflash2", ["W_LAYOUT_LABEL"])
    assert "DFlashDraftModel" in found.findings[0].message


def test_a_codebook_saved_with_weight_in_its_name(tmp_path: Path) -> None:
    """z-lab's own class saves them so; readers want the bare name."""
    leaves = (("successor_codebook", 48, 8), ("predecessor_codebook", 48, 8), ("hidden_projection", 8, 32))
    specs = [*dflash(), *(spec(f"candidate_selector.{leaf}.weight", "BF16", *shape) for leaf, *shape in leaves)]
    found = drafter(tmp_path, specs, architectures=["DFlash2DraftModel"])
    assert (found.layout.name, codes(found)) == ("dflash2", ["W_CODEBOOK_NAME", "W_CODEBOOK_NAME"])


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 64}, ["use_sliding_window"]),
        ({"layer_types": ["sliding_attention"] * 2}, ["sliding_window", "use_sliding_window"]),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 64, "use_sliding_window": True}, []),
        ({"layer_types": ["full_attention"] * 2}, []),
    ],
)
def test_sliding_layers_need_their_window(tmp_path: Path, config: dict[str, Any], keys: list[str]) -> None:
    found = drafter(tmp_path, **config)
    assert [item.where.key for item in found.findings if item.code == "W_SLIDING_WINDOW"] == keys


def test_a_prefixed_drafter_is_recognised_and_reported(tmp_path: Path) -> None:
    specs = [TensorSpec(f"model.{item.name}", item.dtype, item.shape) for item in dflash()]
    found = drafter(tmp_path, specs)
    assert (found.layout.name, codes(found)) == ("dflash", ["W_NAME_PREFIX"])


def test_config_dtype_against_tensors(tmp_path: Path) -> None:
    assert codes(drafter(tmp_path, torch_dtype="float16")) == ["W_CONFIG_DTYPE"]


def multimodal(tmp_path: Path, vision: str, **config: Any) -> Identity:
    specs = [
        TensorSpec(item.name.replace("model.", "model.language_model."), item.dtype, item.shape) for item in causal_lm()
    ]
    specs += [spec(f"{vision}.blocks.{i}.attn.qkv.weight", "BF16", 48, 16) for i in range(3)] if vision else []
    label = {"architectures": ["Qwen3_5ForConditionalGeneration"], "vision_config": {}}
    return identify(checkpoint(tmp_path, specs, {**LM_CONFIG, **label, **config}))


def test_a_multimodal_model(tmp_path: Path) -> None:
    found = multimodal(tmp_path, "model.visual")
    assert (found.layout.name, codes(found)) == ("multimodal-lm", [])
    default = default_packed(found.linears, found.layout)
    assert len(default) == 14
    assert not any("visual" in module for module in default)


def test_vision_one_level_too_deep(tmp_path: Path) -> None:
    found = multimodal(tmp_path, "model.language_model.visual")
    (item,) = found.findings
    assert (item.code, item.data["count"]) == ("W_VISION_NESTED", 3)


def test_doubled_prefixes(tmp_path: Path) -> None:
    specs = [TensorSpec(f"model.{item.name}", item.dtype, item.shape) for item in causal_lm()]
    found = identify(checkpoint(tmp_path, specs, LM_CONFIG))
    assert "W_NAME_PREFIX" in codes(found)


@pytest.mark.parametrize("key", ["num_nextn_predict_layers", "mtp_num_hidden_layers"])
def test_advertised_layers_that_are_not_there(tmp_path: Path, key: str) -> None:
    found = identify(checkpoint(tmp_path / "a", causal_lm(), {**LM_CONFIG, key: 1}))
    assert codes(found) == ["W_ADVERTISED_ABSENT"]
    with_mtp = [*causal_lm(), spec("mtp.fc.weight", "BF16", 32, 64)]
    assert codes(identify(checkpoint(tmp_path / "b", with_mtp, {**LM_CONFIG, key: 1}))) == []


def test_advertised_vision_that_is_not_there(tmp_path: Path) -> None:
    assert codes(multimodal(tmp_path, "")) == ["W_ADVERTISED_ABSENT"]


def test_an_unknown_model_has_candidates_and_no_default(tmp_path: Path) -> None:
    specs = [
        spec("encoder.layer.0.attention.self.query.weight", "BF16", 32, 32),
        spec("e.word_embeddings.weight", "BF16", 8, 32),
    ]
    found = identify(checkpoint(tmp_path, specs, {"model_type": "bert"}))
    assert (found.layout.name, found.confidence) == ("unknown", "unknown")
    assert list(found.linears) == ["encoder.layer.0.attention.self.query"]
    assert default_packed(found.linears, found.layout) == ()


def test_a_file_without_its_folder_is_identified_by_names(tmp_path: Path) -> None:
    checkpoint(tmp_path, dflash(MLP), DFLASH_CONFIG)
    found = identify(open_checkpoint(tmp_path / "model.safetensors"))
    assert (found.layout.name, found.confidence, found.dialect, codes(found)) == ("dflash", "likely", "modelopt", [])


def test_packed_without_a_config_and_with_the_wrong_one(tmp_path: Path) -> None:
    found = identify(checkpoint(tmp_path / "a", causal_lm((*MLP, *ATTENTION)), LM_CONFIG))
    assert [(item.code, item.severity) for item in found.findings] == [("W_QCONFIG_MISMATCH", "warning")]
    block = {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "ignore": ["lm_head"]}
    specs = causal_lm((*MLP, *ATTENTION), "compressed-tensors")
    found = identify(checkpoint(tmp_path / "b", specs, {**LM_CONFIG, "quantization_config": block}), "error")
    assert [(item.code, item.severity) for item in found.findings] == [("E_QCONFIG_MISMATCH", "error")]


def test_two_spellings_in_one_checkpoint(tmp_path: Path) -> None:
    specs = [*planes("model.layers.0.mlp.up_proj"), *planes("model.layers.0.mlp.gate_proj", "compressed-tensors")]
    found = identify(checkpoint(tmp_path, specs, LM_CONFIG))
    assert found.dialect == "several"
    assert [item.code for item in found.errors] == ["E_PACK_AMBIGUOUS"]


def test_kv_and_activation_scales_are_named(tmp_path: Path) -> None:
    specs = [*causal_lm(MLP), spec("model.layers.0.self_attn.k_scale", "F32", 1)]
    specs.append(spec("model.layers.0.mlp.up_proj.input_scale", "F32"))
    found = identify(checkpoint(tmp_path, specs, LM_CONFIG))
    assert {"W_KV_SCALES", "W_INPUT_SCALES"} <= set(codes(found))
    assert found.planes.kv_scales == ("model.layers.0.self_attn.k_scale",)
