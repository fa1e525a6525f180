"""Make the third seed at full size: pack in the root and its expansion in bf16/, and what that costs.

    python benchmarks/release.py SCRATCH [--scale full] [--keep]

SCRATCH is a folder for about 16 GB. The unit is the time that hashlib needs, in one thread, for the source and the
weights of the release once each, measured right beside. ``convertkit release`` runs as a process of its own; its peak
memory is what wait4 reports. Then it is verified, with its card and computed anew.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.full_size import MIB, convertkit, hash_seconds, measure  # noqa: E402

RECIPE = """
schema = "convertkit.recipe/1"
name = "seed"
source = "drafter"
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

[[engines]]
name = "vllm"
variants = [".", "bf16"]

[[engines]]
name = "sglang"
variants = ["bf16"]

[card]
title = "The seed"
license = "apache-2.0"
"""

PACK_BYTES = 1_926_977_716
"""Size of the published pack."""


def bench(scratch: Path, scale: str) -> dict[str, Any]:
    """Generate, release, verify; the figures."""
    source, out = scratch / "drafter", scratch / "out"
    measure([sys.executable, "-m", "convertkit.demo", "dflash2", str(source), "--on-grid", "--scale", scale])
    (scratch / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    made = convertkit("release", str(scratch / "recipe.toml"), str(out), "--json")
    if made.status:
        raise SystemExit(f"release ended with {made.status}: {json.dumps(made.document, indent=1)[:4000]}")
    unit = hash_seconds([source, out])
    checked = convertkit("verify", str(out), "--card", "--recompute", "--json")
    rows = {row["folder"]: row for row in made.document["report"]["rows"]}
    return {
        "seconds": made.seconds,
        "unit_seconds": unit,
        "ratio": made.seconds / unit,
        "peak_mib": made.peak_bytes / MIB,
        "stages": made.document["timings"],
        "pack_bytes": rows["."]["size_bytes"],
        "pack_bytes_against_published": rows["."]["size_bytes"] / PACK_BYTES,
        "on_grid": rows["."]["on_grid"],
        "expansion": rows["bf16/"]["expansion"],
        "verify_seconds": checked.seconds,
        "verify_status": checked.status,
        "verify_peak_mib": checked.peak_bytes / MIB,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--scale", default="full", choices=("tiny", "small", "full"))
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args(arguments)
    options.scratch.mkdir(parents=True, exist_ok=True)
    try:
        print(json.dumps(bench(options.scratch, options.scale), indent=1))
    finally:
        if not options.keep:
            for name in ("drafter", "out"):
                shutil.rmtree(options.scratch / name, ignore_errors=True)
            (options.scratch / "recipe.toml").unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
