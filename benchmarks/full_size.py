"""Time the whole line on a drafter of full size, in units of what hashing the same bytes costs on the same machine.

    python benchmarks/full_size.py SCRATCH [--scale full] [--on-grid] [--source DIR] [--verbs V ...] [--rounds 2]
                                    [--cold] [--keep] [--report FILE]

SCRATCH is a folder for about 16 GB (full scale); what is made there is removed at the end unless ``--keep``.

The unit is the time that hashlib needs, in one thread, to compute SHA-256 of the bytes that a verb reads and writes
once each (``pack-nvfp4``, ``dequant``: source and output; ``gate``: candidate and reference; ``verify``: the folder).
It is measured in every round, right beside the verb. Verbs run as processes of their own, so their time includes
start-up; peak memory is what wait4 reports for the process, and the idle process is ``convertkit --version``.
A small drafter goes through first, so that compiled kernels are in their cache. ``--cold`` drops the files read from
the page cache before each measurement; without it, they are read once before.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.measure import (
    MIB,
    Measured,
    convertkit,
    copy,
    files_in,
    generate,
    hash_seconds,
    prepare_cache,
)  # fmt: skip


class Folders(NamedTuple):
    """Where a run keeps the source, what the verbs write, and the copy."""

    source: Path
    pack: Path
    expanded: Path
    copy: Path


class Verb(NamedTuple):
    """One row of the table: words of the command, folders it reads and writes (each hashed once in the unit)."""

    words: Callable[[Folders], list[str]]
    reads: Callable[[Folders], tuple[Path, ...]]
    writes: Callable[[Folders], tuple[Path, ...]]


VERBS: dict[str, Verb] = {
    "pack-nvfp4": Verb(
        lambda at: ["pack-nvfp4", str(at.source), str(at.pack)], lambda at: (at.source,), lambda at: (at.pack,)
    ),
    "dequant": Verb(
        lambda at: ["dequant", str(at.pack), str(at.expanded)], lambda at: (at.pack,), lambda at: (at.expanded,)
    ),
    "gate": Verb(
        lambda at: ["gate", str(at.pack), "--reference", str(at.source)],
        lambda at: (at.pack, at.source),
        lambda at: (),
    ),
    "verify": Verb(lambda at: ["verify", str(at.pack)], lambda at: (at.pack,), lambda at: ()),
}


@dataclass(frozen=True)
class Row:
    """All rounds of one verb with the units measured beside them."""

    verb: str
    runs: tuple[Measured, ...]
    unit_seconds: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Median over the rounds of seconds in units."""
        return statistics.median(run.seconds / unit for run, unit in zip(self.runs, self.unit_seconds, strict=True))


def warm_up(scratch: Path, verbs: Sequence[str]) -> None:
    """Send a tiny drafter through every verb, which compiles the kernels if they are not in their cache."""
    at = folders_in(scratch / "warm")
    generate("dflash2", at.source, "tiny")
    for verb in verbs:
        convertkit(*VERBS[verb].words(at), "--json")
    shutil.rmtree(scratch / "warm")


def folders_in(scratch: Path, source: Path | None = None) -> Folders:
    return Folders(source or scratch / "source", scratch / "pack", scratch / "expanded", scratch / "copy")


def run_round(at: Folders, verbs: Sequence[str], cold: bool) -> tuple[dict[str, tuple[Measured, float]], float]:
    """Each of ``verbs`` once, each with its unit, and the seconds that ``cp`` needs for the source."""
    for folder in (at.pack, at.expanded, at.copy):
        shutil.rmtree(folder, ignore_errors=True)
    found: dict[str, tuple[Measured, float]] = {}
    for name in verbs:
        verb = VERBS[name]
        prepare_cache(verb.reads(at), cold)
        run = convertkit(*verb.words(at), "--json")
        if run.status:
            print(f"note: {name} ended with status {run.status}", file=sys.stderr)
        touched = (*verb.reads(at), *verb.writes(at))
        prepare_cache(touched, cold)
        found[name] = (run, hash_seconds(touched))
    prepare_cache((at.source,), cold)
    copied = copy(at.source, at.copy).seconds
    shutil.rmtree(at.copy)
    return found, copied


def stages(row: Row) -> list[tuple[str, float]]:
    """Stage times of the quickest run, in seconds, as the verb stated them."""
    quickest = min(row.runs, key=lambda run: run.seconds)
    timings = quickest.document.get("timings", {})
    return [(str(name), float(seconds)) for name, seconds in timings.items()]


def table(rows: Sequence[Row], idle: Measured, copies: Sequence[float]) -> str:
    """The result as text of at most 100 columns."""
    lines = [f"{'':24}{'seconds':>10}{'unit, s':>10}{'ratio':>8}{'CPU, s':>9}{'peak MiB':>10}{'above idle':>12}"]
    for row in rows:
        best = min(row.runs, key=lambda run: run.seconds)
        peak = max(run.peak_bytes for run in row.runs)
        lines.append(
            f"{row.verb:24}{best.seconds:10.2f}{min(row.unit_seconds):10.2f}{row.ratio:8.2f}{best.cpu_seconds:9.2f}"
            f"{peak / MIB:10.0f}{(peak - idle.peak_bytes) / MIB:12.0f}"
        )
        lines += [
            f"  {name:22}{seconds:10.2f}{'':10}{seconds / min(row.unit_seconds):8.2f}" for name, seconds in stages(row)
        ]
    unit = min(rows[0].unit_seconds)
    lines.append(f"{'cp of the source':24}{min(copies):10.2f}{unit:10.2f}{min(copies) / unit:8.2f}")
    lines.append(
        f"{'idle process':24}{idle.seconds:10.2f}{'':10}{'':8}{idle.cpu_seconds:9.2f}{idle.peak_bytes / MIB:10.0f}"
    )
    return "\n".join(lines)


def document_of(
    rows: Sequence[Row], idle: Measured, copies: Sequence[float], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The same as JSON."""
    verbs = {
        row.verb: {
            "ratio": round(row.ratio, 3),
            "seconds": [round(run.seconds, 3) for run in row.runs],
            "unit_seconds": [round(unit, 3) for unit in row.unit_seconds],
            "peak_bytes_above_idle": max(run.peak_bytes for run in row.runs) - idle.peak_bytes,
            "stages": {name: round(seconds, 3) for name, seconds in stages(row)},
        }
        for row in rows
    }
    return {**given, "verbs": verbs, "cp_seconds": [round(seconds, 3) for seconds in copies],
            "idle_peak_bytes": idle.peak_bytes}  # fmt: skip


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--scale", choices=("tiny", "small", "full"), default="full")
    parser.add_argument("--on-grid", action="store_true")
    parser.add_argument("--source", type=Path, help="use this folder instead of generating one")
    parser.add_argument("--verbs", nargs="+", choices=tuple(VERBS), default=tuple(VERBS), help="these only, in order")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--report", type=Path, help="write the result as JSON")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    given = parse(words)
    scratch = given.scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="full-size-", dir=scratch))
    at = folders_in(made, given.source and given.source.resolve())
    try:
        if given.source is None:
            seconds = generate("dflash2", at.source, given.scale, *(["--on-grid"] if given.on_grid else [])).seconds
            print(f"generated {sum(path.stat().st_size for path in files_in(at.source)):,} bytes in {seconds:.1f} s")
        warm_up(made, given.verbs)
        idle = min((convertkit("--version") for _ in range(3)), key=lambda run: run.peak_bytes)
        rounds = [run_round(at, given.verbs, given.cold) for _ in range(given.rounds)]
    finally:
        if not given.keep:
            shutil.rmtree(made)
    rows = [
        Row(verb, tuple(found[verb][0] for found, _ in rounds), tuple(found[verb][1] for found, _ in rounds))
        for verb in given.verbs
    ]
    copies = [seconds for _, seconds in rounds]
    print(table(rows, idle, copies))
    if given.report:
        settings = {"scale": given.scale, "on_grid": given.on_grid, "cold": given.cold, "rounds": given.rounds}
        given.report.write_text(json.dumps(document_of(rows, idle, copies, settings), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
