"""The sink: planned bytes only, each once; readers behind the written prefix; errors reach every thread."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from convertkit.checkpoint import TensorSpec
from convertkit.containers.safetensors import encode_header
from convertkit.conversion.flusher import Pace
from convertkit.conversion.journal import read_journal
from convertkit.conversion.place import check_place
from convertkit.conversion.publish import publish
from convertkit.conversion.sink import Sink, open_sink
from convertkit.conversion.staging import Staging, open_staging, write_small
from convertkit.conversion.stop import Interrupted, Stop
from convertkit.errors import ConvertError, refusal
from tests.crash.pipeline import FilePlan, Tap

SPECS = [TensorSpec(f"t{number}", "U8", (1000 + number,)) for number in range(20)]
FILE = FilePlan("model.safetensors", encode_header(SPECS, {"format": "pt"}))
SIZE = FILE.header.size_bytes


@contextmanager
def opened(folder: Path, tap: Tap | None = None, stop: Stop | None = None) -> Iterator[tuple[Staging, Sink]]:
    place = check_place(folder / "out", [], force=False)
    with (
        open_staging(place, "plan", syscalls=tap or Tap()) as staging,
        open_sink(staging, [FILE], stop or Stop(), pace=Pace(0)) as sink,
    ):
        yield staging, sink


def data_of(spec: TensorSpec) -> bytes:
    return bytes([int(spec.name[1:])]) * spec.size_bytes


def write(sink: Sink, spec: TensorSpec) -> None:
    data = data_of(spec)
    sink.write_at(FILE.name, FILE.header.starts[spec.name], data)
    sink.tensor_done(spec.name, sha256(data).hexdigest())


def hash_behind(sink: Sink) -> str:
    digest, position, buffer = sha256(), 0, bytearray(333)
    while position < SIZE:
        end = sink.wait_prefix(FILE.name, position)
        assert end > position
        while position < end:
            view = memoryview(buffer)[: min(len(buffer), end - position)]
            count = sink.read_at(FILE.name, position, view)
            digest.update(view[:count])
            position += count
    return digest.hexdigest()


@pytest.mark.parametrize("pace", [Pace(0), Pace(0.005), Pace(10, 3000), Pace(10)])
def test_threads_write_in_any_order_while_a_reader_hashes(tmp_path: Path, pace: Pace) -> None:
    place = check_place(tmp_path / "out", [], force=False)
    with open_staging(place, "plan") as staging:
        with open_sink(staging, [FILE], Stop(), pace=pace) as sink, ThreadPoolExecutor(5) as pool:
            digest = pool.submit(hash_behind, sink)
            order = list(SPECS)
            random.Random(3).shuffle(order)
            for future in [pool.submit(write, sink, spec) for spec in order]:
                future.result()
            sink.finish()
        _, entries = read_journal(staging.journal)
        assert sorted(entry.name for entry in entries) == sorted(spec.name for spec in SPECS)
        publish(staging, Stop())
    assert digest.result() == sha256((tmp_path / "out" / FILE.name).read_bytes()).hexdigest()
    loaded = load_file(tmp_path / "out" / FILE.name)
    assert all(loaded[spec.name].tobytes() == data_of(spec) for spec in SPECS)
    assert not [thread for thread in threading.enumerate() if thread.name == "flusher"]


def test_a_journal_line_is_written_after_its_bytes_are_durable(tmp_path: Path) -> None:
    tap = Tap()
    with opened(tmp_path, tap) as (_, sink):
        before = len(tap.names)
        write(sink, SPECS[0])
        assert tap.names[before:] == ["pwrite", "fdatasync", "pwrite", "fsync"]
        for spec in SPECS[1:]:
            write(sink, spec)
        sink.finish()


def test_files_are_reserved_at_full_size_and_have_no_holes(tmp_path: Path) -> None:
    with opened(tmp_path) as (staging, sink):
        status = os.stat(staging.files / FILE.name)
        assert status.st_size == SIZE
        assert status.st_blocks * 512 >= SIZE
        for spec in SPECS:
            write(sink, spec)
        sink.finish()


@pytest.mark.parametrize(
    ("offset", "length"), [(SIZE - 1, 2), (SIZE, 1), (0, 1), (FILE.header.starts["t3"], 5), (-1, 1)]
)
def test_bytes_outside_the_plan_or_twice_are_a_bug(tmp_path: Path, offset: int, length: int) -> None:
    with pytest.raises(ConvertError) as caught, opened(tmp_path) as (_, sink):
        write(sink, SPECS[3])
        sink.write_at(FILE.name, offset, bytes(length))
    assert caught.value.status == 70
    assert os.listdir(tmp_path) == []


def test_what_is_not_finished_is_not_published(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="never written"), opened(tmp_path) as (_, sink):
        write(sink, SPECS[0])
        sink.finish()
    with pytest.raises(ConvertError, match="never declared"), opened(tmp_path) as (_, sink):
        for spec in SPECS:
            sink.write_at(FILE.name, FILE.header.starts[spec.name], data_of(spec))
        sink.finish()
    with pytest.raises(ConvertError, match="not complete"), opened(tmp_path) as (_, sink):
        sink.tensor_done("t0", "")
    place = check_place(tmp_path / "out", [], force=False)
    with pytest.raises(ConvertError, match="unfinished"), open_staging(place, "plan") as staging:
        with open_sink(staging, [FILE], Stop()):
            pass
        publish(staging, Stop())
    assert os.listdir(tmp_path) == []


def test_an_error_reaches_a_waiting_reader(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ConvertError), opened(tmp_path) as (_, sink):
            reader = pool.submit(hash_behind, sink)
            sink.abort(refusal("E_WEIGHT_NONFINITE", "a NaN"))
            write(sink, SPECS[0])
        with pytest.raises(ConvertError, match="a NaN"):
            reader.result(timeout=5)
    assert os.listdir(tmp_path) == []


def test_arrays_and_views_of_any_type_are_bytes(tmp_path: Path) -> None:
    specs = [TensorSpec("a", "F32", (2, 3)), TensorSpec("b", "F16", (0, 3)), TensorSpec("c", "F32", ())]
    file = FilePlan("model.safetensors", encode_header(specs))
    arrays = [np.arange(6, dtype="<f4").reshape(2, 3), np.empty((0, 3), "<u2"), np.array(7, dtype="<f4")]
    place = check_place(tmp_path / "out", [], force=False)
    with open_staging(place, "plan") as staging:
        with open_sink(staging, [file], Stop()) as sink:
            for spec, array in zip(specs, arrays, strict=True):
                sink.write_at(file.name, file.header.starts[spec.name], array.data)
                sink.tensor_done(spec.name, sha256(array.tobytes()).hexdigest())
            with pytest.raises(TypeError):
                sink.write_at(file.name, 0, np.zeros((4, 4))[:, 1].data)  # not contiguous
            sink.finish()
        publish(staging, Stop())
    loaded = load_file(tmp_path / "out" / file.name)
    assert loaded["a"].tobytes() == arrays[0].tobytes()
    assert loaded["c"] == 7


def test_a_signal_reaches_a_waiting_reader(tmp_path: Path) -> None:
    stop = Stop()
    with ThreadPoolExecutor(1) as pool, pytest.raises(Interrupted), opened(tmp_path, stop=stop) as (_, sink):
        reader = pool.submit(hash_behind, sink)
        time.sleep(0.05)
        began = time.monotonic()
        stop.signum = 2
        with pytest.raises(Interrupted):
            reader.result(timeout=5)
        assert time.monotonic() - began < 1
        write(sink, SPECS[0])
    assert os.listdir(tmp_path) == []


def test_an_error_of_the_flusher_reaches_the_writers(tmp_path: Path) -> None:
    class Failing(Tap):
        def fdatasync(self, fd: int) -> None:
            raise OSError(5, "disk")

    place = check_place(tmp_path / "out", [], force=False)
    with (
        pytest.raises(ConvertError) as caught,
        open_staging(place, "plan", syscalls=Failing()) as staging,
        open_sink(staging, [FILE], Stop(), pace=Pace(0.01)) as sink,
    ):
        for spec in SPECS:
            write(sink, spec)
            time.sleep(0.02)
    assert caught.value.code == "E_WRITE"
    assert os.listdir(tmp_path) == []


def test_small_files_are_made_anew_and_only_plain_names(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    place = check_place(tmp_path / "out", [], force=False)
    with open_staging(place, "plan") as staging:
        os.link(precious, staging.files / "config.json")
        assert write_small(staging, "config.json", b"{}") == sha256(b"{}").hexdigest()
        for name in ("", ".", "..", "a/b", "/etc/x", "a\0b"):
            with pytest.raises(ConvertError, match="plain"):
                write_small(staging, name, b"")
        publish(staging, Stop())
    assert precious.read_bytes() == b"precious"
    assert os.listdir(tmp_path / "out") == ["config.json"]
