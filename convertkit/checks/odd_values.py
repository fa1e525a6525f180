"""Values that load and mean nothing: rows of zeros, matrices of one value, embeddings that are not the target's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from convertkit.checkpoint import Checkpoint, TensorRef
from convertkit.checks.tiles import row_tiles
from convertkit.containers.reader import Reader
from convertkit.dialects.planes import Planes
from convertkit.errors import MAX_LISTED, Finding, finding
from convertkit.layouts.rules import families

MAGNITUDE = {"BF16": ("<u2", 0x7FFF), "F16": ("<u2", 0x7FFF), "F32": ("<u4", 0x7FFF_FFFF)}
"""Storage type of a float and the mask of its magnitude."""

COPIES = ("embed_tokens.weight", "lm_head.weight")
"""Tensors of a target that a drafter may hold a copy of."""


def odd_value_findings(checkpoint: Checkpoint, planes: Planes, reader: Reader) -> Iterator[Finding]:
    """Dense matrices that hold one value only (N_CONSTANT) or rows of zeros (W_DEAD_ROWS), by family."""
    constant: list[str] = []
    dead: dict[str, int] = {}
    for name, ref in checkpoint.tensors.items():
        if name not in planes.plane_names and ref.spec.dtype in MAGNITUDE and len(ref.spec.shape) == 2:
            same, zeros = _look(ref, reader)
            if same and ref.spec.elements > 1:
                constant.append(name)
            elif zeros:
                dead[name] = zeros
    for family in families(constant).values():
        message = f"{len(family.names)} x '{family.template}': all values are the same, as if never trained or filled"
        data = {"count": len(family.names), "tensors": list(family.names[:MAX_LISTED])}
        yield finding("N_CONSTANT", "note", message, tensor=family.names[0], data=data)
    for family in families(dead).values():
        first, rows = family.names[0], sum(dead[name] for name in family.names)
        message = f"{rows} rows of '{family.template}' hold zeros only: they produce nothing"
        yield finding("W_DEAD_ROWS", "warning", message, tensor=first, data={"rows": rows, "count": len(family.names)})


def _values(ref: TensorRef, reader: Reader, first: int, count: int) -> NDArray[np.unsignedinteger]:
    storage, _ = MAGNITUDE[ref.spec.dtype]
    item = np.dtype(storage).itemsize
    buffer = bytearray(count * item)
    reader.read_into(ref, first * item, memoryview(buffer))
    return np.frombuffer(buffer, storage)


def _look(ref: TensorRef, reader: Reader) -> tuple[bool, int]:
    """Whether all values are one, and the number of rows of zeros."""
    rows, columns = ref.spec.shape
    mask = MAGNITUDE[ref.spec.dtype][1]
    first_value: int | None = None
    same, zeros = True, 0
    for first, count in row_tiles(rows, columns) if columns else ():
        values = _values(ref, reader, first * columns, count * columns)
        first_value = int(values[0]) if first_value is None else first_value
        same = same and bool((values == first_value).all())
        zeros += int(np.count_nonzero(~((values & mask) != 0).reshape(count, columns).any(axis=1)))
    return same and first_value is not None, zeros


def copy_findings(checkpoint: Checkpoint, target: Checkpoint) -> Iterator[Finding]:
    """Copies of the target's embedding and head that differ from it: vLLM serves the copy, SGLang the target's
    (W_COPY_DIFFERS)."""
    with Reader(checkpoint) as ours, Reader(target) as theirs:
        for leaf in COPIES:
            here = _named(checkpoint, leaf)
            there = _named(target, leaf)
            if here is None or there is None or here.spec.dtype not in MAGNITUDE:
                continue
            alike = (here.spec.shape, here.spec.dtype) == (there.spec.shape, there.spec.dtype)
            if not alike or len(here.spec.shape) != 2:  # whatever has another shape is told by the layout
                continue
            count = _differing(here, ours, there, theirs)
            if count:
                message = (
                    f"{count} of {here.spec.elements} values differ from the target's '{there.spec.name}': vLLM serves "
                    "the drafter's copy, SGLang the target's"
                )
                data = {"differing": count, "elements": here.spec.elements}
                yield finding("W_COPY_DIFFERS", "warning", message, tensor=here.spec.name, data=data)


def _named(checkpoint: Checkpoint, leaf: str) -> TensorRef | None:
    return next((ref for name, ref in checkpoint.tensors.items() if name == leaf or name.endswith(f".{leaf}")), None)


def _differing(here: TensorRef, ours: Reader, there: TensorRef, theirs: Reader) -> int:
    rows, columns = here.spec.shape
    return sum(
        int(
            np.count_nonzero(
                _values(here, ours, first * columns, count * columns)
                != _values(there, theirs, first * columns, count * columns)
            )
        )
        for first, count in row_tiles(rows, columns)
    )
