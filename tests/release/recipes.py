"""Small recipes over generated drafters."""

from __future__ import annotations

from pathlib import Path

from convertkit.demo.generate import generate

SEED = """
schema = "convertkit.recipe/1"
name = "seed"
version = "1.0.0"
source = "drafter"
target_id = "Qwen/Qwen3.8-27B"
files = ["drafter/LICENSE", "drafter/NOTICE"]

[[variants]]
folder = "."
format = "nvfp4-modelopt-mixed"

[[variants]]
folder = "bf16"
format = "bf16"
from = "."
against = "source"

[[engines]]
name = "vllm"
variants = [".", "bf16"]

[[engines]]
name = "sglang"
variants = ["bf16"]

[card]
title = "A drafter"
license = "apache-2.0"
base_model = ["Qwen/Qwen3.8-27B"]
base_model_relation = "finetune"
library_name = "vllm"
pipeline_tag = "text-generation"
tags = ["nvfp4", "speculative-decoding"]
"""
"""The third seed at small scale: the pack in the root and its expansion, which equals the source, in bf16/."""

CT = '[[variants]]\nfolder = "ct"\nformat = "nvfp4-ct"\nfrom = "."\n\n'
"""One more variant of the pack."""

SIDE_BY_SIDE = SEED.replace("[[engines]]", CT + "[[engines]]", 1)
"""Two variants that are made at the same time."""

LOSSY = SEED.replace('against = "source"\n', "")


def write_recipe(folder: Path, text: str = SEED, *, on_grid: bool = True) -> Path:
    """A recipe and the drafter that it names, in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "drafter").exists():
        generate("dflash2", folder / "drafter", on_grid=on_grid)
    place = folder / "recipe.toml"
    place.write_text(text, encoding="utf-8")
    return place
