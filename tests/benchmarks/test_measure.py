"""What the benchmarks measure beside each other: processes, their memory, hashing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.measure import hash_seconds, measure, sha256sum_seconds

ROOT = Path(__file__).resolve().parents[2]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_measure_sees_memory_time_status_and_document() -> None:
    idle = measure(python("pass"))
    held = measure(python("held = bytearray(b'x') * (400 << 20)\nprint('{\"timings\": {\"run\": 1.5}}')"))
    assert held.peak_bytes > 400 << 20
    assert held.document == {"timings": {"run": 1.5}}
    assert idle.document == {}
    waited = measure(python("import time; time.sleep(0.2); raise SystemExit(1)"))
    assert waited.status == 1
    assert waited.seconds >= 0.2 > waited.cpu_seconds
    told = measure(python("import os; print('{\"a\": ' + os.environ['X'] + '}')"), environment={"X": "3"})
    assert told.document == {"a": 3}


def test_a_peak_is_that_of_the_command_alone() -> None:
    """Measured from a small process: Linux counts into a child's peak what its parent held when it was started."""
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from benchmarks.full_size import VERBS
from benchmarks.measure import measure
print(measure([sys.executable, "-c", "held = bytearray(b'x') * (400 << 20)"]).peak_bytes)
"""
    printed = subprocess.run(python(code), capture_output=True, text=True, check=True).stdout
    assert 400 << 20 < int(printed) < 440 << 20


def test_measure_stops_at_an_unexpected_status() -> None:
    with pytest.raises(SystemExit, match="status 3\nbroken"):
        measure(python("import sys; sys.stderr.write('broken'); sys.exit(3)"))


def test_hash_seconds_reads_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"a": 3 << 20, "deep/b": 5, "c": 0}
    for name, size in sizes.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    seen: list[bytes] = []

    class Digest:
        def update(self, data: memoryview) -> None:
            seen.append(bytes(data))

    monkeypatch.setattr("hashlib.sha256", Digest)
    assert hash_seconds([tmp_path]) > 0
    assert sum(map(len, seen)) == sum(sizes.values())


def test_sha256sum_needs_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"x")
    assert sha256sum_seconds([tmp_path]) > 0
    monkeypatch.setattr("benchmarks.measure.files_in", lambda path: [path / "a", path / "gone"])
    with pytest.raises(SystemExit, match="sha256sum"):
        sha256sum_seconds([tmp_path])
