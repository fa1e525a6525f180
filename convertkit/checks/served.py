"""What an engine makes of stored planes: the values that it multiplies with, engine by engine.

Exact values are one thing, what users are served another: Marlin kernels serve small block scales as zero, engines
keep one global scale for a fused matrix, some round it. Each engine is a row with a table of values by scale byte and
code; nothing is emulated element by element. Values are those for BF16 activations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from convertkit.checks.reference import (
    HALVES,
    NAN_BYTES,
    SCALE_UNITS,
    PlaneTables,
    float_of,
    narrowed,
    package_table,
    tables_of_values,
    widened,
)

Doubles = NDArray[np.float64]

LARGEST_UNITS = 448 * 512
"""The largest E4M3 value in units of 2^-9."""


@dataclass(frozen=True, slots=True)
class Part:
    """One packed matrix as an engine meets it.

    ``global_bits`` and ``sense`` as stored, after ``served_bits``; ``largest`` is the largest positive scale byte of
    the matrix that it becomes part of (of all experts of a layer, for routed experts).
    """

    global_bits: int
    sense: str
    largest: int


@dataclass(frozen=True, slots=True)
class Engine:
    """``values(part)`` float64 [256, 16] by scale byte and code. ``fused``: it keeps one global scale for a fused
    matrix. ``lifts``: ``Part.largest`` matters. ``proof`` is ``run`` if the table is compared with the engine's own
    code in tests, ``read`` if it is only taken from the source that ``origin`` names."""

    origin: str
    proof: Literal["run", "read"]
    fused: bool
    values: Callable[[Part], Doubles]
    lifts: bool = False


def _multiplier(part: Part) -> np.float32:
    """The global scale as engines hold it: a multiplier; a divisor is turned over in FP32."""
    with np.errstate(all="ignore"):
        scale = float_of(part.global_bits)
        return scale if part.sense == "multiplier" else np.float32(1.0) / scale


def _products(scales: Doubles, factor: float) -> Doubles:
    """Codes times block scales [256] times a factor, exactly where that has 53 bits; NaN scales give NaN."""
    halves = np.array(HALVES, np.float64) / 2
    signed = np.concatenate([halves, -halves])
    with np.errstate(all="ignore"):
        table: Doubles = scales[:, None] * signed[None, :] * factor
    table[np.isnan(scales)] = np.nan
    return table


def _scales() -> Doubles:
    """Values of the 256 scale bytes, NaN included."""
    values = SCALE_UNITS.astype(np.float64) / 512
    values = np.where(np.arange(256) >= 128, -values, values)
    values[list(NAN_BYTES)] = np.nan
    return values


def rescue_factor(largest: int) -> int:
    """The power of two by which vLLM lifts block scales before it drops small ones: up to a largest one of 448."""
    units = int(SCALE_UNITS[largest])
    factor = 1
    while units and units * factor * 2 <= LARGEST_UNITS:
        factor *= 2
    return factor


def _vllm_marlin(part: Part) -> Doubles:
    """Exact products, but scales that are below 2^-6 after the lift (and negative ones) are zero."""
    scales = _scales()
    kept = scales * rescue_factor(part.largest) >= 2.0**-6
    with np.errstate(over="ignore"):
        factor = _multiplier(part) * np.float32(2.0**119)  # overflows where the global scale is 512 or more
    return _products(np.where(kept | np.isnan(scales), scales, 0.0), float(factor) * 2.0**-119)


def _sglang_marlin(part: Part) -> Doubles:
    """The same bits without lift: scales below 2^-6 are stored as such small numbers that the kernel's products with
    codes are zero. Signs are lost, and the global scale is rounded to BF16 first."""
    scales = np.abs(_scales())
    rounded = widened(narrowed(np.array([_multiplier(part)], np.float32), "BF16"), "BF16")[0]
    with np.errstate(over="ignore"):
        factor = rounded * np.float32(2.0**119)
    return _products(np.where(scales < 2.0**-6, 0.0, scales), float(factor) * 2.0**-119)


def _ggml(part: Part) -> Doubles:
    """Exact products with the FP32 scale of the tensor; scale bytes have no sign, and the NaN byte means zero."""
    scales = np.abs(_scales())
    scales[list(NAN_BYTES)] = 0.0
    return _products(scales, float(_multiplier(part)))


def _package(name: str) -> Callable[[Part], Doubles]:
    """Values in BF16 as a package's own dequantization rounds them."""
    return lambda part: widened(package_table(part.global_bits, part.sense, "BF16", name), "BF16").astype(np.float64)


ENGINES: dict[str, Engine] = {
    "vllm-marlin": Engine("vllm 0.33.0 quantization/utils/marlin_utils_fp4.py:38-141", "run", True, _vllm_marlin, True),
    "vllm-emulation": Engine(
        "vllm 0.33.0 quantization/utils/nvfp4_emulation_utils.py:576-630", "run", True, _package("modelopt")
    ),
    "sglang-marlin": Engine(
        "sglang 0.5.23 srt/layers/quantization/marlin_utils_fp4.py:31-58,203, dequant.h", "run", True, _sglang_marlin
    ),
    "ggml": Engine("gguf 0.19.0 quants.py NVFP4; llama.cpp conversion/base.py:825-847", "run", False, _ggml),
    "modelopt": Engine(
        "nvidia-modelopt 0.47.0 quantization/qtensor/nvfp4_tensor.py:385-401", "run", False, _package("modelopt")
    ),
    "compressed-tensors": Engine(
        "compressed-tensors 0.20.0 quantization/lifecycle/forward_helpers.py:548-571", "run", False,
        _package("compressed-tensors"),
    ),
}  # fmt: skip
"""By the name after ``--as-served``."""


def served_bits(engine: Engine, parts: Sequence[int], position: int, *, expert: bool) -> int:
    """Stored bits of the global scale that an engine uses for part ``position`` of a fused matrix.

    vLLM and SGLang keep the largest stored number of a dense matrix, whatever its sense (vllm 0.33.0 modelopt.py:2093,
    compressed_tensors_w4a4_nvfp4.py:111), and that of the gate for both parts of an expert (modelopt.py:1063).
    """
    if not engine.fused:
        return parts[position]
    return parts[0] if expert else max(parts, key=float_of)


def served_tables(engine: Engine, part: Part) -> PlaneTables:
    """What the planes of one matrix decode to when it is served."""
    return tables_of_values(engine.values(part))


def is_expert(module: str) -> bool:
    """Whether a module is a routed expert's: its loader treats its scales in its own way."""
    return ".experts." in f".{module}."


def lift_scope(lead: str) -> str:
    """Modules with the same scope share vLLM's lift: a fused matrix, or the same one of all experts of a layer."""
    if not is_expert(lead):
        return lead
    before, _, after = lead.partition("experts.")
    return f"{before}experts.*.{after.partition('.')[2]}"


def as_report(name: str) -> Mapping[str, Any]:
    """How a report names the engine."""
    return {"engine": name, "origin": ENGINES[name].origin, "proof": ENGINES[name].proof}


def ratio(mine: int, used: int, sense: str) -> float:
    """By how much a weight is served too large when another global scale is used than its own."""
    one, two = float(float_of(mine)), float(float_of(used))
    return two / one if sense == "multiplier" else one / two
