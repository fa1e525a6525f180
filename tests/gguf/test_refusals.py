"""What a GGUF cannot say, or llama.cpp would compute otherwise, is refused before anything is written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convertkit.errors import ConvertError
from tests.gguf.made import convert, keys
from tests.gguf.models import (
    DRAFTERS,
    HIDDEN,
    KINDS,
    TAPS,
    VOCABULARY,
    Shapes,
    values_of,
    write_model,
    write_shapes,
    write_tokenizer,
)

FIXTURES = Path(__file__).parents[2] / "fixtures"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no mask token": ({"dflash_config": {"target_layer_ids": TAPS, "block_size": 8}}, "E_CONFIG"),
    "mask token beyond the vocabulary": (
        {"dflash_config": {"target_layer_ids": TAPS, "block_size": 8, "mask_token_id": VOCABULARY}}, "E_CONFIG"),
    "tap on the last layer": (
        {"dflash_config": {"target_layer_ids": [1, 5], "block_size": 8, "mask_token_id": 500}}, "E_TARGET"),
    "another target": ({"num_target_layers": 7}, "E_TARGET"),
    "a target of another vocabulary": ({"vocab_size": VOCABULARY + 128}, "E_TARGET"),
    "mixed causality": (
        {"is_causal": None, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64,
         "use_sliding_window": True}, "E_LOSS"),
    "interleaved rope": ({"rope_is_neox_style": False}, "E_LOSS"),
    "unknown rope": ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "longrope"}}, "E_LOSS"),
    "another activation": ({"hidden_act": "relu"}, "E_LOSS"),
    "one layer too few": ({"num_hidden_layers": 1}, "E_LAYOUT_EXTRA"),
    "one layer too many": ({"num_hidden_layers": 3}, "E_LAYOUT_MISSING"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_llama_cpp_could_not_do_is_refused(what: str, tmp_path: Path, target: Path) -> None:
    changes, code = REFUSED[what]
    source = write_model(tmp_path / "m", "dflash", **changes)
    with pytest.raises(ConvertError) as caught:
        convert(source, tmp_path / "m.gguf", target)
    assert code in {item.code for item in caught.value.findings}
    assert sorted(os.listdir(tmp_path)) == ["m"]


def test_nan_is_refused_and_nothing_written(tmp_path: Path, target: Path) -> None:
    bad = values_of("layers.0.mlp.up_proj.weight", (256, HIDDEN), 0)
    bad[3, 5] = np.nan
    for type_ in ("bf16", "f32", "q8_0", "nvfp4"):
        source = write_model(tmp_path / type_, "dflash", change={"layers.0.mlp.up_proj.weight": bad})
        with pytest.raises(ConvertError) as caught:
            convert(source, tmp_path / "m.gguf", target, type=type_)
        assert caught.value.code == "E_WEIGHT_NONFINITE"
        assert not (tmp_path / "m.gguf").exists()


def test_an_unknown_pre_tokenizer_is_refused_and_can_be_named(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m", "qwen3")
    write_tokenizer(source, r"\p{L}+|x")
    with pytest.raises(ConvertError) as caught:
        convert(source, tmp_path / "m.gguf")
    assert caught.value.code == "E_TOKENIZER"
    assert r"\p{L}+|x" in str(caught.value)
    convert(source, tmp_path / "m.gguf", pre="llama-bpe")
    assert keys(tmp_path / "m.gguf")["tokenizer.ggml.pre"] == "llama-bpe"


def test_a_folder_without_a_tokenizer_is_said_to_have_none(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m", "qwen3")
    for name in ("tokenizer.json", "tokenizer.model"):
        (source / name).unlink(missing_ok=True)
    with pytest.raises(ConvertError) as caught:
        convert(source, tmp_path / "m.gguf")
    assert caught.value.code == "E_TOKENIZER"
    assert "has no tokenizer" in caught.value.findings[0].message


NO_NUMBERS: dict[str, tuple[str, dict[str, Any]]] = {
    "a list of layers": ("llama", {"num_hidden_layers": [2]}),
    "a context in words": ("dflash", {"max_position_embeddings": "long"}),
    "more experts than fit": ("qwen3_moe", {"num_experts_per_tok": 1 << 40}),
    "a window below zero": ("gemma3", {"sliding_window": -1}),
    "rope as a list": ("llama", {"rope_parameters": [1]}),
    "theta in words": ("qwen2", {"rope_parameters": {"rope_theta": "linear"}}),
    "theta beyond FP32": ("qwen3", {"rope_theta": 1e300}),
    "a factor in words": ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": "two"}}),
    "eps that is true": ("qwen3", {"rms_norm_eps": True}),
    "inner rope as text": ("gemma3", {"rope_parameters": {"full_attention": "x"}}),
}


@pytest.mark.parametrize("what", NO_NUMBERS)
def test_configs_without_numbers_are_refused(what: str, tmp_path: Path, target: Path) -> None:
    kind, changes = NO_NUMBERS[what]
    source = write_model(tmp_path / "m", kind, **changes)
    with pytest.raises(ConvertError) as caught:
        convert(source, tmp_path / "m.gguf", target if kind in DRAFTERS else None)
    assert caught.value.code == "E_CONFIG"


def test_blocks_for_multi_token_prediction_are_refused_by_name(tmp_path: Path) -> None:
    config, shapes = KINDS["qwen3"]()
    extra: Shapes = {"mtp.fc.weight": (HIDDEN, 2 * HIDDEN), "model.layers.6.eh_proj.weight": (HIDDEN, 2 * HIDDEN)}
    write_shapes(tmp_path / "m", config, {**shapes, **extra})
    write_tokenizer(tmp_path / "m")
    with pytest.raises(ConvertError) as caught:
        convert(tmp_path / "m", tmp_path / "m.gguf")
    assert {item.where.tensor for item in caught.value.findings} == set(extra)
    assert all("multi-token prediction" in str(item.fix) for item in caught.value.findings)


LOST: dict[str, tuple[str, dict[str, Any]]] = {
    "activation": ("llama", {"hidden_act": "gelu"}),
    "dynamic rope": ("qwen2", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "dynamic", "factor": 2.0}}),
    "llama3 rope elsewhere": ("qwen3", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "llama3", "factor": 8.0}}),
    "partial rotation": ("llama", {"partial_rotary_factor": 0.5}),
    "sliding layers": ("qwen3", {"layer_types": ["sliding_attention"] * 6, "sliding_window": 64}),
    "sliding window": ("qwen2", {"use_sliding_window": True, "sliding_window": 64}),
    "experts not normalised": ("qwen3_moe", {"norm_topk_prob": False}),
    "another pattern": ("gemma3", {"layer_types": ["full_attention"] * 6}),
    "another attention scale": ("gemma3", {"query_pre_attn_scalar": 7}),
    "soft-capped attention": ("gemma3", {"attn_logit_softcapping": 50.0}),
    "untied without a head": ("gemma3", {"tie_word_embeddings": False}),
}


@pytest.mark.parametrize("what", LOST)
def test_what_a_model_means_otherwise_is_refused(what: str, tmp_path: Path) -> None:
    kind, changes = LOST[what]
    source = write_model(tmp_path / "m", kind, **changes)
    with pytest.raises(ConvertError) as caught:
        convert(source, tmp_path / "m.gguf")
    assert caught.value.code == ("E_LAYOUT_MISSING" if what == "untied without a head" else "E_LOSS")


@pytest.mark.parametrize("place", ["nothing", "nothing.gguf", "target/model.safetensors"])
def test_a_target_that_is_none_is_told(place: str, tmp_path: Path) -> None:
    write_model(tmp_path / "target", "qwen3")
    source = write_model(tmp_path / "dflash", "dflash")
    with pytest.raises(ConvertError) as caught:
        convert(source, tmp_path / "m.gguf", tmp_path / place)
    assert caught.value.code == "E_NOT_FOUND"
