"""``--scales``: what each word stands for, and global scales that are taken from another checkpoint as hints."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from convertkit.checkpoint import Checkpoint
from convertkit.containers.reader import Reader
from convertkit.conversion.units import Search
from convertkit.dialects.planes import find_packed
from convertkit.dialects.values import sound_global_bits
from convertkit.errors import raise_all, refusal

LEAST_NORMAL_SCALE = 8
"""E4M3 byte of 2^-6. Marlin kernels serve smaller block scales as zero, unless a weight's largest one is small too."""


@dataclass(frozen=True, slots=True)
class Scales:
    """``arithmetic`` as in ``units.Pack``; ``search`` for a grid comes first."""

    arithmetic: str
    search: Search
    meaning: str


SCALES: dict[str, Scales] = {
    "auto": Scales("amax", "auto", "lossless where every block of a group lies on an NVFP4 grid, amax elsewhere"),
    "lossless": Scales("amax", "lossless", "refuse weights that do not lie on a grid"),
    "amax": Scales("amax", "no", "ModelOpt's arithmetic"),
    "amax-llmcompressor": Scales("amax-llmcompressor", "no", "llm-compressor's arithmetic"),
    "mse": Scales("mse", "no", "block scales of least squared error"),
    "four-over-six": Scales("four-over-six", "no", "the better of largest code 6 and 4"),
}
"""By the word after ``--scales``."""

Hints = Mapping[str, tuple[int, str]]
"""Stored FP32 bits of global scales and their sense, by module."""


def read_hints(reference: Checkpoint) -> Hints:
    """The global scales of a packed checkpoint. ``ConvertError`` if it has none or its planes are broken."""
    planes = find_packed(reference)
    raise_all(item for item in planes.findings if item.severity == "error")
    if not planes.packed:
        raise refusal("E_NOT_QUANTIZED", "the checkpoint to take global scales from has no packed linear")
    with Reader(reference) as reader:
        bits = sound_global_bits(reader, planes.packed.values())
    return {module: (bits[module], packed.spelling.sense) for module, packed in planes.packed.items()}


def hints_of(modules: Sequence[str], hints: Hints, sense: str) -> tuple[int, ...]:
    """The different hints for one group, as they would be stored in ``sense``."""
    found = dict.fromkeys(hints[module] for module in modules if module in hints)
    return tuple(dict.fromkeys(bits if of == sense else _turned(bits) for bits, of in found))


def _turned(bits: int) -> int:
    return int((np.float32(1) / np.uint32(bits).view(np.float32)).view(np.uint32))


def hints_digest(hints: Hints) -> str | None:
    """What a plan records of hints: a digest, since there may be many."""
    if not hints:
        return None
    return hashlib.sha256(json.dumps(sorted(hints.items())).encode()).hexdigest()
