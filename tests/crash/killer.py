"""Kills conversions with SIGKILL at chosen and random points, each in a child forked from this one warm process.

``python -m tests.crash.killer FOLDER KILLS SEED``. After each kill: the target is absent (or the old one) or whole by
listing and ``sha256sum``, at most one staging folder and the lock lie beside it, the source is untouched; a
run after that, with ``--resume`` where there is something to resume, gives the bytes of an undisturbed run.
Prints counts as JSON; any broken rule is an exception.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from convertkit.conversion.flusher import Pace
from convertkit.conversion.syscalls import Syscalls
from tests.crash.pipeline import Deadly, Tap, assert_sums_hold, contents, convert, make_source, snapshot

DEBRIS = re.compile(r"\.out\.(lock|partial-[0-9a-f]{12})")

Convert = Callable[[Path, Syscalls, bool, bool], object]
"""``(out, syscalls, force, resume)``: one whole conversion of a fixed source."""


@dataclass
class Field:
    """Where kills happen: the conversion, its folder, and the contents of an undisturbed output."""

    folder: Path
    convert: Convert
    expected: dict[str, bytes]
    calls: int
    seconds: float
    counts: Counter[str] = field(default_factory=Counter)


def prepare(folder: Path, convert_to: Convert) -> Field:
    """Run twice without disturbance: the outputs must be equal; count the calls and the seconds."""
    outs = [folder / "undisturbed-1", folder / "undisturbed-2"]
    tap = Tap()
    convert_to(outs[0], Tap(), False, False)
    began = time.monotonic()
    convert_to(outs[1], tap, False, False)
    seconds = time.monotonic() - began
    assert_same(contents(outs[0]), contents(outs[1]))
    assert_sums_hold(outs[0])
    return Field(folder, convert_to, contents(outs[0]), len(tap.names), seconds)


def kill_child(place: Field, syscalls: Syscalls, force: bool, after: float | None, resume: bool = False) -> None:
    """Convert in a forked child that dies by its own system call, or by ours ``after`` seconds."""
    pid = os.fork()
    if pid == 0:
        try:
            place.convert(place.folder / "out", syscalls, force, resume)
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            os._exit(9)
        os._exit(0)
    if after is not None:
        time.sleep(after)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), code
    place.counts["killed" if code else "finished before the kill"] += 1


def check_after_kill(place: Field, old: dict[str, bytes] | None) -> bool:
    """Assert the rules; whether there is something to resume."""
    out = place.folder / "out"
    names = set(os.listdir(place.folder)) - {"in", "out", "undisturbed-1", "undisturbed-2"}
    assert all(DEBRIS.fullmatch(name) for name in names), names
    staged = [name for name in names if "partial" in name]
    assert len(staged) <= 1
    if out.exists():
        assert_sums_hold(out)
        now = contents(out)
        assert now in (place.expected, old)
        place.counts["target whole" if now == place.expected else "target old"] += 1
    else:
        assert old is None
        place.counts["target absent"] += 1
    return bool(staged)


def go_on(place: Field, staged: bool) -> None:
    """The next run, resuming where possible, must give the same bytes and leave nothing beside them."""
    out = place.folder / "out"
    force = out.exists()
    place.convert(out, Tap(), force, staged)
    place.counts["resumed"] += staged
    assert_same(contents(out), place.expected)
    assert set(os.listdir(place.folder)) == {"in", "out", "undisturbed-1", "undisturbed-2"}
    remove(out)


def assert_same(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    """Or name the files that only one has, or whose bytes differ."""
    differing = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    assert not differing, differing


def remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def kill_many(place: Field, kills: int, seed: int, make_old: Callable[[], object] | None = None) -> None:
    """Half at chosen calls, spread over the run (many a pwrite torn), half at random moments.

    Those that come too late do not count. Every fifth time the run that resumes is killed as well.
    """
    before = snapshot(place.folder / "in")
    rng = random.Random(seed)
    turn = 0
    while place.counts["killed"] < kills:
        force = make_old is not None and turn % 4 >= 2
        old = None
        if force and make_old is not None:
            make_old()
            old = contents(place.folder / "out")
        if turn % 2 == 0:
            # replacing an old output takes some more calls
            number = place.counts["killed"] * (place.calls + 16 * force) // kills
            kill_child(place, Deadly(number, rng.choice((None, 0.0, rng.random(), 1.0))), force, None)
        else:
            kill_child(place, Tap(), force, rng.uniform(0, place.seconds * 1.1))
        staged = check_after_kill(place, old)
        if staged and turn % 5 == 0:
            late_force = force or (place.folder / "out").exists()
            kill_child(place, Tap(), late_force, rng.uniform(0, place.seconds), resume=True)
            place.counts["killed while resuming"] += 1
            staged = check_after_kill(place, old)
        go_on(place, staged)
        turn += 1
        assert turn < 4 * kills, place.counts
    assert snapshot(place.folder / "in") == before


def reference(folder: Path, kills: int, seed: int) -> Counter[str]:
    """The small pipeline, with an old output to be replaced in every other pair of kills."""
    source, out = folder / "in", folder / "out"
    make_source(source)

    def run(target: Path, syscalls: Syscalls, force: bool, resume: bool) -> object:
        return convert(source, target, syscalls=syscalls, force=force, resume=resume, pace=Pace(0))

    def make_old() -> None:
        convert(source, out, fingerprint="earlier")
        config = out / "config.json"
        sums = out / "SHA256SUMS"
        config.unlink()
        config.write_bytes(b"{}\n")
        text = sums.read_text().splitlines(keepends=True)
        digest = "ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356"  # of b"{}\n"
        sums.write_text("".join(digest + line[64:] if "config.json" in line else line for line in text))

    place = prepare(folder, run)
    kill_many(place, kills, seed, make_old)
    return place.counts


if __name__ == "__main__":
    print(json.dumps(reference(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])), sort_keys=True))
