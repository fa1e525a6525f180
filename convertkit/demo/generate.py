"""Write a generated checkpoint: headers first, then values in fixed chunks, never more than a chunk in memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from convertkit.checkpoint import TensorSpec
from convertkit.containers.safetensors import encode_header
from convertkit.containers.strict_json import dump_config, dump_json
from convertkit.demo.drafters import KINDS, config_of, tensors_of
from convertkit.demo.side_files import side_files
from convertkit.demo.tensors import DemoTensor
from convertkit.demo.values import Dense, OnGrid, Planes, dense, fan_in_std, on_grid, planes, values
from convertkit.dtypes import FLOATS
from convertkit.errors import refusal

CHUNK = 1 << 17
"""Elements made at a time: about 3 MB of intermediate arrays, which stay in the cache of one core."""

# role -> mean and standard deviation in units of 2**-24; None: 1 / sqrt(fan-in)
ROLES: dict[str, tuple[int, int | None]] = {
    "linear": (0, None),
    "convolution": (0, None),
    "embedding": (0, 335544),  # 0.02
    "bias": (0, 335544),
    "norm": (1 << 24, 1 << 20),  # 1 and 1/16
    "centred norm": (0, 1 << 20),
    "kernel": (1 << 23, 1 << 21),  # taps of 1/2 and 1/8
    "decay": (1 << 24, 1 << 22),  # 1 and 1/4
}


@dataclass(frozen=True)
class Generated:
    """What was written: the folder, its files in order of writing, parameters and bytes of tensors."""

    root: Path
    files: tuple[str, ...]
    parameters: int
    tensor_bytes: int


def generate(
    kind: str,
    out: Path,
    *,
    scale: str = "tiny",
    on_grid: bool = False,
    seed: int = 0,
    max_shard_bytes: int | None = None,
    dtype: str = "BF16",
) -> Generated:
    """Write the model ``kind`` (a row of ``drafters.KINDS``) into the new or empty folder ``out``.

    ``on_grid`` puts the weights that are packed by default on an NVFP4 grid; ``max_shard_bytes`` bounds the tensor
    bytes of one file (a larger tensor gets a file of its own). The bytes depend on the arguments only. Raises
    ``E_USAGE`` for an unknown kind, scale or dtype and ``E_OUT_EXISTS`` if ``out`` holds anything.
    """
    if dtype not in FLOATS:
        raise refusal("E_USAGE", f"unknown dtype '{dtype}'", fix="choose one of " + ", ".join(FLOATS))
    made = tensors_of(kind, scale, dtype)
    texts = side_files(
        kind, KINDS[kind].title, scale, on_grid=on_grid, seed=seed, dtype=dtype, max_shard_bytes=max_shard_bytes
    )
    texts["config.json"] = dump_config(config_of(kind, scale, dtype))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise refusal("E_OUT_EXISTS", "the output exists and is not an empty folder", file=str(out))
    out.mkdir(parents=True, exist_ok=True)
    shards = shard([tensor.spec for tensor in made], max_shard_bytes)
    names = _shard_names(len(shards))
    by_name = {tensor.spec.name: tensor for tensor in made}
    for file, specs in zip(names, shards, strict=True):
        with (out / file).open("xb", buffering=0) as stream:
            _write(stream, specs, by_name, seed, on_grid)
    total = sum(tensor.spec.size_bytes for tensor in made)
    if len(shards) > 1:
        weight_map = {spec.name: file for file, specs in zip(names, shards, strict=True) for spec in specs}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        texts["model.safetensors.index.json"] = dump_json(index)
    for name, content in texts.items():
        (out / name).write_bytes(content)
    return Generated(out, (*names, *texts), sum(tensor.spec.elements for tensor in made), total)


def _write(
    stream: BinaryIO, specs: Sequence[TensorSpec], tensors: dict[str, DemoTensor], seed: int, gridded: bool
) -> None:
    header = encode_header(specs, {"format": "pt"})
    _write_all(stream, memoryview(header.prefix))
    for spec in header.order:
        source = _stream_of(tensors[spec.name], seed, gridded)
        for first in range(0, spec.elements, CHUNK):
            made = values(source, first, min(CHUNK, spec.elements - first))
            _write_all(stream, made.data.cast("B"))


def _write_all(stream: BinaryIO, data: memoryview) -> None:
    while data:
        data = data[stream.write(data) :]


def _stream_of(tensor: DemoTensor, seed: int, gridded: bool) -> Dense | OnGrid:
    """The values of one tensor; on the grid if ``gridded`` and the tensor has a group."""
    spec = tensor.spec
    mean, std = ROLES[tensor.role]
    width = fan_in_std(tensor.fan_in) if std is None else std
    if gridded and tensor.grid is not None:
        return on_grid(seed, spec.name, tensor.grid, spec.dtype, std=width)
    return dense(seed, spec.name, spec.dtype, mean=mean, std=width)


def grid_planes(kind: str, name: str, *, scale: str = "tiny", seed: int = 0) -> Planes:
    """The planes that tensor ``name`` of an ``on_grid`` model was made of: codes U8 [elements / 2] and block
    scales U8 [elements / 16] in row-major order. Raises KeyError if the tensor is not on the grid."""
    found = {tensor.spec.name: tensor for tensor in tensors_of(kind, scale) if tensor.grid is not None}[name]
    source = _stream_of(found, seed, True)
    assert isinstance(source, OnGrid)
    return planes(source, 0, found.spec.elements)


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key in which ``layers.2`` comes before ``layers.10``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def shard(specs: Iterable[TensorSpec], max_bytes: int | None) -> list[list[TensorSpec]]:
    """Specs in natural order of names, cut into files of at most ``max_bytes`` of tensors each."""
    shards: list[list[TensorSpec]] = [[]]
    filled = 0
    for spec in sorted(specs, key=lambda spec: natural(spec.name)):
        if max_bytes is not None and shards[-1] and filled + spec.size_bytes > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(spec)
        filled += spec.size_bytes
    return shards


def _shard_names(count: int) -> list[str]:
    """``model.safetensors``, or the numbered names of ``count`` shards."""
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{place:05d}-of-{count:05d}.safetensors" for place in range(1, count + 1)]
