"""The named output formats: each a row over the axes container, layout, dialect and grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KEEP: Literal["keep"] = "keep"
Grid = Literal["BF16", "F16", "F32", "NVFP4", "keep"]


@dataclass(frozen=True, slots=True)
class Format:
    """One row. ``keep`` leaves an axis as it is in the source. ``grid`` is what the numbers become."""

    name: str
    container: str
    layout: str
    dialect: str
    grid: Grid
    meaning: str


_ROWS = (
    Format("bf16", "safetensors", KEEP, "dense", "BF16", "every float tensor in BF16, packed ones expanded"),
    Format("f16", "safetensors", KEEP, "dense", "F16", "every float tensor in F16, packed ones expanded"),
    Format("f32", "safetensors", KEEP, "dense", "F32", "every float tensor in F32, packed ones expanded"),
    Format(
        "nvfp4-modelopt", "safetensors", KEEP, "modelopt", "NVFP4", "NVFP4 W4A16 as ModelOpt spells a uniform model"
    ),
    Format(
        "nvfp4-modelopt-mixed",
        "safetensors",
        KEEP,
        "modelopt-mixed",
        "NVFP4",
        "NVFP4 W4A16 with a list of packed layers, as ModelOpt spells mixed precision",
    ),
    Format(
        "nvfp4-ct", "safetensors", KEEP, "compressed-tensors", "NVFP4", "NVFP4 W4A16 as compressed-tensors spells it"
    ),
    Format("speculators", "safetensors", "speculators", KEEP, KEEP, "a drafter as speculators keeps it"),
    Format("dflash", "safetensors", "dflash", KEEP, KEEP, "a DFlash or DFlash 2 drafter as z-lab keeps it"),
    Format("dspark", "safetensors", "dspark", KEEP, KEEP, "a DSpark drafter as DeepSpec keeps it and vLLM serves it"),
    Format(
        "gguf", "gguf", KEEP, "ggml", KEEP, "one GGUF file for llama.cpp, NVFP4 without loss; types: to-gguf --type"
    ),
    Format("eagle3", "safetensors", "eagle3", KEEP, KEEP, "an EAGLE-3 drafter under its first names, midlayer.*"),
)

FORMATS: dict[str, Format] = {row.name: row for row in _ROWS}
