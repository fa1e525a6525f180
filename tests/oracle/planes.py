"""Raw tensors of a checkpoint folder, and our encoder driven over its fused groups."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from convertkit.grids.nvfp4 import encode, tables

FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class Raw(NamedTuple):
    """A stored tensor: dtype name, shape, bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Planes(NamedTuple):
    """Our encoding of one weight: bytes of codes and block scales, FP32 bits of the global scale."""

    codes: bytes
    scales: bytes
    global_bits: int


def raw_tensors(folder: Path) -> dict[str, Raw]:
    """All tensors of ``model.safetensors``, read without any package."""
    return _tensors_of(folder / "model.safetensors")


def all_tensors(folder: Path) -> dict[str, Raw]:
    """All tensors of all shards."""
    return {name: raw for path in sorted(folder.glob("*.safetensors")) for name, raw in _tensors_of(path).items()}


def _tensors_of(path: Path) -> dict[str, Raw]:
    blob = path.read_bytes()
    start = 8 + int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8:start])
    header.pop("__metadata__", None)
    return {
        name: Raw(
            row["dtype"], tuple(row["shape"]), blob[start + row["data_offsets"][0] : start + row["data_offsets"][1]]
        )
        for name, row in header.items()
    }


def fused_groups(modules: list[str]) -> list[list[str]]:
    """Module names in groups that share a global scale: q/k/v and gate/up of one parent."""
    groups: dict[str, list[str]] = {}
    for module in sorted(modules):
        parent, _, leaf = module.rpartition(".")
        kind = next((i for i, leaves in enumerate(FUSED) if leaf in leaves), leaf)
        groups.setdefault(f"{parent}/{kind}", []).append(module)
    return list(groups.values())


def bits16(raw: Raw) -> NDArray[np.uint16]:
    """BF16 storage bits, shaped."""
    assert raw.dtype == "BF16"
    return np.frombuffer(raw.data, np.uint16).reshape(raw.shape)


def packed(values: NDArray[np.uint16], built: tables.EncodeTables) -> Planes:
    codes = np.zeros((values.shape[0], values.shape[1] // 2), np.uint8)
    scales = np.zeros((values.shape[0], values.shape[1] // 16), np.uint8)
    encode.encode_tile(values, built, codes, scales)
    return Planes(codes.tobytes(), scales.tobytes(), built.global_bits)


def packed_modules(source: dict[str, Raw], modules: list[str], arithmetic: str) -> dict[str, Planes]:
    """Our planes of the named modules of a dense BF16 checkpoint, by module name."""
    done: dict[str, Planes] = {}
    for group in fused_groups(modules):
        weights = {module: bits16(source[f"{module}.weight"]) for module in group}
        amax = max(encode.amax_of_tile(values) for values in weights.values())
        built = tables.build_encode_tables(arithmetic, "BF16", amax)
        done.update({module: packed(values, built) for module, values in weights.items()})
    return done


def modules_with(tensors: dict[str, Raw], suffix: str) -> list[str]:
    """Modules that own a tensor of that suffix."""
    return [name.removesuffix(f".{suffix}") for name in tensors if re.fullmatch(rf".+\.{suffix}", name)]
