"""The models that the generator makes: published drafters and small plain models, as tables of sizes.

Values of the drafters (layers, widths, taps, block size, mask token, window, rope) are those of their published
configs; the small scales keep every layer, tap and name and shrink widths and vocabulary only. ``K`` is the number
of tapped target layers, ``N`` the number of layers of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convertkit.demo import configs, tensors
from convertkit.demo.tensors import DemoTensor, Row, expand
from convertkit.errors import refusal


@dataclass(frozen=True)
class Kind:
    """One model: title, its tensors' templates, its config writer, what never scales, and the sizes per scale."""

    title: str
    rows: tuple[Row, ...]
    config: Callable[[Mapping[str, int], Mapping[str, Any], str], dict[str, Any]]
    fixed: Mapping[str, Any]
    scales: Mapping[str, Mapping[str, int]]


def _sizes(words: str) -> dict[str, int]:
    """``"H=64 I=128"`` as a dict."""
    return {name: int(value) for name, _, value in (word.partition("=") for word in words.split())}


_DFLASH2_TAPPED = (5, 19, 33, 47, 61)
_DFLASH_A3B = {
    "tiny": _sizes("L=8 H=32 I=64 nh=4 nkv=1 hd=16 V=192 mask=191"),
    "small": _sizes("L=8 H=256 I=768 nh=6 nkv=1 hd=64 V=4096 mask=4090"),
}
_DFLASH_A3B_FULL = _sizes("L=8 H=2048 I=6144 nh=32 nkv=4 hd=128 V=248320")
_HYBRID = {
    "tiny": _sizes(
        "L=4 H=64 nh=2 nkv=1 hd=32 V=192 E=4 Ie=32 Is=32 top=2 lk=2 lkd=16 lv=4 lvd=16 "
        "depth=2 Hv=32 Iv=64 nhv=2 patch=4 positions=16"
    ),
    "small": _sizes(
        "L=8 H=256 nh=4 nkv=1 hd=96 V=4096 E=16 Ie=128 Is=128 top=4 lk=4 lkd=32 lv=8 lvd=32 "
        "depth=3 Hv=128 Iv=304 nhv=4 patch=8 positions=64"
    ),
}

KINDS: dict[str, Kind] = {
    "dflash2": Kind(
        "z-lab/Qwen3.8-27B-DFlash2",
        tensors.DFLASH2,
        configs.dflash2,
        {"tapped": _DFLASH2_TAPPED, "N": 64, "block_size": 8, "layers": "S" * 5, "window": 2048, "theta": 10_000_000,
         "is_causal": False, "block_at_top": True},
        {
            "tiny": _sizes("L=5 H=64 I=128 nh=2 nkv=1 hd=16 V=192 taps=2 group=16 rank=16 top=4 mask=187"),
            "small": _sizes("L=5 H=512 I=1728 nh=6 nkv=2 hd=64 V=4096 taps=2 group=16 rank=32 top=16 mask=4090"),
            "full": _sizes(
                "L=5 H=5120 I=17408 nh=32 nkv=8 hd=128 V=248320 taps=2 group=16 rank=256 top=16 mask=248070"
            ),
        },
    ),
    "dflash": Kind(
        "z-lab/Qwen3.6-35B-A3B-DFlash",
        tensors.DFLASH,
        configs.dflash,
        {"tapped": (1, 6, 11, 16, 22, 27, 32, 37), "N": 40, "block_size": 16, "layers": "F" * 8, "theta": 10_000_000},
        {**_DFLASH_A3B, "full": {**_DFLASH_A3B_FULL, "mask": 248077}},
    ),
    "dflash-april": Kind(
        "z-lab/Qwen3.6-35B-A3B-DFlash, revision of April",
        tensors.DFLASH,
        configs.dflash,
        {"tapped": (1, 10, 19, 28, 37), "N": 40, "block_size": 16, "layers": "F" * 8, "theta": 10_000_000,
         "block_at_top": True, "yarn_factor": 64.0},
        {**_DFLASH_A3B, "full": {**_DFLASH_A3B_FULL, "mask": 248070}},
    ),
    "dflash-27b": Kind(
        "z-lab/Qwen3.6-27B-DFlash",
        tensors.DFLASH,
        configs.dflash,
        {"tapped": (1, 16, 31, 46, 61), "N": 64, "block_size": 16, "layers": "SSSSF", "window": 2048,
         "theta": 10_000_000},
        {
            "tiny": _sizes("L=5 H=64 I=128 nh=2 nkv=1 hd=16 V=192 mask=187"),
            "small": _sizes("L=5 H=512 I=1728 nh=6 nkv=2 hd=64 V=4096 mask=4090"),
            "full": _sizes("L=5 H=5120 I=17408 nh=32 nkv=8 hd=128 V=248320 mask=248070"),
        },
    ),
    "qwen3": Kind(
        "a plain Qwen3 language model",
        tensors.QWEN3,
        configs.qwen3,
        {"theta": 1_000_000},
        {
            "tiny": _sizes("L=2 H=64 I=128 nh=4 nkv=2 hd=16 V=96"),
            "small": _sizes("L=4 H=384 I=1024 nh=6 nkv=2 hd=64 V=4096"),
        },
    ),
    "qwen3-moe": Kind(
        "a Qwen3-MoE language model",
        tensors.QWEN3_MOE,
        configs.qwen3_moe,
        {"theta": 1_000_000},
        {
            "tiny": _sizes("L=2 H=64 I=128 nh=4 nkv=2 hd=16 V=96 E=4 Ie=32 top=2"),
            "small": _sizes("L=4 H=256 I=768 nh=6 nkv=2 hd=64 V=4096 E=16 Ie=128 top=4"),
        },
    ),
    "qwen3.5-moe": Kind(
        "a Qwen3.5-MoE text and vision model with linear attention, experts fused as saved",
        tensors.QWEN3_5_MOE,
        configs.qwen3_5_moe,
        {"theta": 10_000_000, "full_every": 4},
        _HYBRID,
    ),
    "qwen3.5-moe-unfused": Kind(
        "a Qwen3.5-MoE text and vision model with linear attention, one tensor per expert and linear",
        tensors.QWEN3_5_MOE_UNFUSED,
        configs.qwen3_5_moe,
        {"theta": 10_000_000, "full_every": 4},
        _HYBRID,
    ),
    "target": Kind(
        "the config, embedding, norm and head of the target of dflash2",
        tensors.TARGET,
        configs.qwen3_5,
        {"theta": 10_000_000, "full_every": 4},
        {
            "tiny": _sizes("L=64 H=64 I=128 nh=4 nkv=1 hd=16 V=192 lk=2 lkd=16 lv=4 lvd=16"),
            "small": _sizes("L=64 H=512 I=1728 nh=6 nkv=2 hd=64 V=4096 lk=4 lkd=32 lv=8 lvd=32"),
            "full": _sizes("L=64 H=5120 I=17408 nh=24 nkv=4 hd=256 V=248320 lk=16 lkd=128 lv=48 lvd=128"),
        },
    ),
}  # fmt: skip


def sizes_of(kind: str, scale: str) -> Mapping[str, int]:
    """Symbols and their values, with the derived ones. Raises ``E_USAGE`` for an unknown kind or scale."""
    row = KINDS.get(kind)
    if row is None:
        raise refusal("E_USAGE", f"unknown kind '{kind}'", fix="choose one of " + ", ".join(KINDS))
    given = row.scales.get(scale)
    if given is None:
        raise refusal("E_USAGE", f"'{kind}' has no scale '{scale}'", fix="choose one of " + ", ".join(row.scales))
    sizes = dict(given)
    if "tapped" in row.fixed:
        sizes["K"] = len(row.fixed["tapped"])
    if "group" in sizes:
        sizes["gates"] = 2 * sizes["taps"] * sizes["H"] // sizes["group"]
    return sizes


def tensors_of(kind: str, scale: str, dtype: str = "BF16") -> tuple[DemoTensor, ...]:
    """Every tensor of a model, in the order of its table."""
    sizes = sizes_of(kind, scale)
    every = KINDS[kind].fixed.get("full_every")
    layers = range(sizes["L"])
    ranges: dict[str, Sequence[int]] = {
        "i": layers,
        "f": [i for i in layers if every and (i + 1) % every == 0],
        "l": [i for i in layers if every and (i + 1) % every],
        "e": range(sizes.get("E", 0)),
        "b": range(sizes.get("depth", 0)),
    }
    return tuple(expand(KINDS[kind].rows, sizes, ranges, dtype))


def config_of(kind: str, scale: str, dtype: str = "BF16") -> dict[str, Any]:
    """The ``config.json`` of a model."""
    return KINDS[kind].config(sizes_of(kind, scale), KINDS[kind].fixed, dtype)
