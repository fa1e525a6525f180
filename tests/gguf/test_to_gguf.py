"""Every kind of model becomes a GGUF with the tensors, keys and values that llama.cpp's own converter would write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, quants
from numpy.typing import NDArray

from convertkit.layouts.gguf_names import ARCHS, from_hub
from tests.gguf.made import convert, keys, make, tensors, truncated
from tests.gguf.models import (
    DIM,
    DRAFT_VOCABULARY,
    HEADS,
    HIDDEN,
    KINDS,
    TAPS,
    VOCABULARY,
    values_of,
    write_model,
)


def interleaved(values: NDArray[Any], heads: int) -> NDArray[Any]:
    return values.reshape(heads, 2, values.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(values.shape)


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_the_source(kind: str, tmp_path: Path, target: Path) -> None:
    out, _ = make(tmp_path, kind, target)
    written = tensors(out)
    arch = ARCHS[keys(out)["general.architecture"]]
    _, shapes = KINDS[kind]()
    shapes.pop("t2d", None)
    shapes.pop("d2t", None)
    seen = set()
    for name, shape in shapes.items():
        values = truncated(values_of(name, shape, 0))
        named = from_hub(arch, name)
        assert named is not None
        got = written[named.gguf]
        if ".experts." in name:
            got = got[int(name.split(".experts.")[1].split(".")[0])]
        if arch.name in ("llama", "eagle3") and name.endswith(("q_proj.weight", "k_proj.weight")):
            values = interleaved(values, HEADS if "q_proj" in name else HEADS // 2)
        if kind == "gemma3" and "norm" in name:
            values = values + np.float32(1)
        assert np.array_equal(got.reshape(values.shape), values), name
        seen.add(named.gguf)
    assert seen | {"d2t"} >= set(written)


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_keep_their_bytes_and_the_rest_is_f32(kind: str, tmp_path: Path, target: Path) -> None:
    out, result = make(tmp_path, kind, target)
    rows = {row["name"]: row for row in result.reports["GGUF_REPORT.json"]["rows"]}
    for tensor in GGUFReader(out).tensors:
        one_d = (
            len(tensor.shape) == 1 or "norm" in tensor.name or tensor.name.endswith(("_base", "ffn_gate_inp.weight"))
        )
        expected = "I64" if tensor.name == "d2t" else "F32" if one_d else "BF16"
        assert tensor.tensor_type.name == rows[tensor.name]["dtype"] == expected
    promises = {row["promise"] for row in rows.values() if row["dtype"] == "BF16"}
    assert promises <= {"bytes", "elements"}
    assert result.status == 0


@pytest.mark.parametrize("type_", ["f32", "f16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "mxfp4"])
def test_block_types_are_ggufs_encoding_of_the_source(type_: str, tmp_path: Path, target: Path) -> None:
    out, _ = make(tmp_path, "dflash", target, type_)
    found = {tensor.name: tensor for tensor in GGUFReader(out).tensors}
    values = truncated(values_of("layers.1.mlp.down_proj.weight", (HIDDEN, 256), 0))
    tensor = found["blk.1.ffn_down.weight"]
    kind = GGMLQuantizationType[type_.upper()]
    assert tensor.tensor_type == kind
    assert np.array_equal(
        np.asarray(tensor.data).reshape(HIDDEN, -1).view(np.uint8), quants.quantize(values, kind).view(np.uint8)
    )


def test_dflash_metadata(tmp_path: Path, target: Path) -> None:
    out, _ = make(tmp_path, "dflash", target)
    found = keys(out)
    expected = {
        "general.architecture": "dflash", "general.file_type": 32, "dflash.block_count": 2,
        "dflash.context_length": 1024,
        "dflash.embedding_length": HIDDEN, "dflash.attention.head_count": HEADS, "dflash.attention.key_length": DIM,
        "dflash.block_size": 8, "dflash.attention.causal": False, "dflash.target_layers": [tap + 1 for tap in TAPS],
        "dflash.rope.freq_base": 10000.0, "tokenizer.ggml.mask_token_id": 500, "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.model": "gpt2",
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert len(found["tokenizer.ggml.tokens"]) == VOCABULARY
    assert found["tokenizer.ggml.tokens"][-1] == f"[PAD{VOCABULARY - 1}]"
    assert found["tokenizer.chat_template"].startswith("{% for m")


def test_sliding_layers_and_yarn_are_stated(tmp_path: Path, target: Path) -> None:
    out, _ = make(
        tmp_path, "dflash", target, layer_types=["sliding_attention", "full_attention"], sliding_window=64,
        use_sliding_window=True, rope_parameters={"rope_theta": 1e7, "rope_type": "yarn", "factor": 4.0,
                                                  "original_max_position_embeddings": 256, "beta_fast": 32.0},
    )  # fmt: skip
    found = keys(out)
    assert found["dflash.attention.sliding_window"] == 64
    assert found["dflash.attention.sliding_window_pattern"] == [True, False]
    assert found["dflash.rope.scaling.type"] == "yarn"
    assert found["dflash.rope.scaling.original_context_length"] == 256
    assert found["dflash.rope.scaling.yarn_beta_fast"] == 32.0


def test_eagle3_metadata_and_vocabulary_map(tmp_path: Path, target: Path) -> None:
    out, _ = make(tmp_path, "eagle3", target)
    found = keys(out)
    assert found["eagle3.target_layers"] == [1, 3, 4]
    assert found["eagle3.target_hidden_size"] == HIDDEN
    ids = tensors(out)["d2t"]
    assert ids.shape == (DRAFT_VOCABULARY,)
    assert (np.diff(ids) > 0).all()
    assert ids.max() < VOCABULARY
    assert "token_embd.weight" not in tensors(out)


def test_vocabulary_can_come_from_the_targets_gguf(tmp_path: Path, target: Path) -> None:
    big = tmp_path / "target.gguf"
    convert(target, big)
    source = write_model(tmp_path / "dflash", "dflash")
    convert(source, tmp_path / "a.gguf", target)
    convert(source, tmp_path / "b.gguf", big)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_copies_of_the_targets_ends_are_left_out(tmp_path: Path, target: Path) -> None:
    ends = {"embed_tokens.weight": values_of("model.embed_tokens.weight", (VOCABULARY, HIDDEN), 0),
            "lm_head.weight": values_of("lm_head.weight", (VOCABULARY, HIDDEN), 0)}  # fmt: skip
    out, result = make(tmp_path, "dspark", target, change=ends)
    assert not {"token_embd.weight", "output.weight"} & tensors(out).keys()
    assert {drop.name for drop in result.plan.drops} == set(ends)
    del ends["embed_tokens.weight"]
    source = write_model(tmp_path / "own", "dspark", change=ends)
    convert(source, tmp_path / "own.gguf", target)
    assert {"token_embd.weight", "output.weight"} <= tensors(tmp_path / "own.gguf").keys()


def test_a_tied_head_is_stored_once(tmp_path: Path, target: Path) -> None:
    same = values_of("model.embed_tokens.weight", (VOCABULARY, HIDDEN), 0)
    source = write_model(tmp_path / "m", "qwen3", change={"lm_head.weight": same}, tie_word_embeddings=True)
    convert(source, tmp_path / "m.gguf")
    assert "output.weight" not in tensors(tmp_path / "m.gguf")
    source = write_model(tmp_path / "n", "qwen3", tie_word_embeddings=True)
    convert(source, tmp_path / "n.gguf")
    assert "output.weight" in tensors(tmp_path / "n.gguf")


def test_llama3_rope_factors_are_a_tensor(tmp_path: Path, target: Path) -> None:
    rope = {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128}  # fmt: skip
    out, _ = make(tmp_path, "llama", target, rope_parameters=rope)
    factors = tensors(out)["rope_freqs.weight"]
    assert factors.shape == (DIM // 2,)
    assert factors[0] == 1.0
    assert factors[-1] == 8.0
    assert (np.diff(factors) >= 0).all()


def test_rows_that_are_not_whole_blocks_fall_back(tmp_path: Path, target: Path) -> None:
    narrow = values_of("narrow", (HIDDEN, 48), 0)
    source = write_model(tmp_path / "m", "llama", intermediate_size=48, change={
        name: narrow if name.endswith("down_proj.weight") else np.ascontiguousarray(narrow.T)
        for name in KINDS["llama"]()[1] if ".mlp." in name
    })  # fmt: skip
    config = json.loads((source / "config.json").read_text())
    assert config["intermediate_size"] == 48
    rewrite_shapes(
        source, {"down_proj.weight": (HIDDEN, 48), "gate_proj.weight": (48, HIDDEN), "up_proj.weight": (48, HIDDEN)}
    )
    result = convert(source, tmp_path / "m.gguf", type="q8_0")
    found = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(tmp_path / "m.gguf").tensors}
    assert found["blk.0.ffn_down.weight"] == "BF16"
    assert found["blk.0.ffn_up.weight"] == "Q8_0"
    codes = [item for item in result.findings if item.code == "W_GGUF_FALLBACK"]
    assert {item.where.tensor for item in codes} == {"blk.0.ffn_down.weight", "blk.1.ffn_down.weight"}


def rewrite_shapes(folder: Path, shapes: dict[str, tuple[int, int]]) -> None:
    """Correct the shapes in a header whose tensors were written with other values than planned."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    position = 0
    body, entries = data[8 + length :], {}
    for name, entry in header.items():
        if name == "__metadata__":
            entries[name] = entry
            continue
        shape = next((list(shape) for leaf, shape in shapes.items() if name.endswith(leaf)), entry["shape"])
        size = int(np.prod(shape)) * 2
        entries[name] = {"dtype": entry["dtype"], "shape": shape, "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body[:position])
