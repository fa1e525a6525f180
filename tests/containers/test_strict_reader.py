"""The safetensors reader refuses what two readers could understand differently, with one stable code each."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from convertkit.containers.folder import open_checkpoint
from convertkit.containers.safetensors import MAX_HEADER_BYTES
from convertkit.containers.strict_json import parse_json
from convertkit.errors import ConvertError

EIGHT = bytes(range(8))


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def file_of(header: Any, data: bytes = EIGHT, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode("utf-8", "surrogatepass")
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def raw(text: str) -> bytes:
    return text.replace("@", json.dumps(entry())).encode("utf-8", "surrogatepass")


REFUSED: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "E_ST_TRUNCATED"),
    "seven bytes": (b"\x08" + bytes(6), "E_ST_TRUNCATED"),
    "zeros": (bytes(4096), "E_ST_HEADER"),
    "length past the end": (file_of({"a": entry()}, length=4096), "E_ST_TRUNCATED"),
    "length 2^64-1": (file_of({}, length=2**64 - 1), "E_ST_HEADER_TOO_LARGE"),
    "length over the limit": (file_of({}, length=MAX_HEADER_BYTES + 1), "E_ST_HEADER_TOO_LARGE"),
    "array": (file_of([]), "E_ST_HEADER"),
    "leading space": (file_of(raw(' {"a":@}')), "E_ST_HEADER"),
    "byte order mark": (file_of(b"\xef\xbb\xbf" + raw('{"a":@}')), "E_ST_HEADER"),
    "not UTF-8": (file_of(raw('{"aX":@}').replace(b"X", b"\xc0\xaf")), "E_ST_UTF8"),
    "two objects": (file_of(raw('{"a":@}{"a":@}')), "E_ST_HEADER"),
    "NUL padding": (file_of(raw('{"a":@}') + b"\0\0"), "E_ST_HEADER"),
    "trailing comma": (file_of(raw('{"a":@,}')), "E_ST_HEADER"),
    "name twice": (file_of(raw('{"a":@,"a":@}')), "E_ST_DUP_KEY"),
    "name twice, escaped": (file_of(raw('{"a":@,"\\u0061":@}')), "E_ST_DUP_KEY"),
    "field twice": (
        file_of(raw('{"a":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}}')),
        "E_ST_DUP_KEY",
    ),
    "metadata twice": (file_of(raw('{"__metadata__":{},"__metadata__":{},"a":@}')), "E_ST_DUP_KEY"),
    "metadata number": (file_of({"__metadata__": {"k": 1}, "a": entry()}), "E_ST_METADATA"),
    "metadata null": (file_of({"__metadata__": None, "a": entry()}), "E_ST_METADATA"),
    "deep": (file_of(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "E_ST_HEADER"),
    "lower-case dtype": (file_of({"a": entry("f32")}), "E_ST_DTYPE"),
    "dtype is a list": (file_of({"a": entry(["F32"])}), "E_ST_DTYPE"),
    "no shape": (file_of({"a": {"dtype": "F32", "data_offsets": [0, 8]}}), "E_ST_FIELD"),
    "unknown field": (file_of({"a": entry(strides=[1])}), "E_ST_FIELD"),
    "entry is a number": (file_of({"a": 7}), "E_ST_FIELD"),
    "negative dimension": (file_of({"a": entry(shape=[-2])}), "E_ST_SHAPE"),
    "float dimension": (file_of({"a": entry(shape=[2.0])}), "E_ST_SHAPE"),
    "true dimension": (file_of({"a": entry(shape=[2, True])}), "E_ST_SHAPE"),
    "NaN dimension": (file_of({"a": entry(shape=[float("nan")])}), "E_ST_HEADER"),
    "dimension 2^64": (file_of({"a": entry(shape=[2**64])}), "E_ST_SHAPE"),
    "rank 65": (file_of({"a": entry(shape=[2] + [1] * 64)}), "E_ST_SHAPE"),
    "shape wraps": (file_of({"a": entry(shape=[2**62 + 1, 4], offsets=(0, 16))}, bytes(16)), "E_ST_OVERFLOW"),
    "shape wraps to zero": (file_of({"a": entry(shape=[2**32, 2**32], offsets=(0, 0))}, b""), "E_ST_OVERFLOW"),
    "negative offset": (file_of({"a": entry(offsets=(-8, 0))}), "E_ST_OFFSETS"),
    "reversed offsets": (file_of({"a": entry(offsets=(8, 0))}), "E_ST_OFFSETS"),
    "three offsets": (file_of({"a": entry(offsets=(0, 8, 8))}), "E_ST_OFFSETS"),
    "past the end": (file_of({"a": entry(shape=[4], offsets=(0, 16))}), "E_ST_TRUNCATED"),
    "size mismatch": (file_of({"a": entry(shape=[3])}), "E_ST_SIZE"),
    "overlap": (file_of({"a": entry(), "b": entry()}), "E_ST_OVERLAP"),
    "hole": (file_of({"a": entry(offsets=(8, 16))}, bytes(16)), "E_ST_HOLE"),
    "trailing byte": (file_of({"a": entry()}, EIGHT + b"\n"), "E_ST_TRAILING"),
    "odd 4-bit": (file_of({"a": entry("F4", [3], (0, 2))}, b"\0\0"), "E_ST_SUBBYTE"),
    "NUL in name": (file_of({"a\0b": entry()}), "E_ST_NAME"),
    "bidi in name": (file_of({"a\u202eb": entry()}), "E_ST_NAME"),
    "surrogate in name": (file_of(raw('{"a\\ud800":@}')), "E_ST_NAME"),
    "empty name": (file_of({"": entry()}), "E_ST_NAME"),
    "long name": (file_of({"n" * 1025: entry()}), "E_ST_NAME"),
    "zip": (b"PK\x03\x04" + bytes(60), "E_ST_NOT_SAFETENSORS"),
    "gguf": (b"GGUF" + bytes(60), "E_ST_NOT_SAFETENSORS"),
    "json": (b'{\n  "architectures": []\n}', "E_ST_NOT_SAFETENSORS"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\n", "E_ST_NOT_SAFETENSORS"),
}
ACCEPTED: dict[str, bytes] = {
    "plain": file_of({"a": entry()}),
    "no tensor": file_of({}, b""),
    "spaces": file_of(raw('{"a":@}') + b" " * 64),
    "line feed": file_of(raw('{"a":@}\n')),
    "zero dimension": file_of({"a": entry(shape=[0, 7], offsets=(0, 0))}, b""),
    "other order": file_of({"b": entry(offsets=(8, 16)), "a": entry()}, bytes(16)),
    "unaligned": file_of({"u": entry("U8", [1], (0, 1)), "a": entry(offsets=(1, 9))}, bytes(9)),
    "path as name": file_of({"../../x": entry()}),
}


def opened(tmp_path: Path, data: bytes) -> Any:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    return open_checkpoint(path)


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    data, code = REFUSED[case]
    with pytest.raises(ConvertError) as caught:
        opened(tmp_path, data)
    assert (caught.value.code, caught.value.status) == (code, 3)
    assert caught.value.findings[0].where.file == "model.safetensors"
    assert os.listdir(tmp_path) == ["model.safetensors"]


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(tmp_path: Path, case: str) -> None:
    checkpoint = opened(tmp_path, ACCEPTED[case])
    assert sum(ref.size_bytes for ref in checkpoint.tensors.values()) + checkpoint.files[0].data_start == len(
        ACCEPTED[case]
    )


@pytest.mark.parametrize("length", [0x0280, 0x0480, 0x10280, 0x8B1F])
def test_a_length_that_looks_like_another_format(tmp_path: Path, length: int) -> None:
    text = raw('{"a":@}').ljust(length)
    assert list(opened(tmp_path, file_of(text)).tensors) == ["a"]


def test_faults_of_all_tensors_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(ConvertError) as caught:
        opened(tmp_path, file_of({"a": entry("f32"), "b": entry(shape=[-1]), "c": entry()}))
    assert [(item.code, item.where.tensor) for item in caught.value.findings] == [
        ("E_ST_DTYPE", "a"),
        ("E_ST_SHAPE", "b"),
    ]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b'{"a":-Infinity}', "E_JSON"),
        (b'{"a":[1e999]}', "E_JSON"),
        (b'{"a":1,"a":2}', "E_JSON_DUP_KEY"),
        (b'{"x":{"a":1,"a":2}}', "E_JSON_DUP_KEY"),
        (b'{"a":"caf\xe9"}', "E_JSON"),
        (b"", "E_JSON"),
        (b'{"a":' * 200 + b"1" + b"}" * 200, "E_JSON"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "E_JSON"),
        (b'{"a":' + b"9" * 10_000 + b"}", "E_JSON"),
        (b"\xff\xfe{\x00}\x00", "E_JSON"),
    ],
)
def test_strict_json(data: bytes, code: str) -> None:
    with pytest.raises(ConvertError) as caught:
        parse_json(data, "config.json")
    assert caught.value.code == code
