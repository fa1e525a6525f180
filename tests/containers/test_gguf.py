"""GGUF headers: the encoder's bytes are those of gguf's writer, and the reader gives back what was written."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from convertkit.checkpoint import Checkpoint, TensorSpec
from convertkit.containers.folder import open_any
from convertkit.containers.gguf import GGML_NUMBERS, GGML_TYPES, encode_gguf_header
from convertkit.containers.gguf_values import KINDS, Scalar, Value, f32, numbers, plain, same, strings, text, truth, u32
from convertkit.containers.reader import Reader
from convertkit.dtypes import STORED_TYPES
from convertkit.errors import ConvertError
from convertkit.verbs.inspect import inspect

METADATA: dict[str, Value] = {
    "general.architecture": text("llama"),
    "general.name": text("né"),
    "llama.block_count": u32(3),
    "llama.rope.freq_base": f32(1e6),
    "llama.flag": truth(True),
    "llama.signed": Scalar("i32", -7),
    "llama.wide": Scalar("u64", 1 << 60),
    "llama.ids": numbers("i32", [1, 2, -3]),
    "tokenizer.ggml.tokens": strings(["a", "", "zwölf"]),
    "tokenizer.ggml.scores": numbers("f32", [0.5, -1.0, 2.0]),
}
SPECS = (
    TensorSpec("token_embd.weight", "F32", (3, 5)),
    TensorSpec("blk.0.attn_q.weight", "Q8_0", (3, 64)),
    TensorSpec("b", "BF16", (7,)),
    TensorSpec("d2t", "I64", (2, 2, 3)),
)


def payload(spec: TensorSpec) -> bytes:
    return bytes((len(spec.name) + i) % 251 for i in range(spec.size_bytes))


def write(path: Path, metadata: dict[str, Value], specs: Sequence[TensorSpec], alignment: int = 32) -> bytes:
    header = encode_gguf_header(metadata, specs, alignment)
    data = bytearray(header.size_bytes)
    data[: len(header.prefix)] = header.prefix
    for spec in specs:
        data[header.starts[spec.name] : header.starts[spec.name] + spec.size_bytes] = payload(spec)
    path.write_bytes(data)
    return bytes(data)


def theirs(path: Path, metadata: dict[str, Value], specs: Sequence[TensorSpec]) -> bytes:
    """The same file from gguf's own writer."""
    writer = GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if key == "general.architecture":
            continue
        if isinstance(value, Scalar):
            writer.add_key_value(key, value.value, GGUFValueType(KINDS.index(value.kind)))
        else:
            kind = "str" if key.endswith("tokens") else value.kind  # type: ignore[union-attr]
            writer.add_key_value(key, plain(value), GGUFValueType.ARRAY, GGUFValueType(KINDS.index(kind)))
    for spec in specs:
        row = STORED_TYPES[spec.dtype]
        shape = (*spec.shape[:-1], spec.shape[-1] // row.block * row.bits // 8)
        array = np.frombuffer(payload(spec), dtype=np.uint8).reshape(shape)
        writer.add_tensor(spec.name, array, raw_dtype=GGMLQuantizationType(GGML_NUMBERS[spec.dtype]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def test_file_equals_that_of_ggufs_writer(tmp_path: Path) -> None:
    ours = write(tmp_path / "ours.gguf", METADATA, SPECS)
    assert ours == theirs(tmp_path / "theirs.gguf", METADATA, SPECS)


def test_reader_gives_back_metadata_tensors_and_bytes(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", METADATA, SPECS)
    for opened in (open_any(tmp_path / "m.gguf"), open_any(tmp_path)):
        assert opened.container == "gguf"
        assert list(opened.metadata) == list(METADATA)
        assert all(same(opened.metadata[key], METADATA[key]) for key in METADATA)
        assert [ref.spec for ref in opened.tensors.values()] == list(SPECS)
        with Reader(opened) as reader:
            assert all(reader.bytes_of(spec.name) == payload(spec) for spec in SPECS)


def test_ggufs_reader_agrees(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", METADATA, SPECS)
    reader = GGUFReader(tmp_path / "m.gguf")
    assert [tensor.name for tensor in reader.tensors] == [spec.name for spec in SPECS]
    assert [tuple(reversed(tensor.shape.tolist())) for tensor in reader.tensors] == [spec.shape for spec in SPECS]
    assert all(reader.fields[key].contents() == plain(METADATA[key]) for key in METADATA)


def test_alignment_is_that_of_the_metadata(tmp_path: Path) -> None:
    metadata = {**METADATA, "general.alignment": u32(4096)}
    write(tmp_path / "m.gguf", metadata, SPECS, 4096)
    assert all(ref.start % 4096 == 0 for ref in open_any(tmp_path / "m.gguf").tensors.values())


def test_types_are_those_of_gguf() -> None:
    known = dict(GGML_QUANT_SIZES)
    assert {number: STORED_TYPES[name].block for number, name in GGML_TYPES.items()} == {
        int(k): v[0] for k, v in known.items()
    }
    assert {number: STORED_TYPES[name].bits for number, name in GGML_TYPES.items()} == {
        int(k): v[1] * 8 for k, v in known.items()
    }
    assert dict(GGML_TYPES) == {int(kind): kind.name for kind in known}
    assert [kind.name for kind in sorted(GGUFValueType)] == [
        "UINT8",
        "INT8",
        "UINT16",
        "INT16",
        "UINT32",
        "INT32",
        "FLOAT32",
        "BOOL",
        "STRING",
        "ARRAY",
        "UINT64",
        "INT64",
        "FLOAT64",
    ]


def test_a_large_vocabulary_opens_quickly(tmp_path: Path) -> None:
    count = 262_144
    metadata: dict[str, Value] = {
        "general.architecture": text("gemma3"),
        "tokenizer.ggml.tokens": strings([f"token {i} é" for i in range(count)]),
        "tokenizer.ggml.scores": numbers("f32", np.zeros(count)),
        "tokenizer.ggml.merges": strings([f"a{i} b{i}" for i in range(count)]),
    }
    write(tmp_path / "m.gguf", metadata, SPECS[:1])
    began = time.process_time()
    opened = open_any(tmp_path / "m.gguf")
    assert time.process_time() - began < 1.0
    assert plain(opened.metadata["tokenizer.ggml.tokens"])[-1] == f"token {count - 1} é"


def split(folder: Path, count: int = 3, stated: int = 3) -> None:
    for number in range(count):
        keys: dict[str, Value] = dict(METADATA) if number == 0 else {}
        keys |= {
            "split.no": Scalar("u16", number),
            "split.count": Scalar("u16", count),
            "split.tensors.count": Scalar("i32", stated),
        }
        write(folder / f"m-{number + 1:05}-of-{count:05}.gguf", keys, SPECS[number : number + 1])


def test_parts_are_one_model(tmp_path: Path) -> None:
    split(tmp_path)
    opened: list[Checkpoint] = [open_any(tmp_path), open_any(tmp_path / "m-00002-of-00003.gguf")]
    for model in opened:
        assert [ref.spec for ref in model.tensors.values()] == list(SPECS[:3])
        assert list(model.metadata) == list(METADATA)
        assert len(model.files) == 3


@pytest.mark.parametrize("fault", ["missing", "renamed", "count", "swapped"])
def test_bad_splits_are_refused(tmp_path: Path, fault: str) -> None:
    split(tmp_path, stated=4 if fault == "count" else 3)
    second, third = tmp_path / "m-00002-of-00003.gguf", tmp_path / "m-00003-of-00003.gguf"
    if fault == "missing":
        os.unlink(third)
    elif fault == "renamed":
        os.rename(tmp_path / "m-00001-of-00003.gguf", tmp_path / "x.gguf")
    elif fault == "swapped":
        data = second.read_bytes()
        second.write_bytes(third.read_bytes())
        third.write_bytes(data)
    with pytest.raises(ConvertError) as caught:
        open_any(tmp_path / "x.gguf" if fault == "renamed" else tmp_path)
    assert caught.value.code == "E_GGUF_SPLIT"


def test_two_models_in_a_folder_are_ambiguous(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", METADATA, SPECS)
    write(tmp_path / "b.gguf", METADATA, SPECS)
    with pytest.raises(ConvertError) as caught:
        open_any(tmp_path)
    assert caught.value.code == "E_AMBIGUOUS_WEIGHTS"


def test_inspect_counts_block_types(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", METADATA, SPECS)
    grids = {row["grid"]: row for row in inspect(tmp_path)["grids"]}
    assert grids["q8_0"]["parameters"] == 3 * 64
    assert grids["q8_0"]["size_bytes"] == 3 * 64 // 32 * 34


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (TensorSpec("x" * 64, "F32", (1,)), "E_GGUF_NAME"),
        (TensorSpec("", "F32", (1,)), "E_GGUF_NAME"),
        (TensorSpec("x", "F32", ()), "E_GGUF_DIMS"),
        (TensorSpec("x", "F32", (1, 1, 1, 1, 1)), "E_GGUF_DIMS"),
        (TensorSpec("x", "Q8_0", (2, 48)), "E_GGUF_DIMS"),
    ],
)
def test_the_encoder_refuses_what_readers_would(spec: TensorSpec, code: str) -> None:
    with pytest.raises(ConvertError) as caught:
        encode_gguf_header(METADATA, [spec])
    assert caught.value.code == code
