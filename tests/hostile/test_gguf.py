"""GGUF files that are cut, lie about their sizes or could be read in two ways: each is refused with its code."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from convertkit.cli.main import main
from convertkit.containers.folder import open_any
from convertkit.errors import ConvertError

KEY_TYPES = {"u8": 0, "i32": 5, "u32": 4, "f32": 6, "bool": 7, "str": 8, "array": 9, "u16": 2}


def string(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def pair(key: str | bytes, kind: str | int, payload: bytes) -> bytes:
    return string(key) + struct.pack("<I", KEY_TYPES[kind] if isinstance(kind, str) else kind) + payload


def info(name: str | bytes, dims: list[int], kind: int = 0, offset: int = 0, rank: int | None = None) -> bytes:
    sizes = b"".join(struct.pack("<Q", size % 2**64) for size in dims)
    head = string(name) + struct.pack("<I", len(dims) if rank is None else rank)
    return head + sizes + struct.pack("<IQ", kind, offset)


ARCH = pair("general.architecture", "str", string("llama"))
EIGHT = struct.pack("<8f", *range(8))
ONE = info("a.weight", [8])
ONE_ARRAY = struct.pack("<IQ", 9, 1)
TOKENS = pair("tokenizer.ggml.tokens", "array", struct.pack("<IQ", 8, 2) + string("a") + string("b"))


def file(
    pairs: list[bytes] | None = None,
    infos: list[bytes] | None = None,
    data: bytes = b"",
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
    fill: bytes = b"\0",
) -> bytes:
    pairs, infos = [ARCH] if pairs is None else pairs, infos or []
    tensor_count, key_count = counts or (len(infos), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, tensor_count, key_count) + b"".join(pairs) + b"".join(infos)
    return head + (fill * (-len(head) % alignment) if infos else b"") + data


class Case(NamedTuple):
    id: str
    code: str
    data: bytes
    names: tuple[str, ...] = ()


def value(id_: str, code: str, payload: bytes) -> Case:
    return Case(id_, code, file([ARCH, payload], [ONE], EIGHT), ("x.y",))


def aligned(kind: str, alignment: int) -> bytes:
    return file([ARCH, pair("general.alignment", kind, struct.pack("<I", alignment))], [ONE], EIGHT)


def tensor(id_: str, code: str, *infos: bytes, data: bytes = EIGHT) -> Case:
    return Case(id_, code, file(None, list(infos), data), ("a.weight",))


CASES = (
    Case("empty", "E_GGUF_TRUNCATED", b""),
    Case("magic", "E_GGUF_MAGIC", b"GGUX" + bytes(40)),
    Case("lfs-pointer", "E_GGUF_MAGIC", b"version https://example.invalid\n", ("Git LFS",)),
    Case("html", "E_GGUF_MAGIC", b"<!DOCTYPE html><html></html>", ("HTML",)),
    Case("cut-header", "E_GGUF_TRUNCATED", file()[:12]),
    Case("cut-key", "E_GGUF_TRUNCATED", file()[:40]),
    Case("version-1", "E_GGUF_VERSION", file(version=1)),
    Case("version-4", "E_GGUF_VERSION", file(version=4)),
    Case("big-endian", "E_GGUF_ENDIAN", b"GGUF" + struct.pack(">IQQ", 3, 0, 0)),
    Case("keys-2p63", "E_GGUF_COUNT", file(counts=(0, 2**63))),
    Case("keys-65537", "E_GGUF_COUNT", file(counts=(0, 65_537))),
    Case("tensors-2p63", "E_GGUF_COUNT", file(counts=(2**63, 1))),
    Case("no-architecture", "E_GGUF_ARCH", file([])),
    Case("architecture-number", "E_GGUF_ARCH", file([pair("general.architecture", "u32", b"\1\0\0\0")])),
    Case("architecture-path", "E_GGUF_ARCH", file([pair("general.architecture", "str", string("../../x"))])),
    Case("string-2p63", "E_GGUF_STRING", file([struct.pack("<Q", 2**63) + b"x"])),
    Case("string-past-end", "E_GGUF_TRUNCATED", file([struct.pack("<Q", 2**20) + b"x"])),
    Case("key-twice", "E_GGUF_DUP_KEY", file([ARCH, ARCH]), ("general.architecture",)),
    Case("key-empty", "E_GGUF_KEY", file([ARCH, pair("", "u32", bytes(4))])),
    Case("key-64k", "E_GGUF_KEY", file([ARCH, pair("k" * 65_536, "u32", bytes(4))])),
    Case("key-escape", "E_GGUF_KEY", file([ARCH, pair("x\x1b[2J", "u32", bytes(4))]), ("\\x1b",)),
    Case("key-utf8", "E_GGUF_UTF8", file([ARCH, pair(b"x.\xff", "u32", bytes(4))])),
    value("value-utf8", "E_GGUF_UTF8", pair("x.y", "str", string(b"\xff"))),
    value("value-type-13", "E_GGUF_TYPE", pair("x.y", 13, bytes(4))),
    value("value-bool-2", "E_GGUF_BOOL", pair("x.y", "bool", b"\2")),
    value("array-2p62", "E_GGUF_ARRAY", pair("x.y", "array", struct.pack("<IQ", 8, 2**62))),
    value("array-bytes-2p40", "E_GGUF_ARRAY", pair("x.y", "array", struct.pack("<IQ", 0, 2**40))),
    value("array-bytes-past-end", "E_GGUF_TRUNCATED", pair("x.y", "array", struct.pack("<IQ", 0, 2**29))),
    value("array-strings-past-end", "E_GGUF_TRUNCATED", pair("x.y", "array", struct.pack("<IQ", 8, 2**29))),
    value("array-string-2p63", "E_GGUF_STRING", pair("x.y", "array", struct.pack("<IQQ", 8, 1, 2**63))),
    value("array-nested", "E_GGUF_ARRAY", pair("x.y", "array", ONE_ARRAY * 20_000 + struct.pack("<IQ", 0, 0))),
    value("array-type-77", "E_GGUF_TYPE", pair("x.y", "array", struct.pack("<IQ", 77, 1) + bytes(8))),
    value("array-bool-3", "E_GGUF_BOOL", pair("x.y", "array", struct.pack("<IQ", 7, 2) + b"\1\3")),
    value("array-utf8", "E_GGUF_UTF8", pair("x.y", "array", struct.pack("<IQ", 8, 1) + string(b"\xc3"))),
    Case("alignment-24", "E_GGUF_ALIGN", aligned("u32", 24)),
    Case("alignment-0", "E_GGUF_ALIGN", aligned("u32", 0)),
    Case("alignment-i32", "E_GGUF_ALIGN", aligned("i32", 32)),
    tensor("rank-0", "E_GGUF_DIMS", info("a.weight", [])),
    tensor("rank-5", "E_GGUF_DIMS", info("a.weight", [8, 1, 1, 1, 1])),
    tensor("rank-2p32", "E_GGUF_DIMS", info("a.weight", [8], rank=2**32 - 1)),
    tensor("dimension-0", "E_GGUF_DIMS", info("a.weight", [0, 8])),
    tensor("dimension-negative", "E_GGUF_DIMS", info("a.weight", [-8])),
    tensor("dimension-wraps", "E_GGUF_OVERFLOW", info("a.weight", [2**62 + 2, 4])),
    tensor("row-of-half-a-block", "E_GGUF_DIMS", info("a.weight", [16, 2], 8), data=bytes(34)),
    tensor("type-9999", "E_GGUF_DTYPE", info("a.weight", [8], 9999)),
    tensor("type-retired", "E_GGUF_DTYPE", info("a.weight", [32], 4)),
    tensor("past-end", "E_GGUF_TRUNCATED", info("a.weight", [8], 0, 2**30)),
    tensor("offset-wraps", "E_GGUF_TRUNCATED", info("a.weight", [8], 0, 2**64 - 32)),
    tensor("cut-data", "E_GGUF_TRUNCATED", ONE, data=EIGHT[:-1]),
    tensor("offset-unaligned", "E_GGUF_OFFSET", info("a.weight", [8], 0, 8), data=EIGHT * 2),
    tensor("overlap", "E_GGUF_OVERLAP", info("b", [8]), info("a.weight", [8])),
    tensor("hole", "E_GGUF_HOLE", info("a.weight", [8], 0, 64), data=bytes(96)),
    tensor("name-twice", "E_GGUF_DUP_NAME", ONE, info("a.weight", [8], 0, 32), data=EIGHT * 2),
    Case("trailing", "E_GGUF_TRAILING", file(None, [ONE], EIGHT + bytes(32))),
    Case("padding-before", "E_GGUF_PADDING", file(None, [ONE], EIGHT, fill=b"\1")),
    Case("a-byte-after", "E_GGUF_TRAILING", file(None, [ONE], EIGHT + b"\1")),
    Case("padding-after", "E_GGUF_PADDING", file(None, [info("a", [3], 0, 0)], EIGHT[:12] + bytes(19) + b"\1")),
    Case("name-empty", "E_GGUF_NAME", file(None, [info("", [8])], EIGHT)),
    Case("name-65", "E_GGUF_NAME", file(None, [info("n" * 65, [8])], EIGHT)),
    Case("name-utf8", "E_GGUF_UTF8", file(None, [info(b"a\xff", [8])], EIGHT)),
    Case("tokens-numbers", "E_GGUF_TOKENIZER",
         file([ARCH, pair("tokenizer.ggml.tokens", "array", struct.pack("<IQ", 4, 0))])),
    Case("scores-three-for-two", "E_GGUF_TOKENIZER",
         file([ARCH, TOKENS, pair("tokenizer.ggml.scores", "array", struct.pack("<IQ", 6, 3) + bytes(12))]),
         ("tokenizer.ggml.scores",)),
    Case("split-missing", "E_GGUF_SPLIT",
         file([ARCH, pair("split.no", "u16", b"\0\0"), pair("split.count", "u16", b"\3\0")], [ONE], EIGHT)),
    Case("split-out-of-range", "E_GGUF_SPLIT",
         file([ARCH, pair("split.no", "u16", b"\5\0"), pair("split.count", "u16", b"\2\0")], [ONE], EIGHT)),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_is_refused(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(case.data)
    began = time.process_time()
    status = main(["inspect", str(path), "--json"])
    assert time.process_time() - began < 5
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (status, document["findings"][0]["code"]) == (3, case.code)
    assert all(name in printed.err for name in ("model.gguf", *case.names))
    assert "Traceback" not in printed.err
    assert path.read_bytes() == case.data


def test_controls_are_read(tmp_path: Path) -> None:
    aligned = [ARCH, pair("general.alignment", "u32", struct.pack("<I", 64))]
    for number, data in enumerate((
        file(None, [ONE], EIGHT),
        file(None, [ONE], EIGHT, version=2),
        file(aligned, [ONE], EIGHT + bytes(32), alignment=64),
        file([ARCH, pair("x.y", "array", struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 0, 2) + b"ab")], [ONE], EIGHT),
    )):  # fmt: skip
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(data)
        assert main(["inspect", str(path), "--quiet"]) == 0


def test_changed_bytes_are_read_or_refused(tmp_path: Path) -> None:
    """Any byte of a header set to any value: a finding with a code, never another exception."""
    pairs = [ARCH, TOKENS, pair("x.list", "array", struct.pack("<IQ", 5, 3) + bytes(12)), pair("x.flag", "bool", b"\1")]
    data = file(pairs, [ONE, info("b", [4, 8], 0, 32)], EIGHT + bytes(128))
    path = tmp_path / "m.gguf"
    refused = 0
    for place in range(len(data) - 160):
        for changed in (0, 1, 127, 255, data[place] ^ 1):
            path.write_bytes(data[:place] + bytes([changed]) + data[place + 1 :])
            try:
                open_any(path)
            except ConvertError as error:
                assert all(item.code.startswith("E_") for item in error.findings)
                refused += 1
    assert refused > 500


def test_numbers_in_the_metadata_are_not_believed(tmp_path: Path) -> None:
    """Two thousand million layers in a file of one tensor: said at once, with little memory."""
    huge = pair("llama.block_count", "u32", struct.pack("<I", 2**31))
    path = tmp_path / "m.gguf"
    path.write_bytes(file([ARCH, huge, TOKENS], [ONE], EIGHT))
    began = time.process_time()
    assert main(["audit", str(path), "--quiet"]) == 1
    assert main(["from-gguf", str(path), str(tmp_path / "out"), "--quiet"]) == 3
    assert time.process_time() - began < 5


def test_a_shifted_data_section_is_refused(tmp_path: Path) -> None:
    """Four bytes too many before the data: every tensor would be read from the wrong place."""
    data = file([ARCH], [ONE], EIGHT + EIGHT)
    whole = file([ARCH], [ONE, info("b", [8], 0, 32)], EIGHT + EIGHT)
    start = len(whole) - 64
    path = tmp_path / "m.gguf"
    for changed in (whole[:start] + bytes(4) + whole[start:], whole[:start] + whole[start + 4 :], data + bytes(4)):
        path.write_bytes(changed)
        with pytest.raises(ConvertError) as caught:
            open_any(path)
        assert caught.value.code in ("E_GGUF_TRAILING", "E_GGUF_TRUNCATED")
