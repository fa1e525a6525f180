"""Make the third seed at full size: pack in the root, its expansion in bf16/, a GGUF, and what that costs.

    python benchmarks/release.py SCRATCH [--scale full] [--rounds 1] [--keep]

SCRATCH is a folder for about 16 GB. The drafter is generated with its MLP weights on an NVFP4 grid, and so is what a
GGUF takes from the target: config and tokenizer. ``convertkit release`` runs as a process of its own; its peak memory
is what wait4 reports. The unit is the time that hashlib needs, in one thread, for source and release once each, from
the page cache, measured right beside. Then the release is verified, with its card and computed anew.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.measure import MIB, convertkit, generate, hash_seconds, prepare_cache

RECIPE = """
schema = "convertkit.recipe/1"
name = "seed"
source = "drafter"
target_model = "target"
target_id = "Qwen/Qwen3.8-27B"

[[variants]]
folder = "."
format = "nvfp4-modelopt-mixed"
scales = "lossless"

[[variants]]
folder = "bf16"
format = "bf16"
from = "."
against = "source"

[[variants]]
folder = "gguf"
format = "gguf"
from = "."
type = "nvfp4"

[[engines]]
name = "vllm"
variants = [".", "bf16"]

[[engines]]
name = "sglang"
variants = ["bf16"]

[[engines]]
name = "llama.cpp"
variants = ["gguf"]

[card]
title = "The seed"
license = "apache-2.0"
"""

PACK_BYTES = 1_926_977_716
"""Size of the published pack."""


def write_target(folder: Path, drafter: Path) -> None:
    """Config and tokenizer of a target for the drafter: byte-level BPE without merges, padded to the vocabulary."""
    mine = json.loads((drafter / "config.json").read_text())
    text = {
        "model_type": "qwen3_5_text",
        "hidden_size": mine["hidden_size"],
        "num_hidden_layers": mine["num_target_layers"],
        "vocab_size": mine["vocab_size"],
    }
    config = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": text}
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    letters = [chr(byte) if byte in keep else chr(next(others)) for byte in range(256)][: mine["vocab_size"]]
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": bytes_,
        "decoder": bytes_,
        "model": {"type": "BPE", "vocab": {letter: place for place, letter in enumerate(letters)}, "merges": []},
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def make(scratch: Path) -> dict[str, Any]:
    """One release with its unit; the figures."""
    source, out = scratch / "drafter", scratch / "out"
    shutil.rmtree(out, ignore_errors=True)
    prepare_cache([source], cold=False)
    made = convertkit("release", str(scratch / "recipe.toml"), str(out), "--json")
    if made.status:
        raise SystemExit(f"release ended with {made.status}: {json.dumps(made.document, indent=1)[:4000]}")
    prepare_cache([source, out], cold=False)
    unit = hash_seconds([source, out])
    rows = {row["folder"]: row for row in made.document["report"]["rows"]}
    return {
        "seconds": made.seconds,
        "cpu_seconds": made.cpu_seconds,
        "unit_seconds": unit,
        "ratio": made.seconds / unit,
        "peak_mib": made.peak_bytes / MIB,
        "stages": made.document["timings"],
        "sizes": {folder: row["size_bytes"] for folder, row in rows.items()},
        "pack_bytes_against_published": rows["."]["size_bytes"] / PACK_BYTES,
        "on_grid": rows["."]["on_grid"],
        "expansion": rows["bf16/"]["expansion"],
    }


def bench(scratch: Path, scale: str, rounds: int) -> dict[str, Any]:
    """Generate, release, verify; the figures of the round with the median ratio."""
    source, out = scratch / "drafter", scratch / "out"
    generate("dflash2", source, scale, "--on-grid")
    write_target(scratch / "target", source)
    (scratch / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    figures = sorted((make(scratch) for _ in range(rounds)), key=lambda row: float(row["ratio"]))
    checked = convertkit("verify", str(out), "--card", "--recompute", "--source", str(source), "--json")
    return {
        **figures[(len(figures) - 1) // 2],
        "ratios": [round(row["ratio"], 2) for row in figures],
        "median_ratio": statistics.median(row["ratio"] for row in figures),
        "verify_seconds": checked.seconds,
        "verify_status": checked.status,
        "verify_peak_mib": checked.peak_bytes / MIB,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--scale", default="full", choices=("tiny", "small", "full"))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args(arguments)
    options.scratch.mkdir(parents=True, exist_ok=True)
    try:
        print(json.dumps(bench(options.scratch, options.scale, options.rounds), indent=1))
    finally:
        if not options.keep:
            for name in ("drafter", "target", "out"):
                shutil.rmtree(options.scratch / name, ignore_errors=True)
            (options.scratch / "recipe.toml").unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
