"""A GGUF that llama.cpp loads and then drafts nonsense with, or aborts on, is named by the audit and refused on the
way out; so is one that it would not load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from convertkit.checkpoint import TensorSpec
from convertkit.containers.folder import open_any
from convertkit.containers.gguf import encode_gguf_header
from convertkit.containers.gguf_values import Scalar, Value, numbers, u32
from convertkit.containers.reader import Reader
from convertkit.verbs.audit import audit
from convertkit.verbs.inspect import inspect
from convertkit.verbs.to_gguf import to_gguf
from tests.gguf.models import DRAFTERS, KINDS, write_model

Metadata = dict[str, Value]
Tensors = dict[str, tuple[TensorSpec, bytes]]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    target = write_model(folder / "target", "qwen3")
    for kind in KINDS:
        source = write_model(folder / kind, kind)
        to_gguf(source, folder / f"{kind}.gguf", target_model=target if kind in DRAFTERS else None)
    return folder


def load(path: Path) -> tuple[Metadata, Tensors]:
    opened = open_any(path)
    with Reader(opened) as reader:
        return dict(opened.metadata), {name: (ref.spec, reader.bytes_of(name)) for name, ref in opened.tensors.items()}


def save(path: Path, metadata: Metadata, tensors: Tensors) -> Path:
    alignment = metadata.get("general.alignment")
    size = int(alignment.value) if isinstance(alignment, Scalar) else 32
    header = encode_gguf_header(metadata, [spec for spec, _ in tensors.values()], size)
    data = bytearray(header.size_bytes)
    data[: len(header.prefix)] = header.prefix
    for spec, payload in tensors.values():
        data[header.starts[spec.name] : header.starts[spec.name] + len(payload)] = payload
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_what_we_write_passes(kind: str, files: Path) -> None:
    result = audit(files / f"{kind}.gguf", scan=True)
    assert [item for item in result.findings if item.severity == "error"] == []
    assert result.status == 0
    document = inspect(files / f"{kind}.gguf", tensors=True)
    assert document["layout"]["confidence"] == "certain"
    assert "other" not in {row["role"] for row in document["families"]}


def retyped(name: str, dtype: str, size: int) -> Callable[[Metadata, Tensors], None]:
    def change(metadata: Metadata, tensors: Tensors) -> None:
        spec, data = tensors[name]
        tensors[name] = TensorSpec(name, dtype, spec.shape), data[: spec.elements * size]

    return change


def without(*names: str) -> Callable[[Metadata, Tensors], None]:
    def change(metadata: Metadata, tensors: Tensors) -> None:
        for name in names:
            metadata.pop(name, None)
            tensors.pop(name, None)

    return change


def with_key(key: str, value: Value) -> Callable[[Metadata, Tensors], None]:
    return lambda metadata, tensors: metadata.update({key: value})


def with_layers(arch: str, kind: str, *layers: int) -> Callable[[Metadata, Tensors], None]:
    return with_key(f"{arch}.target_layers", numbers(kind, layers))


def with_tensor(spec: TensorSpec) -> Callable[[Metadata, Tensors], None]:
    return lambda metadata, tensors: tensors.update({spec.name: (spec, bytes(spec.size_bytes))})


def with_nan(metadata: Metadata, tensors: Tensors) -> None:
    spec, data = tensors["fc.weight"]
    tensors["fc.weight"] = spec, np.array([0x7FC0], "<u2").tobytes() + data[2:]


def fewer_tokens(metadata: Metadata, tensors: Tensors) -> None:
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
        metadata.pop(key)
    metadata["tokenizer.ggml.tokens"] = numbers_to_strings(480)


def numbers_to_strings(count: int) -> Value:
    from convertkit.containers.gguf_values import strings

    return strings([f"t{i}" for i in range(count)])


WRONG: dict[str, tuple[str, Callable[[Metadata, Tensors], None], str]] = {
    "attn_v is missing": ("dflash", without("blk.1.attn_v.weight"), "E_LAYOUT_MISSING"),
    "no mask token": ("dflash", without("tokenizer.ggml.mask_token_id"), "E_GGUF_METADATA"),
    "mask token out of range": ("dflash", with_key("tokenizer.ggml.mask_token_id", u32(512)), "E_GGUF_TOKENIZER"),
    "no target layers": ("dflash", without("dflash.target_layers"), "E_GGUF_METADATA"),
    "target layers of 64 bits": ("dflash", with_layers("dflash", "i64", 2, 4), "E_GGUF_METADATA"),
    "one target layer too many": ("dflash", with_layers("dflash", "i32", 1, 2, 4), "E_LAYOUT_SHAPE"),
    "block size of another type": ("dflash", with_key("dflash.block_size", Scalar("i32", 8)), "E_GGUF_METADATA"),
    "no layer count": ("dflash", without("dflash.block_count"), "E_GGUF_METADATA"),
    "a norm in BF16": ("dflash", retyped("blk.0.attn_norm.weight", "BF16", 2), "E_LAYOUT_DTYPE"),
    "a norm in F16": ("llama", retyped("output_norm.weight", "F16", 2), "E_LAYOUT_DTYPE"),
    "a convolution base in F16": ("dflash2", retyped("blk.0.attn_conv_base", "F16", 2), "E_LAYOUT_DTYPE"),
    "d2t of 32 bits": ("eagle3", retyped("d2t", "I32", 4), "E_LAYOUT_DTYPE"),
    "NaN": ("dflash", with_nan, "E_WEIGHT_NONFINITE"),
    "a shorter vocabulary": ("dspark", fewer_tokens, "E_LAYOUT_SHAPE"),
    "embeddings without head": ("dspark", without("output.weight"), "E_LAYOUT_MISSING"),
    "half a selector": ("dflash2", without("selector_successor.weight"), "E_LAYOUT_MISSING"),
    "no convolution": ("dflash2", without("blk.1.ffn_conv_base"), "E_LAYOUT_MISSING"),
    "an unknown tensor": ("dflash", with_tensor(TensorSpec("extra.weight", "F32", (4,))), "E_LAYOUT_EXTRA"),
    "a bias": ("dflash", with_tensor(TensorSpec("blk.0.attn_q.bias", "F32", (128,))), "E_LAYOUT_EXTRA"),
    "an activation scale of fc": ("dflash", with_tensor(TensorSpec("fc.input_scale", "F32", (1,))), "E_LAYOUT_EXTRA"),
    "a wrong shape": ("qwen3", with_key("qwen3.feed_forward_length", u32(384)), "E_LAYOUT_SHAPE"),
    "alignment 8": ("llama", with_key("general.alignment", u32(8)), "E_GGUF_METADATA"),
    "no vocabulary": ("llama", without("tokenizer.ggml.tokens"), "E_GGUF_TOKENIZER"),
    "four tapped layers of EAGLE-3": ("eagle3", with_layers("eagle3", "i32", 1, 2, 3, 4), "E_GGUF_METADATA"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_the_audit_names_it(what: str, files: Path, tmp_path: Path) -> None:
    kind, change, code = WRONG[what]
    metadata, tensors = load(files / f"{kind}.gguf")
    change(metadata, tensors)
    result = audit(save(tmp_path / "x.gguf", metadata, tensors), scan=True)
    assert code in {item.code for item in result.findings if item.severity == "error"}
    assert result.status == 1
