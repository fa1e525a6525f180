"""A GGUF in parts, as llama.cpp's ``gguf-split`` cuts, names and numbers them.

Format facts: llama.cpp 0.5.0-dev ``tools/gguf-split/gguf-split.cpp`` (``split_strategy``) and ``src/llama.cpp``
(``llama_split_path``). All metadata is in the first part; the others hold only the three ``split.*`` keys. Parts are
filled in the order of the tensors, counting tensors padded to 32 bytes and no headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from convertkit.checkpoint import TensorSpec
from convertkit.containers.gguf import ALIGNMENT, encode_gguf_header
from convertkit.containers.gguf_parts import MAX_PARTS, SUFFIX
from convertkit.containers.gguf_values import Scalar, Value
from convertkit.conversion.plan import PlannedFile
from convertkit.errors import refusal


@dataclass(frozen=True, slots=True)
class Split:
    """Where a part ends: after so many bytes of tensors, or so many tensors. At most one is given; neither is one
    file. A tensor larger than ``max_bytes`` is a part of its own."""

    max_bytes: int | None = None
    max_tensors: int | None = None

    def __post_init__(self) -> None:
        if self.max_bytes is not None and self.max_tensors is not None:
            raise refusal("E_USAGE", "parts end either by size or by number of tensors", fix="give one of the two")
        if any(limit is not None and limit < 1 for limit in (self.max_bytes, self.max_tensors)):
            raise refusal("E_USAGE", "a part holds at least one byte of one tensor", fix="give a larger limit")

    @property
    def wanted(self) -> bool:
        return bool(self.parameters)

    @property
    def parameters(self) -> dict[str, int]:
        """The limit that is given, under its name in the API."""
        limits = {"split_max_bytes": self.max_bytes, "split_max_tensors": self.max_tensors}
        return {name: limit for name, limit in limits.items() if limit is not None}


WHOLE = Split()
"""One file."""


def planned_files(
    metadata: Mapping[str, Value], specs: Sequence[TensorSpec], file_name: str, split: Split
) -> tuple[PlannedFile, ...]:
    """``file_name`` alone if nothing is to be split or all fits, else ``NAME-00001-of-0000N.gguf`` and so on.

    Raises ``E_USAGE`` if there would be more parts than readers take.
    """
    parts = list(_parts(specs, split)) if split.wanted else [list(specs)]
    if len(parts) <= 1:
        return (PlannedFile(file_name, encode_gguf_header(metadata, specs)),)
    if len(parts) > MAX_PARTS:
        raise refusal("E_USAGE", f"{len(parts):,} parts; the limit is {MAX_PARTS:,}", fix="give a larger limit")
    stem = file_name.removesuffix(SUFFIX)
    return tuple(
        PlannedFile(
            f"{stem}-{number + 1:05}-of-{len(parts):05}{SUFFIX}",
            encode_gguf_header({**(metadata if number == 0 else {}), **_keys(number, len(parts), len(specs))}, part),
        )
        for number, part in enumerate(parts)
    )


def _parts(specs: Sequence[TensorSpec], split: Split) -> Iterator[list[TensorSpec]]:
    part: list[TensorSpec] = []
    filled = 0
    for spec in specs:
        size = -(-spec.size_bytes // ALIGNMENT) * ALIGNMENT
        full = len(part) == split.max_tensors or (split.max_bytes is not None and filled + size > split.max_bytes)
        if part and full:
            yield part
            part, filled = [], 0
        part.append(spec)
        filled += size
    yield part


def _keys(number: int, count: int, tensors: int) -> dict[str, Value]:
    """In the order of ``gguf-split``, so that its files are the same byte for byte."""
    return {
        "split.no": Scalar("u16", number),
        "split.tensors.count": Scalar("i32", tensors),
        "split.count": Scalar("u16", count),
    }
