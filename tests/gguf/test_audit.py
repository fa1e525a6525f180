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
from convertkit.containers.gguf_values import Scalar, Strings, Value, numbers, strings, u32
from convertkit.containers.reader import Reader
from convertkit.conversion import gguf_planner
from convertkit.errors import ConvertError
from convertkit.verbs.audit import audit
from convertkit.verbs.from_gguf import from_gguf
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
    assert document["dialect"] == "ggml"
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


def with_tokens(new: dict[int, str]) -> Callable[[Metadata, Tensors], None]:
    def change(metadata: Metadata, tensors: Tensors) -> None:
        kept = metadata["tokenizer.ggml.tokens"]
        assert isinstance(kept, Strings)
        metadata["tokenizer.ggml.tokens"] = strings([new.get(i, token) for i, token in enumerate(kept)])

    return change


def of_sentencepiece(metadata: Metadata, tensors: Tensors) -> None:
    metadata["tokenizer.ggml.model"] = Scalar("str", "llama")


def numbers_to_strings(count: int) -> Value:
    return strings([f"t{i}" for i in range(count)])


WRONG: dict[str, tuple[str, Callable[[Metadata, Tensors], None], str]] = {
    "attn_v is missing": ("dflash", without("blk.1.attn_v.weight"), "E_LAYOUT_MISSING"),
    "no mask token": ("dflash", without("tokenizer.ggml.mask_token_id"), "E_GGUF_METADATA"),
    "mask token out of range": ("dflash", with_key("tokenizer.ggml.mask_token_id", u32(512)), "E_GGUF_TOKENIZER"),
    "no target layers": ("dflash", without("dflash.target_layers"), "E_GGUF_METADATA"),
    "target layers of 64 bits": ("dflash", with_layers("dflash", "i64", 2, 4), "E_GGUF_METADATA"),
    "one target layer too many": ("dflash", with_layers("dflash", "i32", 1, 2, 4), "E_LAYOUT_SHAPE"),
    "block size of another type": ("dflash", with_key("dflash.block_size", Scalar("i32", 8)), "E_GGUF_METADATA"),
    "a mask token that is no number": (
        "dflash", with_key("tokenizer.ggml.mask_token_id", Scalar("f32", float("nan"))), "E_GGUF_METADATA"),
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
    "a token twice": ("llama", with_tokens({300: "[PAD400]"}), "E_GGUF_TOKENIZER"),
    "two tokens alike up to a zero byte": ("llama", with_tokens({300: "[PAD400]\0x"}), "E_GGUF_TOKENIZER"),
    "a token named as an empty one": ("llama", with_tokens({400: "[EMPTY_401]", 401: ""}), "E_GGUF_TOKENIZER"),
    "bytes without a token": ("llama", of_sentencepiece, "E_GGUF_TOKENIZER"),
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


@pytest.mark.parametrize(("changes", "warned"), [
    ({}, []),
    ({"tokenizer.ggml.eos_token_id": None}, ["eos"]),
    ({"tokenizer.ggml.add_bos_token": Scalar("bool", True)}, ["bos"]),
    ({"tokenizer.ggml.add_bos_token": Scalar("bool", True), "tokenizer.ggml.bos_token_id": u32(3)}, []),
])  # fmt: skip
def test_an_end_that_llama_cpp_would_make_up_is_a_warning(
    changes: dict[str, Value | None], warned: list[str], files: Path, tmp_path: Path
) -> None:
    metadata, tensors = load(files / "qwen3.gguf")
    kept = {key: value for key, value in {**metadata, **changes}.items() if value is not None}
    result = audit(save(tmp_path / "x.gguf", kept, tensors))
    found = [item.where.key for item in result.findings if item.code == "W_GGUF_ENDS"]
    assert found == [f"tokenizer.ggml.{name}_token_id" for name in warned]
    assert result.status == 0


def of_type(dtype: str) -> Callable[[Metadata, Tensors], None]:
    def change(metadata: Metadata, tensors: Tensors) -> None:
        spec = TensorSpec("blk.0.ffn_down.weight", dtype, tensors["blk.0.ffn_down.weight"][0].shape)
        tensors[spec.name] = spec, bytes(spec.size_bytes)

    return change


def test_a_scan_says_what_it_cannot_read(files: Path, tmp_path: Path) -> None:
    metadata, tensors = load(files / "dflash.gguf")
    of_type("Q8_K")(metadata, tensors)
    result = audit(save(tmp_path / "x.gguf", metadata, tensors), scan=True)
    assert "E_UNSUPPORTED_QUANT" in {item.code for item in result.findings}


def with_dimension(name: str) -> Callable[[Metadata, Tensors], None]:
    def change(metadata: Metadata, tensors: Tensors) -> None:
        spec, data = tensors[name]
        tensors[name] = TensorSpec(name, spec.dtype, (*spec.shape[:-1], 1, spec.shape[-1])), data

    return change


UNREADABLE: dict[str, tuple[str, Callable[[Metadata, Tensors], None], str]] = {
    "rope that is no number": ("llama", with_key("llama.rope.freq_base", Scalar("f32", float("nan"))),
                               "E_GGUF_METADATA"),
    "an infinite eps": ("dflash", with_key("dflash.attention.layer_norm_rms_epsilon", Scalar("f32", float("inf"))),
                        "E_GGUF_METADATA"),
    "heads as a list": ("qwen3", with_key("qwen3.attention.head_count", numbers("u32", [4, 4])), "E_GGUF_METADATA"),
    "a token that is text": ("llama", with_key("tokenizer.ggml.eos_token_id", Scalar("str", "x")), "E_GGUF_TOKENIZER"),
    "layers that are floats": ("eagle3", with_layers("eagle3", "f32", 1, 2, 3), "E_GGUF_METADATA"),
    "windows that are numbers": ("dflash", with_key("dflash.attention.sliding_window_pattern", numbers("i32", [1, 0])),
                                 "E_GGUF_METADATA"),
    "a missing matrix": ("llama", without("blk.0.ffn_up.weight"), "E_LAYOUT_MISSING"),
    "missing experts": ("qwen3_moe", without("blk.1.ffn_up_exps.weight"), "E_LAYOUT_MISSING"),
    "a missing fusion layer": ("eagle3", without("fc.weight"), "E_LAYOUT_MISSING"),
    "a matrix of three dimensions": ("llama", with_dimension("blk.0.attn_q.weight"), "E_LAYOUT_SHAPE"),
    "blocks that are never stored": ("dflash", of_type("Q8_K"), "E_UNSUPPORTED_QUANT"),
}  # fmt: skip


@pytest.mark.parametrize("what", UNREADABLE)
def test_the_way_back_refuses_it(what: str, files: Path, tmp_path: Path) -> None:
    kind, change, code = UNREADABLE[what]
    metadata, tensors = load(files / f"{kind}.gguf")
    change(metadata, tensors)
    with pytest.raises(ConvertError) as caught:
        from_gguf(save(tmp_path / "x.gguf", metadata, tensors), tmp_path / "back")
    assert code in {item.code for item in caught.value.findings}
    assert not (tmp_path / "back").exists()


SHIFTED: dict[str, tuple[str, str, Value]] = {
    "layer ids that are not counted up": ("dflash", "dflash.target_layers", numbers("i32", [1, 3])),
    "layer ids counted up twice": ("eagle3", "eagle3.target_layers", numbers("i32", [2, 4, 5])),
    "another mask token": ("dspark", "tokenizer.ggml.mask_token_id", u32(499)),
    "another block size": ("dflash2", "dflash.block_size", u32(16)),
    "another causality": ("dflash", "dflash.attention.causal", Scalar("bool", True)),
    "another rope": ("dflash", "dflash.rope.freq_base", Scalar("f32", 500000.0)),
    "another order of norms": ("eagle3", "eagle3.norm_before_residual", Scalar("bool", True)),
}


@pytest.mark.parametrize("what", SHIFTED)
def test_what_a_writer_would_say_wrongly_is_not_published(
    what: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp loads such files and drafts worse in silence; the check compares them with the source's config."""
    kind, key, value = SHIFTED[what]
    right = gguf_planner._metadata
    monkeypatch.setattr(gguf_planner, "_metadata", lambda *given: {**right(*given), key: value})
    with pytest.raises(ConvertError) as caught:
        to_gguf(files / kind, tmp_path / "x.gguf", target_model=files / "target")
    assert {item.code for item in caught.value.findings} == {"E_GGUF_METADATA"}
    assert not (tmp_path / "x.gguf").exists()
