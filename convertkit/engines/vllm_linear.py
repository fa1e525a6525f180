"""One linear as vLLM 0.33 builds it, on one tensor-parallel rank: its parameters, the parts that fill them, shapes.

Compared with the parameters of the built models, alone and as ranks: ``tests/engines/rank_cases.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from convertkit.checkpoint import TensorSpec
from convertkit.engines.model import Fit, Parameter, Part, Wrong, stop
from convertkit.engines.quantized import Grid

PAD_VOCABULARY = 64
"""Rows of embeddings and heads are padded to a multiple of this (``vocab_parallel_embedding.py``)."""


def padded_rows(rows: int) -> int:
    """Rows of an embedding or head with its padding."""
    return -(-rows // PAD_VOCABULARY) * PAD_VOCABULARY


@dataclass(frozen=True, slots=True)
class Rank:
    """One tensor-parallel rank of ``size``; ``dtype`` is that of unquantized parameters."""

    size: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear as vLLM builds it: our name, vLLM's own name for its quantization config, its class; the parts it is
    fused from with their rows, its columns, and how it is split over ranks."""

    name: str
    runtime: str
    kind: str
    parts: tuple[tuple[str, int], ...]
    columns: int
    split: Fit = "exact"
    rank_rows: int | None = None
    bias: bool = False


def share(size: int, ranks: int, what: str) -> int:
    if size % ranks:
        raise stop("create", f"{what} ({size}) cannot be divided among {ranks} ranks", "vllm.tp-divides")
    return size // ranks


def linear(row: Linear, grid: Grid, rank: Rank) -> Iterator[Parameter]:
    """The parameters of one linear: dense, or the planes of its grid."""
    rows = sum(part[1] for part in row.parts)
    if row.split == "rows":
        own = row.rank_rows if row.rank_rows is not None else sum(share(n, rank.size, row.name) for _, n in row.parts)
    else:
        own = rows
    columns = share(row.columns, rank.size, row.name) if row.split == "columns" else row.columns
    if grid == "dense":
        yield _planes(row, "weight", own, columns, rank.dtype, 1)
    elif grid == "mo-fp8":
        yield from _fp8(row, own, columns)
    else:
        yield from _packed(row, grid, own, columns)
    if row.bias:
        parts = tuple(Part(shard, (n,), "rows" if row.split == "rows" else "exact") for shard, n in row.parts)
        yield Parameter(f"{row.name}.bias", (own,), rank.dtype, parts, rule="vllm.linear")


def _planes(row: Linear, leaf: str, own: int, columns: int, dtype: str, divisor: int) -> Parameter:
    parts = tuple(Part(shard, (n, row.columns // divisor), row.split) for shard, n in row.parts)
    return Parameter(f"{row.name}.{leaf}", (own, columns // divisor), dtype, parts, rule="vllm.linear")


def _fp8(row: Linear, own: int, columns: int) -> Iterator[Parameter]:
    """FP8 weights, a scale of them and of the activations for each part; nothing is refused if they are missing
    (``modelopt.py:2137``)."""
    yield _planes(row, "weight", own, columns, "F8_E4M3", 1)
    scalars = tuple(Part(shard, (), "scalar") for shard, _ in row.parts)
    for leaf, rule in (("weight_scale", "vllm.global-scale"), ("input_scale", "vllm.input-scale")):
        yield Parameter(f"{row.name}.{leaf}", (len(scalars),), "F32", scalars, rule=rule)


def _packed(row: Linear, grid: Grid, own: int, columns: int) -> Iterator[Parameter]:
    """Codes, block scales, one global scale per part, activation scales. ModelOpt refuses a missing block scale
    (it is NaN until loaded) and nothing else; compressed-tensors refuses nothing, not even a width whose last columns
    have no scale."""
    modelopt = grid.startswith("mo")
    if columns % 16 and modelopt:
        raise stop("create", "Unsupported model when in features size is not multiple of 16", "vllm.width",
                   tensor=row.name)  # fmt: skip
    codes, scale = ("weight", "weight_scale_2") if modelopt else ("weight_packed", "weight_global_scale")
    yield _planes(row, codes, own, columns, "U8", 2)
    scalars = tuple(Part(shard, (), "scalar") for shard, _ in row.parts)
    yield Parameter(f"{row.name}.{scale}", (len(scalars),), "F32", scalars, rule="vllm.global-scale")
    blocks = _planes(row, "weight_scale", own, columns, "F8_E4M3", 16)
    if columns % 16:
        taken = columns // 16 * (row.columns // columns)  # what all ranks together take of a row's scales
        blocks = replace(
            blocks, parts=tuple(Part(part.shard, (part.shape[0], taken), part.fit) for part in blocks.parts)
        )
    fresh = "refused later" if modelopt else "uninitialised"
    yield Parameter(blocks.name, blocks.shape, blocks.dtype, blocks.parts, fresh, rule="vllm.block-scale")  # type: ignore[arg-type]
    if grid == "mo-a16":
        dropped = Parameter(f"{row.name}.input_scale", (len(scalars),), "F32", scalars, unread=True)
        yield dropped
    elif grid in ("mo-a4", "ct-a4"):
        leaf = "input_scale" if modelopt else "input_global_scale"
        yield Parameter(f"{row.name}.{leaf}", (len(scalars),), "F32", scalars, rule="vllm.input-scale")


def strange(spec: TensorSpec, dtype: str) -> Wrong:
    """A tensor of a dtype that torch converts value by value into something else."""
    message = f"{spec.dtype} is converted to {dtype} value by value, which is not what it means"
    return Wrong("E_LOAD_DTYPE", message, "vllm.dtype", spec.name)


def norm(name: str, size: int, dtype: str, unread: bool = False) -> Parameter:
    """A norm: ones until loaded, so nothing shows when it is missing."""
    return Parameter(name, (size,), dtype, (Part("", (size,)),), "ones", unread=unread, rule="vllm.norm")


def plain(name: str, shape: tuple[int, ...], dtype: str) -> Parameter:
    """A parameter of its own."""
    return Parameter(name, shape, dtype, (Part("", shape),), rule="vllm.silent")


def table(name: str, rows: int, columns: int, rank: Rank, lender: str | None = None) -> Parameter:
    """An embedding or head: rows padded and divided among ranks, the stored tensor exact."""
    own = share(padded_rows(rows), rank.size, name)
    return Parameter(name, (own, columns), rank.dtype, (Part("", (rows, columns)),), lender=lender, rule="vllm.silent")
