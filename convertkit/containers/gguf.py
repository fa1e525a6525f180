"""The GGUF container: a strict reader of headers, and the header of a deterministic writer.

Format facts: ggml 0.25.3 ``gguf.cpp`` and gguf 0.19.0 (``gguf_reader.py``, ``constants.py``). Stricter than both
where two readers could see two files, or where a number in the file would be trusted: no overlap, hole or bytes that
belong to nothing, zeros as padding, exact integers throughout.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from convertkit.checkpoint import TensorRef, TensorSpec
from convertkit.containers.files import read_exactly
from convertkit.containers.gguf_cursor import Cursor
from convertkit.containers.gguf_values import Numbers, Scalar, Strings, Value, encode_pair
from convertkit.containers.safetensors import FOREIGN, UNSAFE_IN_NAMES, EncodedHeader
from convertkit.containers.strict_json import paused_gc
from convertkit.dtypes import STORED_TYPES
from convertkit.errors import refusal

MAGIC = b"GGUF"
VERSIONS = (2, 3)
"""Version 3 only added big-endian files; little-endian ones of version 2 are laid out alike."""
WRITTEN_VERSION = 3
ALIGNMENT = 32
ALIGNMENTS = tuple(1 << power for power in range(3, 17))

MAX_KEYS = 65_536
MAX_KEY_BYTES = 65_535
MAX_TENSORS = 1 << 20
MAX_NAME_BYTES = 64
"""ggml 0.25.3 ``GGML_MAX_NAME`` less its final NUL is 63; the format's text says 64, which readers take."""
MAX_RANK = 4
MAX_INTEGER = (1 << 63) - 1

ARCHITECTURE = "general.architecture"
ALIGNMENT_KEY = "general.alignment"
ARCHITECTURE_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")

GGML_TYPES: Mapping[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
"""ggml's numbers of the types that files hold (gguf 0.19.0 ``GGMLQuantizationType``); those between are retired."""
GGML_NUMBERS: Mapping[str, int] = {name: number for number, name in GGML_TYPES.items()}

VOCABULARY = {
    "tokenizer.ggml.tokens": "str",
    "tokenizer.ggml.scores": "f32",
    "tokenizer.ggml.token_type": "i32",
    "tokenizer.ggml.merges": "str",
}
"""Arrays of a vocabulary and their element types; all but the merges have one element per token."""


@dataclass(frozen=True)
class GgufHeader:
    """A checked header: typed metadata and tensors, both in file order, and the first payload byte.

    Shapes are in NumPy order, the reverse of ``ne`` in the file: rows of ``shape[-1]`` elements are contiguous.
    """

    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorRef]
    data_start: int


def read_gguf_header(fd: int, name: str, *, first_part: bool = True) -> GgufHeader:
    """Read and check the header of an open file called ``name`` in errors. No payload byte is read, only padding.

    Parts of a split file but the first need no architecture. Raises ``ConvertError`` with an ``E_GGUF_*`` code.
    """
    cursor = Cursor(fd, os.fstat(fd).st_size, name)
    tensor_count, key_count = _counts(cursor)
    with paused_gc():
        metadata = _metadata(cursor, key_count)
        _check_architecture(metadata, cursor, first_part and not _is_later_part(metadata))
        alignment = _alignment(metadata, cursor)
        _check_vocabulary(metadata, cursor)
        entries = [_entry(cursor) for _ in range(tensor_count)]
        header_end = cursor.position
        tensors = _place(cursor, entries, alignment)
    return GgufHeader(metadata, tensors, _padded(header_end, alignment))


def _counts(cursor: Cursor) -> tuple[int, int]:
    """Numbers of tensors and keys, after magic and version."""
    if cursor.size >= 4 and read_exactly(cursor.fd, 0, 4, cursor.name) != MAGIC:
        start = read_exactly(cursor.fd, 0, min(cursor.size, 8), cursor.name)
        what = next((text for magic, text in FOREIGN if start.startswith(magic)), "another kind of file")
        raise cursor.fault(
            "E_GGUF_MAGIC", f"the file does not start with 'GGUF': {what}", fix="fetch the real GGUF file"
        )
    cursor.take(4)
    (version,) = cursor.unpack("<I")
    if version not in VERSIONS:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
            raise cursor.fault("E_GGUF_ENDIAN", "the file is big-endian", offset=4, fix="make it little-endian first")
        raise cursor.fault("E_GGUF_VERSION", f"version {version}; versions 2 and 3 are read", offset=4)
    tensor_count, key_count = cursor.unpack("<QQ")
    for what, count, limit in (("tensors", tensor_count, MAX_TENSORS), ("keys", key_count, MAX_KEYS)):
        if count > limit:
            raise cursor.fault("E_GGUF_COUNT", f"{count:,} {what}; the limit is {limit:,}")
    return tensor_count, key_count


def _metadata(cursor: Cursor, count: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for _ in range(count):
        place = cursor.position
        key = cursor.string(limit=MAX_KEY_BYTES, code="E_GGUF_KEY")
        if not key or UNSAFE_IN_NAMES.search(key):
            raise cursor.fault("E_GGUF_KEY", "a key is empty or holds control characters", key=key, offset=place)
        if key in metadata:
            raise cursor.fault("E_GGUF_DUP_KEY", "the key occurs twice", key=key, offset=place)
        metadata[key] = cursor.value(key)
    return metadata


def _is_later_part(metadata: Mapping[str, Value]) -> bool:
    """Whether the file says that it is a part of a split one, but the first, whatever its name is."""
    value = metadata.get("split.no")
    return isinstance(value, Scalar) and value.value != 0


def _check_architecture(metadata: Mapping[str, Value], cursor: Cursor, required: bool) -> None:
    value = metadata.get(ARCHITECTURE)
    if value is None and not required:
        return
    if not (isinstance(value, Scalar) and isinstance(value.value, str) and ARCHITECTURE_NAME.fullmatch(value.value)):
        what = "is missing" if value is None else "is not a plain name"
        raise cursor.fault("E_GGUF_ARCH", f"'{ARCHITECTURE}' {what}", key=ARCHITECTURE, offset=None)


def _alignment(metadata: Mapping[str, Value], cursor: Cursor) -> int:
    value = metadata.get(ALIGNMENT_KEY)
    if value is None:
        return ALIGNMENT
    if not (isinstance(value, Scalar) and value.kind == "u32" and value.value in ALIGNMENTS):
        raise cursor.fault("E_GGUF_ALIGN", "the alignment is not a power of two from 8 to 65,536 of type u32",
                           key=ALIGNMENT_KEY, offset=None)  # fmt: skip
    return int(value.value)


def _check_vocabulary(metadata: Mapping[str, Value], cursor: Cursor) -> None:
    tokens = metadata.get("tokenizer.ggml.tokens")
    for key, kind in VOCABULARY.items():
        value = metadata.get(key)
        if value is None:
            continue
        right = isinstance(value, Strings) if kind == "str" else isinstance(value, Numbers) and value.kind == kind
        if not right:
            raise cursor.fault("E_GGUF_TOKENIZER", f"not an array of {kind}", key=key, offset=None)
        if isinstance(value, Numbers) and isinstance(tokens, Strings) and len(value) != len(tokens):
            message = f"{len(value):,} elements for {len(tokens):,} tokens"
            raise cursor.fault("E_GGUF_TOKENIZER", message, key=key, offset=None)


def _entry(cursor: Cursor) -> tuple[TensorSpec, int]:
    """One tensor: its spec and its offset in the data section."""
    place = cursor.position
    name = cursor.string(limit=MAX_NAME_BYTES, code="E_GGUF_NAME")
    if not name or UNSAFE_IN_NAMES.search(name):
        raise cursor.fault("E_GGUF_NAME", "the name is empty or holds control characters", tensor=name, offset=place)
    (rank,) = cursor.unpack("<I")
    if not 1 <= rank <= MAX_RANK:
        raise cursor.fault("E_GGUF_DIMS", f"{rank} dimensions; a tensor has 1 to {MAX_RANK}", tensor=name, offset=place)
    ne = cursor.unpack(f"<{rank}Q")
    number, offset = cursor.unpack("<IQ")
    dtype = GGML_TYPES.get(number)
    if dtype is None:
        raise cursor.fault("E_GGUF_DTYPE", f"ggml type {number} is unknown or retired", tensor=name, offset=place)
    if not all(1 <= size <= MAX_INTEGER for size in ne):
        raise cursor.fault("E_GGUF_DIMS", f"dimensions {list(ne)}", tensor=name, offset=place)
    row = STORED_TYPES[dtype]
    if prod(ne) * row.bits > 8 * MAX_INTEGER * row.block:
        raise cursor.fault("E_GGUF_OVERFLOW", "no file can hold so many elements", tensor=name, offset=place)
    if ne[0] % row.block:
        raise cursor.fault("E_GGUF_DIMS", f"rows of {ne[0]} elements are not whole {dtype} blocks of {row.block}",
                           tensor=name, offset=place)  # fmt: skip
    return TensorSpec(name, dtype, tuple(reversed(ne))), offset


def _place(cursor: Cursor, entries: Sequence[tuple[TensorSpec, int]], alignment: int) -> dict[str, TensorRef]:
    """Tensors with their absolute places; they must follow each other without overlap, hole or rest."""
    data_start = _padded(cursor.position, alignment)
    tensors: dict[str, TensorRef] = {}
    end = cursor.position
    for spec, offset in entries:
        expected = _padded(end, alignment)
        start = data_start + offset
        if spec.name in tensors:
            raise cursor.fault("E_GGUF_DUP_NAME", "the name occurs twice", tensor=spec.name, offset=None)
        if start + spec.size_bytes > cursor.size:
            message = f"the tensor ends at byte {start + spec.size_bytes:,}, the file at {cursor.size:,}"
            raise cursor.fault("E_GGUF_TRUNCATED", message, tensor=spec.name, offset=None, fix="fetch the file again")
        if offset % alignment:
            raise cursor.fault("E_GGUF_OFFSET", f"offset {offset:,} is not a multiple of {alignment}", tensor=spec.name,
                               offset=None)  # fmt: skip
        if start != expected:
            code, what = ("E_GGUF_OVERLAP", "early") if start < expected else ("E_GGUF_HOLE", "late")
            message = f"the tensor starts {abs(expected - start):,} bytes too {what}"
            raise cursor.fault(code, message, tensor=spec.name, offset=None)
        _check_zeros(cursor, end, start)
        tensors[spec.name] = TensorRef(spec, cursor.name, start)
        end = start + spec.size_bytes
    if cursor.size not in (end, _padded(end, alignment)):  # writers pad the last tensor or they do not
        raise cursor.fault("E_GGUF_TRAILING", f"{cursor.size - end:,} bytes after the last tensor", offset=end)
    _check_zeros(cursor, end, cursor.size)
    return tensors


def _check_zeros(cursor: Cursor, first: int, end: int) -> None:
    if first < end and any(read_exactly(cursor.fd, first, end - first, cursor.name)):
        raise cursor.fault("E_GGUF_PADDING", "padding that is not zero", offset=first)


def _padded(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def encode_gguf_header(
    metadata: Mapping[str, Value], specs: Iterable[TensorSpec], alignment: int = ALIGNMENT
) -> EncodedHeader:
    """Header of a file that holds ``specs`` in the order given; metadata is written in its own order.

    The prefix ends where the first tensor starts. Every tensor is padded with zeros to the alignment, the last one
    too, as gguf 0.19.0 writes them. ``general.alignment`` must be in the metadata unless it is 32. Raises E_GGUF_NAME,
    E_GGUF_KEY, E_GGUF_DIMS for what readers would refuse.
    """
    order = tuple(specs)
    parts = [MAGIC, struct.pack("<IQQ", WRITTEN_VERSION, len(order), len(metadata))]
    for key, value in metadata.items():
        if not 1 <= len(key.encode()) <= MAX_KEY_BYTES:
            raise refusal("E_GGUF_KEY", "the key is empty or too long", key=key)
        parts.append(encode_pair(key, value))
    position = 0
    offsets: dict[str, int] = {}
    for spec in order:
        parts.append(_encode_entry(spec, position))
        offsets[spec.name] = position
        position = _padded(position + spec.size_bytes, alignment)
    head = b"".join(parts)
    data_start = _padded(len(head), alignment)
    starts = {name: data_start + offset for name, offset in offsets.items()}
    ends = [(starts[spec.name] + spec.size_bytes) for spec in order]
    gaps = tuple((end, _padded(end, alignment) - end) for end in ends if end % alignment)
    return EncodedHeader(head.ljust(data_start, b"\0"), order, starts, data_start + position, gaps)


def _encode_entry(spec: TensorSpec, offset: int) -> bytes:
    name = spec.name.encode()
    if not 1 <= len(name) < MAX_NAME_BYTES:
        raise refusal("E_GGUF_NAME", f"a name in a GGUF has 1 to {MAX_NAME_BYTES - 1} bytes", tensor=spec.name)
    if not 1 <= len(spec.shape) <= MAX_RANK or spec.shape[-1] % STORED_TYPES[spec.dtype].block or 0 in spec.shape:
        raise refusal("E_GGUF_DIMS", f"shape {list(spec.shape)} cannot be stored as {spec.dtype}", tensor=spec.name)
    ne = tuple(reversed(spec.shape))
    head = struct.pack("<Q", len(name)) + name
    return head + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, GGML_NUMBERS[spec.dtype], offset)
