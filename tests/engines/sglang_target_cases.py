"""Targets for SGLang's loader: those of ``target_cases``, the mixed ones with the key that SGLang wants, the
packed ones with the key that transformers wants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.engines.cases import slug
from tests.engines.drafters import Draft, write
from tests.engines.target_cases import build_target, target_cases

CACHE_KEY, STATUS = ", with cache key", ", with status"


def sglang_targets() -> Iterator[tuple[str, Draft]]:
    """Every target by name, built."""
    for name, case in target_cases():
        made = build_target(case)
        yield name, made
        block = made.config.get("quantization_config")
        if isinstance(block, dict) and block.get("quant_algo") == "MIXED_PRECISION":
            again = build_target(case)
            again.config["quantization_config"] = {**block, "kv_cache_quant_algo": None}
            yield f"{name}{CACHE_KEY}", again
        if isinstance(block, dict) and "quantization_status" not in block and name.endswith(("ct whole", "packed")):
            again = build_target(case)
            again.config["quantization_config"] = {**block, "quantization_status": "compressed"}
            yield f"{name}{STATUS}", again


def write_targets(out: Path) -> int:
    """Write every target below ``out``; how many there are."""
    return len([write(made, out / slug(name)) for name, made in sglang_targets()])
