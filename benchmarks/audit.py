"""Time ``audit --engine all`` on the headers of published models, in units of ``json.loads`` on the same header.

    python benchmarks/audit.py SCRATCH [--rounds 3] [--report FILE]

The files are sparse (``seeds.py``), so SCRATCH needs a few megabytes. Each audit is a process of its own; its time is
that of the verb inside it, without start-up, its memory the peak of the process. The limit of the largest model,
122,880 expert tensors, is 6 times ``json.loads`` plus 2 seconds, and 350 MiB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import seeds  # noqa: E402

LIMIT_FACTOR, LIMIT_SECONDS, LIMIT_MIB = 6.0, 2.0, 350.0

SEEDS: Mapping[str, tuple[Callable[[Path], Path], Callable[[Path], Path] | None]] = {
    "moe-nvfp4": (seeds.moe_nvfp4, None),
    "dflash": (lambda at: seeds.dflash(at, "dflash"), seeds.a3b_target),
    "dflash-april": (lambda at: seeds.dflash(at, "dflash-april"), seeds.a3b_target),
    "dflash2-bf16": (lambda at: seeds.dflash2(at, pack=False), seeds.target_27b),
    "dflash2-pack": (lambda at: seeds.dflash2(at, pack=True), seeds.target_27b),
    "dspark": (seeds.dspark, seeds.a3b_target),
}
"""What each is written by, and its target."""

CHILD = """
import json, resource, sys, time
sys.path.insert(0, sys.argv[1])
from convertkit.verbs.audit import audit
started = time.perf_counter()
made = audit(sys.argv[2], engines=["all"], target_model=sys.argv[3] or None)
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
views = {view["engine"]: view["verdict"] for view in made.document["engines"]}
print(json.dumps({"seconds": seconds, "peak_mib": peak, "status": made.status, "verdicts": views}))
"""


def header_seconds(folder: Path) -> float:
    """One ``json.loads`` of the header."""
    with (folder / "model.safetensors").open("rb") as stream:
        data = stream.read(int.from_bytes(stream.read(8), "little"))
    started = time.perf_counter()
    json.loads(data)
    return time.perf_counter() - started


def measure(folder: Path, target: Path | None, rounds: int) -> dict[str, Any]:
    """The round with the best ratio to its own limit."""
    best: dict[str, Any] = {}
    for _ in range(rounds):
        unit = header_seconds(folder)
        words = [sys.executable, "-c", CHILD, str(ROOT), str(folder), str(target or "")]
        found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        limit = LIMIT_FACTOR * unit + LIMIT_SECONDS
        row = {**found, "json_seconds": unit, "limit_seconds": limit, "share": found["seconds"] / limit}
        best = row if not best or row["share"] < best["share"] else best
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description="Time the audit of published models for all engines.")
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    rows: dict[str, Any] = {}
    given.scratch.mkdir(parents=True, exist_ok=True)
    for name, (write, target) in SEEDS.items():
        with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
            folder = write(Path(scratch) / name)
            beside = None if target is None else target(Path(scratch) / "target")
            row = rows[name] = measure(folder, beside, given.rounds)
        times = f"{row['seconds']:6.2f} s of {row['limit_seconds']:6.2f} s, {row['peak_mib']:5.0f} MiB"
        print(f"{name:13s} {times}, {row['verdicts']}")
    if given.report:
        given.report.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    inside = all(row["share"] <= 1 and row["peak_mib"] <= LIMIT_MIB for row in rows.values())
    return 0 if inside else 1


if __name__ == "__main__":
    sys.exit(main())
