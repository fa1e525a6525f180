"""Ways in which a drafter goes wrong between training and serving, done to a copy of it on disk."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from convertkit.checkpoint import TensorRef
from convertkit.containers.folder import open_checkpoint


def copied(source: Path, out: Path) -> Path:
    shutil.copytree(source, out)
    return out


def ref_of(folder: Path, name: str) -> TensorRef:
    return open_checkpoint(folder).tensors[name]


def change(folder: Path, name: str, edit: Callable[[bytes], bytes]) -> None:
    """Replace a tensor's bytes by as many others."""
    ref = ref_of(folder, name)
    with (folder / ref.file).open("r+b") as stream:
        stream.seek(ref.start)
        data = edit(stream.read(ref.size_bytes))
        assert len(data) == ref.size_bytes
        stream.seek(ref.start)
        stream.write(data)


def bytes_of(folder: Path, name: str) -> bytes:
    ref = ref_of(folder, name)
    with (folder / ref.file).open("rb") as stream:
        stream.seek(ref.start)
        return stream.read(ref.size_bytes)


def swap(folder: Path, one: str, other: str) -> None:
    """Exchange the bytes of two tensors of one size."""
    first, second = bytes_of(folder, one), bytes_of(folder, other)
    change(folder, one, lambda _: second)
    change(folder, other, lambda _: first)


def swap_scales(folder: Path, layer: int) -> None:
    """One layer's block scales of gate and up in each other's place."""
    at = f"layers.{layer}.mlp"
    swap(folder, f"{at}.gate_proj.weight_scale", f"{at}.up_proj.weight_scale")


def scale_global(folder: Path, module: str, factor: float, leaf: str = "weight_scale_2") -> None:
    """A global scale that is off by a factor."""
    change(folder, f"{module}.{leaf}", lambda data: struct.pack("<f", struct.unpack("<f", data)[0] * factor))


def scale_bf16(folder: Path, name: str, factor: float) -> None:
    """A dense BF16 tensor that is off by a factor; rounded towards zero."""

    def scaled(data: bytes) -> bytes:
        values = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4") * np.float32(factor)
        return (values.view("<u4") >> 16).astype("<u2").tobytes()

    change(folder, name, scaled)


def roll_scales(folder: Path, module: str) -> None:
    """Block scales shifted by one row, as after a wrong slice."""
    name = f"{module}.weight_scale"
    width = ref_of(folder, name).spec.shape[1]
    change(folder, name, lambda data: data[width:] + data[:width])


def swap_nibbles(folder: Path, module: str, leaf: str = "weight") -> None:
    change(folder, f"{module}.{leaf}", lambda data: bytes((byte >> 4) | (byte << 4 & 0xF0) for byte in data))


def shift_taps(folder: Path, by: int = 1) -> None:
    """Tapped layers read in the other convention."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["dflash_config"]["target_layer_ids"] = [tap + by for tap in config["dflash_config"]["target_layer_ids"]]
    path.write_text(json.dumps(config))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "one layer's block scales swapped": lambda folder: swap_scales(folder, 2),
    "block scales of one module a row off": lambda folder: roll_scales(folder, "layers.2.mlp.down_proj"),
    "one global scale 25% off": lambda folder: scale_global(folder, "layers.2.mlp.down_proj", 1.25),
    "nibbles of one module swapped": lambda folder: swap_nibbles(folder, "layers.2.mlp.down_proj"),
    "taps off by one": shift_taps,
}
"""What is done to a ModelOpt pack of a DFlash drafter; all but the last are of layer 2."""
