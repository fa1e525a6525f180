"""A small conversion that uses the sink as the real line does, and a tap on every system call that it makes.

The source is two files of four tensors; the output holds every byte of them inverted, in two other files, with
a config and ``SHA256SUMS`` written last. The whole run is about a hundred system calls.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from convertkit.checkpoint import Checkpoint, TensorSpec
from convertkit.containers.folder import open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.containers.safetensors import EncodedHeader, encode_header
from convertkit.conversion.flusher import Pace
from convertkit.conversion.place import check_place, check_space
from convertkit.conversion.publish import Carried, Published, carry_over, publish
from convertkit.conversion.sink import Sink, open_sink
from convertkit.conversion.staging import open_staging, write_small
from convertkit.conversion.stop import Stop, stop_on_signals
from convertkit.conversion.syscalls import How, Kernel, Syscalls
from convertkit.errors import Finding

CHUNK_BYTES = 24_000
INLINE = Pace(seconds=0)
FINGERPRINT = "invert everything"

SPECS = (
    TensorSpec("a.weight", "BF16", (300, 80)),
    TensorSpec("b.weight", "F32", (40, 500)),
    TensorSpec("b.bias", "F32", (7,)),
    TensorSpec("empty", "U8", (0, 4)),
)
OUTPUT_FILES = {"model-1.safetensors": SPECS[:1], "model-2.safetensors": SPECS[1:]}
LISTING = ["SHA256SUMS", "config.json", "model-1.safetensors", "model-2.safetensors"]


@dataclass(frozen=True)
class FilePlan:
    name: str
    header: EncodedHeader


PLANS = tuple(FilePlan(name, encode_header(specs, {"format": "pt"})) for name, specs in OUTPUT_FILES.items())


class Tap(Kernel):
    """The real calls, each announced first as (number, name); ``shorten`` cuts the buffer of a pwrite."""

    def __init__(
        self, before: Callable[[int, str], None] = lambda _number, _name: None, shorten: int | None = None
    ) -> None:
        self.names: list[str] = []
        self._before, self._shorten = before, shorten

    def _tap(self, name: str) -> None:
        self.names.append(name)
        self._before(len(self.names) - 1, name)

    def open(self, path: str, flags: int) -> int:
        self._tap("open")
        return super().open(path, flags)

    def close(self, fd: int) -> None:
        super().close(fd)  # Linux closes even when close(2) reports an error
        self._tap("close")

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self._tap("pwrite")
        return super().pwrite(fd, data[: self._shorten], offset)

    def allocate(self, fd: int, size_bytes: int) -> None:
        self._tap("allocate")
        super().allocate(fd, size_bytes)

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._tap("truncate")
        super().truncate(fd, size_bytes)

    def copy_range(self, source: int, source_offset: int, fd: int, offset: int, count: int) -> int:
        self._tap("copy_range")
        return super().copy_range(source, source_offset, fd, offset, count)

    def shift(self, fd: int, size_bytes: int) -> None:
        self._tap("shift")
        super().shift(fd, size_bytes)

    def fsync(self, fd: int) -> None:
        self._tap("fsync")
        super().fsync(fd)

    def fdatasync(self, fd: int) -> None:
        self._tap("fdatasync")
        super().fdatasync(fd)

    def mkdir(self, path: str) -> None:
        self._tap("mkdir")
        super().mkdir(path)

    def rename(self, old: str, new: str, how: How) -> None:
        self._tap("rename " + how)
        super().rename(old, new, how)

    def link(self, old: str, new: str) -> None:
        self._tap("link")
        super().link(old, new)

    def unlink(self, path: str) -> None:
        self._tap("unlink")
        super().unlink(path)

    def rmdir(self, path: str) -> None:
        self._tap("rmdir")
        super().rmdir(path)


class Deadly(Tap):
    """Dies before call ``number``, or, at a pwrite, after a part of its bytes."""

    def __init__(self, number: int, part: float | None) -> None:
        super().__init__()
        self._number, self._part = number, part

    def _tap(self, name: str) -> None:
        super()._tap(name)
        if len(self.names) - 1 == self._number and not (name == "pwrite" and self._part is not None):
            os.kill(os.getpid(), signal.SIGKILL)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        if len(self.names) == self._number and self._part is not None:
            os.pwrite(fd, data[: int(data.nbytes * self._part)], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().pwrite(fd, data, offset)


def source_bytes(spec: TensorSpec) -> bytes:
    return (sha256(spec.name.encode()).digest() * (spec.size_bytes // 32 + 1))[: spec.size_bytes]


def make_source(folder: Path) -> None:
    folder.mkdir()
    for name, specs in (("model.safetensors", SPECS),):
        header = encode_header(specs, {"format": "pt"})
        body = b"".join(source_bytes(spec) for spec in header.order)
        (folder / name).write_bytes(header.prefix + body)
    (folder / "config.json").write_bytes(b"{}\n")


@dataclass(frozen=True)
class Run:
    """What a finished run tells."""

    done_before: frozenset[str]
    carried: Carried
    published: Published
    findings: tuple[Finding, ...]


def convert(
    source: Path,
    out: Path,
    *,
    syscalls: Syscalls | None = None,
    force: bool = False,
    resume: bool = False,
    keep: bool = True,
    pace: Pace = INLINE,
    each_chunk: Callable[[Stop], None] = lambda _stop: None,
    fingerprint: str = FINGERPRINT,
) -> Run:
    """Invert every byte of ``source`` into ``out``. Raises as the convert package does."""
    place = check_place(out, [source], force=force)
    check_space(place, sum(plan.header.size_bytes for plan in PLANS), reuse=fingerprint if resume else None)
    checkpoint = open_checkpoint(source)
    syscalls = syscalls or Kernel()
    with (
        stop_on_signals() as stop,
        Reader(checkpoint) as reader,
        open_staging(place, fingerprint, resume=resume, keep=keep, syscalls=syscalls) as staging,
    ):
        stamps = {file.name: file.stamp for file in checkpoint.files}

        def digest_source(name: str) -> str:
            return sha256(reader.bytes_of(name)).hexdigest()

        with open_sink(staging, PLANS, stop, stamps=stamps, digest_source=digest_source, pace=pace) as sink:
            done = frozenset(sink.done)
            for plan in PLANS:
                for spec in plan.header.order:
                    if spec.name not in done:
                        _invert(checkpoint, reader, sink, plan, spec, lambda: each_chunk(stop))
            sink.finish()
        write_small(staging, "config.json", b'{"inverted": true}\n')
        carried = carry_over(staging)
        write_small(staging, "SHA256SUMS", _sums(staging.files))
        published = publish(staging, stop)
        return Run(done, carried, published, tuple(staging.findings))


def _invert(
    checkpoint: Checkpoint, reader: Reader, sink: Sink, plan: FilePlan, spec: TensorSpec, each: Callable[[], None]
) -> None:
    data = bytearray(spec.size_bytes)
    reader.read_into(checkpoint.tensors[spec.name], 0, memoryview(data))
    inverted = memoryview(bytes(255 - byte for byte in data))
    start = plan.header.starts[spec.name]
    for first in range(0, spec.size_bytes, CHUNK_BYTES):
        each()
        sink.write_at(plan.name, start + first, inverted[first : first + CHUNK_BYTES])
    sink.tensor_done(spec.name, sha256(inverted).hexdigest(), {spec.name: sha256(data).hexdigest()})


def _sums(folder: Path) -> bytes:
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return "".join(f"{sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names).encode()


def snapshot(folder: Path) -> dict[str, tuple[int, int, int, str]]:
    """Everything below a folder: inode, mtime, mode and digest by relative name."""
    return dict(_snapshot_rows(folder))


def _snapshot_rows(folder: Path) -> Iterator[tuple[str, tuple[int, int, int, str]]]:
    for path in sorted(folder.rglob("*")):
        status = os.lstat(path)
        digest = sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        yield str(path.relative_to(folder)), (status.st_ino, status.st_mtime_ns, status.st_mode, digest)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def assert_sums_hold(folder: Path) -> None:
    """``sha256sum`` itself agrees, and lists every file."""
    subprocess.run(["sha256sum", "-c", "--strict", "--quiet", "SHA256SUMS"], cwd=folder, check=True)
    listed = {line.split("  ", 1)[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
    assert listed | {"SHA256SUMS"} == set(contents(folder))
