"""The safetensors container: a strict header reader and the header of a deterministic writer.

Format facts: safetensors 0.8.0 (``safetensors/src/tensor.rs``). Stricter than the library where it lets two
readers see two files: duplicate names, unknown fields, leading white space, names with control characters.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from convertkit.checkpoint import TensorRef, TensorSpec
from convertkit.containers.files import read_exactly
from convertkit.containers.strict_json import Duplicate, paused_gc, unique_pairs
from convertkit.dtypes import DTYPES
from convertkit.errors import MAX_FAULTS, ConvertError, Finding, finding, refusal, shown

MAX_HEADER_BYTES = 100_000_000
MAX_TENSORS = 1 << 20
MAX_NAME_BYTES = 1024
MAX_RANK = 64
MAX_INTEGER = (1 << 63) - 1

METADATA = "__metadata__"
FIELDS = {"dtype", "shape", "data_offsets"}
UNSAFE_IN_NAMES = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ud800-\udfff]")
FOREIGN = (
    (b"PK\x03\x04", "a ZIP archive, such as a torch .bin"),
    (b"GGUF", "a GGUF file"),
    (b"\x80\x02", "a pickle"),
    (b"\x80\x04", "a pickle"),
    (b"<!DOCTYP", "an HTML page"),
    (b"<!doctyp", "an HTML page"),
    (b"<html", "an HTML page"),
    (b"version ", "a Git LFS pointer, not the file it points to"),
    (b"\x1f\x8b", "a gzip archive"),
)
TEXT = frozenset((*range(0x20, 0x7F), *b"\t\r\n"))
"""Bytes that text begins with; as the length of a header eight of them mean more than any file holds."""


@dataclass(frozen=True)
class Header:
    """A checked header: tensors by name, string metadata, first payload byte, findings worth a note."""

    tensors: Mapping[str, TensorRef]
    metadata: Mapping[str, str]
    data_start: int
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class EncodedHeader:
    """First bytes of a file to be written and where each tensor starts in it (absolute byte offsets).

    ``gaps`` are (offset, length) of the zero bytes that pad tensors; a safetensors file has none.
    """

    prefix: bytes
    order: tuple[TensorSpec, ...]
    starts: Mapping[str, int]
    size_bytes: int
    gaps: tuple[tuple[int, int], ...] = ()


def read_header(fd: int, name: str) -> Header:
    """Read and check the header of an open file called ``name`` in errors. No payload byte is read.

    Every byte of the file must be header or belong to exactly one tensor. Raises ``ConvertError`` with an
    ``E_ST_*`` code; faults of several tensors are reported together, the first ``MAX_FAULTS`` of them.
    """
    size = os.fstat(fd).st_size
    length = _header_length(fd, size, name)
    raw = read_exactly(fd, 8, length, name)
    with paused_gc():
        entries, metadata, findings = _parse(raw, name)
        tensors = _check_entries(entries, name, 8 + length, size - 8 - length)
    return Header(tensors, metadata, 8 + length, findings)


def _header_length(fd: int, size: int, name: str) -> int:
    start = read_exactly(fd, 0, min(size, 9), name)
    for magic, what in FOREIGN:
        # a header of 640 bytes begins like a pickle: only what does not go on with '{' is something else
        if start.startswith(magic) and start[8:] != b"{":
            raise refusal("E_ST_NOT_SAFETENSORS", f"this is {what}", file=name, fix="fetch the real safetensors file")
    if size < 8:
        raise refusal("E_ST_TRUNCATED", f"{size} bytes cannot hold a header", file=name, fix="fetch the file again")
    length = int.from_bytes(start[:8], "little")
    if length > MAX_HEADER_BYTES and all(byte in TEXT for byte in start[:8]):
        raise refusal("E_ST_NOT_SAFETENSORS", "this is text", file=name, fix="name the weight file, or its folder")
    if length > MAX_HEADER_BYTES:
        raise refusal(
            "E_ST_HEADER_TOO_LARGE", f"header of {length:,} bytes; the limit is {MAX_HEADER_BYTES:,}", file=name
        )
    if 8 + length > size:
        raise refusal(
            "E_ST_TRUNCATED", f"header of {length:,} bytes in a file of {size:,}", file=name, fix="fetch the file again"
        )
    return length


def _parse(raw: bytes, name: str) -> tuple[dict[str, Any], dict[str, str], tuple[Finding, ...]]:
    """Entries without metadata, metadata, notes."""
    if not raw.startswith(b"{"):
        raise refusal("E_ST_HEADER", "the header does not start with '{'", file=name, offset=8)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise refusal("E_ST_UTF8", "the header is not valid UTF-8", file=name, offset=8 + error.start) from None
    try:
        entries = json.loads(text, object_pairs_hook=unique_pairs, parse_constant=_no_constant)
    except RecursionError:
        raise refusal("E_ST_HEADER", "the header is nested too deeply", file=name) from None
    except ValueError as error:
        what = f"the header is not JSON: {shown(error)}"
        if text.endswith("\0"):
            what = f"the header is padded with {len(text) - len(text.rstrip(chr(0)))} NUL bytes, not with spaces"
        raise refusal("E_ST_HEADER", what, file=name) from None
    if isinstance(entries, Duplicate):
        raise refusal(
            "E_ST_DUP_KEY", f"'{shown(entries.key)}' occurs twice in the header", file=name, tensor=entries.key
        )
    padding = text[len(text.rstrip(" \t\r\n")) :]
    odd = padding.strip(" ")
    notes = (finding("W_ST_PADDING", "note", "header padded with other white space than spaces", file=name),)
    return entries, _check_metadata(entries.pop(METADATA, {}), name), notes if odd else ()


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _check_metadata(value: Any, name: str) -> dict[str, str]:
    if isinstance(value, Duplicate):
        raise refusal("E_ST_DUP_KEY", f"'{shown(value.key)}' occurs twice in {METADATA}", file=name, key=value.key)
    if not isinstance(value, dict) or not all(type(item) is str for item in value.values()):
        raise refusal("E_ST_METADATA", f"{METADATA} is not a map of strings to strings", file=name, key=METADATA)
    return value


def _check_entries(entries: dict[str, Any], name: str, data_start: int, data_bytes: int) -> dict[str, TensorRef]:
    """All tensors in the order of their bytes."""
    if len(entries) > MAX_TENSORS:
        raise refusal("E_ST_COUNT", f"{len(entries):,} tensors; the limit is {MAX_TENSORS:,}", file=name)
    faults: list[Finding] = []
    spans: list[tuple[int, int, str, TensorSpec]] = []
    for tensor, entry in entries.items():
        fault = name_fault(tensor) or _entry_fault(entry, data_bytes)
        if fault is not None:
            faults.append(finding(fault[0], "error", fault[1], file=name, tensor=tensor))
            if len(faults) == MAX_FAULTS:
                break
            continue
        begin, end = entry["data_offsets"]
        spans.append((begin, end, tensor, TensorSpec(tensor, entry["dtype"], tuple(entry["shape"]))))
    if faults:
        raise ConvertError(faults)
    spans.sort()  # names differ, so that no two specs are compared
    _check_cover(spans, name, data_bytes)
    return {tensor: TensorRef(spec, name, data_start + begin) for begin, _, tensor, spec in spans}


def name_fault(name: str) -> tuple[str, str] | None:
    """Code and message of what is wrong with the name of a tensor, or None."""
    if UNSAFE_IN_NAMES.search(name):
        return "E_ST_NAME", "the name holds control characters"
    if not 1 <= len(name) <= MAX_NAME_BYTES or not (name.isascii() or len(name.encode()) <= MAX_NAME_BYTES):
        return "E_ST_NAME", f"a name must have 1 to {MAX_NAME_BYTES:,} bytes"
    return None


def _entry_fault(entry: Any, data_bytes: int) -> tuple[str, str] | None:
    """Code and message of the first fault of one tensor entry, or None."""
    if isinstance(entry, Duplicate):
        return "E_ST_DUP_KEY", f"field '{shown(entry.key)}' occurs twice"
    if not isinstance(entry, dict):
        return "E_ST_FIELD", "the entry is not an object"
    if entry.keys() != FIELDS:
        odd = ", ".join(sorted(shown(key) for key in entry.keys() ^ FIELDS))
        return "E_ST_FIELD", f"fields missing or unknown: {odd}"
    dtype = DTYPES.get(entry["dtype"]) if type(entry["dtype"]) is str else None
    if dtype is None:
        return "E_ST_DTYPE", f"dtype '{shown(entry['dtype'])}' is unknown"
    return _shape_fault(entry["shape"]) or _span_fault(entry, dtype.bits, data_bytes)


def _shape_fault(shape: Any) -> tuple[str, str] | None:
    if type(shape) is not list or len(shape) > MAX_RANK:
        return "E_ST_SHAPE", f"shape is not a list of at most {MAX_RANK} integers"
    for item in shape:
        if type(item) is not int or not 0 <= item <= MAX_INTEGER:
            return "E_ST_SHAPE", f"dimension {shown(item)} is not a non-negative 63-bit integer"
    return None


def _span_fault(entry: dict[str, Any], bits: int, data_bytes: int) -> tuple[str, str] | None:
    offsets = entry["data_offsets"]
    if type(offsets) is not list or [type(item) for item in offsets] != [int, int]:
        return "E_ST_OFFSETS", "data_offsets is not a pair of integers"
    begin, end = offsets
    if not 0 <= begin <= end <= MAX_INTEGER:
        return "E_ST_OFFSETS", f"data_offsets [{begin}, {end}] is not an ordered pair"
    total_bits = prod(entry["shape"]) * bits
    if total_bits > 8 * MAX_INTEGER:
        return "E_ST_OVERFLOW", "the shape has more elements than a file can hold"
    if total_bits % 8:
        return "E_ST_SUBBYTE", "the tensor is not a whole number of bytes"
    if end - begin != total_bits // 8:
        return "E_ST_SIZE", f"{end - begin:,} bytes are given, dtype and shape need {total_bits // 8:,}"
    if end > data_bytes:
        return "E_ST_TRUNCATED", f"the tensor ends at data byte {end:,}, the file at {data_bytes:,}"
    return None


def _check_cover(spans: list[tuple[int, int, str, TensorSpec]], name: str, data_bytes: int) -> None:
    """The spans, sorted, must cover the payload exactly once."""
    position = 0
    for begin, end, tensor, _ in spans:
        if begin < position:
            raise refusal("E_ST_OVERLAP", "the tensor shares bytes with another", file=name, tensor=tensor)
        if begin > position:
            raise refusal(
                "E_ST_HOLE", f"{begin - position:,} bytes before the tensor belong to none", file=name, tensor=tensor
            )
        position = end
    if position != data_bytes:
        raise refusal("E_ST_TRAILING", f"{data_bytes - position:,} bytes after the last tensor", file=name)


def encode_header(
    specs: Iterable[TensorSpec], metadata: Mapping[str, str] | None = None, slack_bytes: int = 0
) -> EncodedHeader:
    """Header of a file that holds ``specs``, in the byte order of ``safetensors.save_file``.

    Tensors are ordered by ``DTYPES`` rank, then by name as UTF-8; metadata keys are sorted (the library writes
    several in hash order, so equality with it holds for at most one key); ``slack_bytes`` more spaces are added
    for later renames in place. Raises ``E_ST_HEADER_TOO_LARGE``.
    """
    order = sorted(specs, key=lambda spec: (DTYPES[spec.dtype].rank, spec.name.encode()))
    return encode_ordered(order, metadata, lambda length: -(-(length + slack_bytes) // 8) * 8)


def encode_ordered(
    specs: Iterable[TensorSpec], metadata: Mapping[str, str] | None, length_of: Callable[[int], int]
) -> EncodedHeader:
    """Header of a file whose tensors lie in the order given; any order is legal.

    ``length_of`` gives the bytes between the length field and the payload, from those that the JSON needs.
    Raises ``E_ST_HEADER_TOO_LARGE``.
    """
    order = tuple(specs)
    entries: dict[str, Any] = {METADATA: dict(sorted(metadata.items()))} if metadata else {}
    relative: dict[str, int] = {}
    position = 0
    for spec in order:
        relative[spec.name] = position
        end = position + spec.size_bytes
        entries[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    length = length_of(len(text))
    if length > MAX_HEADER_BYTES:
        raise refusal("E_ST_HEADER_TOO_LARGE", f"the header would have {length:,} bytes")
    data_start = 8 + length
    starts = {tensor: data_start + offset for tensor, offset in relative.items()}
    return EncodedHeader(length.to_bytes(8, "little") + text.ljust(length), order, starts, data_start + position)
