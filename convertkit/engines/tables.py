"""All readers that convertkit knows, and which of them a format must satisfy."""

from __future__ import annotations

from collections.abc import Mapping

from convertkit.engines.packages import SPECULATORS, ZLAB
from convertkit.engines.reading import Engine
from convertkit.engines.sglang import SGLANG
from convertkit.engines.vllm import VLLM

ENGINES: tuple[Engine, ...] = (VLLM, SGLANG, ZLAB, SPECULATORS)

MUST_AGREE: Mapping[str, tuple[Engine, ...]] = {
    "dflash": (ZLAB, VLLM),
    "dflash2": (ZLAB, VLLM),
    "dspark": (VLLM,),
    "eagle3": (VLLM,),
    "speculators-dflash": (SPECULATORS, VLLM),
    "speculators-dflash2": (SPECULATORS, VLLM),
    "speculators-dspark": (SPECULATORS, VLLM),
    "speculators-eagle3": (SPECULATORS, VLLM),
}
"""Layout to the readers that must understand a written config as its source was meant; others only warn."""
