"""NVFP4 on a GPU: the bytes of the CPU path, kernels against the device's copy bandwidth, and where the time goes.

    PYTHONPATH=. python benchmarks/gpu.py [--checkpoint DIR]... [--work DIR] [--gigabytes 1]

Kernels are timed on data that lies on the device; bandwidth counts bytes read and written and is compared with a plain
copy in the same run. Tiles from host memory are timed beside moving the same bytes without computing. Every matrix of a
``--checkpoint`` goes through both devices and must come out equal. With ``--work`` (a folder, best in memory) whole
verbs run on both devices, and the folders that they write must be equal.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from convertkit.backends import cuda as gpu
from convertkit.checks.compare import Dense, Planes, compare_tiles
from convertkit.checks.cuda import PROGRAM as CHECKER
from convertkit.checks.gate import DEVICE_TILES
from convertkit.checks.tiles import tile_rows
from convertkit.containers.folder import open_checkpoint
from convertkit.containers.reader import Reader
from convertkit.grids.nvfp4 import choice, cuda, decode, encode, on_grid, recover
from convertkit.grids.nvfp4.tables import EncodeTables, build_encode_tables
from convertkit.verbs.case import Options
from convertkit.verbs.gate import gate
from convertkit.verbs.pack import pack_nvfp4

ROUNDS, GOAL = 9, 0.70
TILE_SIZES = (1 << 22, 1 << 24, 1 << 26)
THREADS = 8
Bits = NDArray[np.uint16]


def gaussian(elements: int, width: int = 8192) -> Bits:
    """Gaussian weights as BF16 bits [rows, width]."""
    draws = np.random.default_rng(1).standard_normal(1 << 22).astype(np.float32) * np.float32(0.02)
    some = (draws.view(np.uint32) >> 16).astype(np.uint16)
    return np.resize(some, (elements // width, width))


def on_device(work: Callable[[], object]) -> float:
    """Least seconds of some rounds, by the device's clock."""
    best, device = float("inf"), cast(Any, torch.cuda)  # its events are untyped in some releases
    for _ in range(ROUNDS):
        begin, end = (device.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3)
    return best


class Resident:
    """A matrix and its planes on the device."""

    def __init__(self, values: Bits) -> None:
        self.blocks = values.size // 16
        self.source = torch.from_numpy(values.view(np.uint8)).to("cuda")
        self.tables = build_encode_tables("amax", "BF16", encode.amax_of_tile(values))
        self.codes, self.scales = gpu.scratch(8 * self.blocks), gpu.scratch(self.blocks)
        self.dense, self.flags = gpu.scratch(32 * self.blocks), gpu.scratch(self.blocks)
        table = decode.decode_table(self.tables.global_bits, "multiplier", "BF16")
        self.rows = cuda._decoding(table.tobytes(), True)
        self.bytes, _, self.bounds = cuda._encoding(self.tables)
        self.chosen = choice.build_choice_tables("mse", "BF16", encode.amax_of_tile(values))
        self.grid = on_grid.build_grid_tables(self.tables.global_bits, "multiplier")

    def encode(self) -> None:
        cuda.PROGRAM.launch(
            "encode_16", self.blocks, self.source, self.bytes, self.bounds, self.codes, self.scales, self.blocks
        )

    def decode(self) -> None:
        cuda.PROGRAM.launch(
            "decode_16", 2 * self.blocks, self.codes, self.scales, self.rows, self.dense, 2 * self.blocks
        )

    def match(self) -> None:
        held = cuda._grid(self.grid)
        cuda.PROGRAM.launch("match", self.blocks, self.dense, *held, self.flags, self.blocks)

    def solve(self) -> None:
        other = cuda._encoding(on_grid.NO_TABLES)
        held = (*cuda._grid(self.grid), other[0], other[2])
        cuda.PROGRAM.launch("solve", self.blocks, self.dense, *held, self.codes, self.scales, self.blocks)

    def choose(self) -> None:
        (bytes_, _, bounds), (others, *_) = cuda._encoding(self.chosen.first), cuda._encoding(self.chosen.other)
        sweep, wide, grid, units = cuda._choosing(self.chosen)
        scale = float(np.uint32(self.chosen.global_bits).view(np.float32))
        cuda.PROGRAM.launch(
            "choose_16", self.blocks, self.source, bytes_, others, sweep, wide, bounds, grid, units, self.codes,
            self.scales, scale, self.blocks,
        )  # fmt: skip


def kernels(elements: int) -> None:
    """Bandwidth of each kernel, and its share of a copy's."""
    held = Resident(gaussian(elements))
    other = torch.empty_like(held.source)
    copy = 2 * held.source.numel() / on_device(lambda: other.copy_(held.source))
    print(f"copy {copy / 1e12:.2f} TB/s (bytes read and written), {held.source.numel() / 1e9:.2f} GB of BF16")
    planes = 9 * held.blocks
    steps: dict[str, tuple[Callable[[], None], int]] = {
        "encode": (held.encode, 32 * held.blocks + planes),
        "dequant": (held.decode, 32 * held.blocks + planes),
        "match a grid": (held.match, 33 * held.blocks),
        "solve a grid": (held.solve, 32 * held.blocks + planes),
        "mse": (held.choose, 32 * held.blocks + planes),
    }
    for name, (step, moved) in steps.items():
        speed = moved / on_device(step)
        goal = (
            f", goal {GOAL:.0%}: {'met' if speed >= GOAL * copy else 'MISSED'}" if name in ("encode", "dequant") else ""
        )
        print(f"  {name:14} {speed / 1e12:5.2f} TB/s  {speed / copy:4.0%} of the copy{goal}")


def tiles(values: Bits, tile_bytes: int) -> Iterator[slice]:
    step = max(1, tile_bytes // (2 * values.shape[1]))
    for first in range(0, values.shape[0], step):
        yield slice(first, first + step)


def streamed(elements: int) -> None:
    """Tiles from host memory through the device and back, against moving their bytes alone, by as many threads."""
    values = gpu.pinned_array(2 * elements).view(np.uint16).reshape(-1, 8192)
    values[:] = gaussian(elements)
    codes, scales = gpu.pinned_array(elements // 2).reshape(-1, 4096), gpu.pinned_array(elements // 16).reshape(-1, 512)
    built = build_encode_tables("amax", "BF16", encode.amax_of_tile(values))

    def moved(part: slice) -> None:
        with gpu.stream():
            gpu.upload(values[part], "source")
            made = gpu.scratch(codes[part].size), gpu.scratch(scales[part].size)
            gpu.download([(made[0], codes[part]), (made[1], scales[part])])

    steps: dict[str, Callable[[slice], None]] = {
        "moved only": moved,
        "encoded": lambda part: cuda.encode_tile(values[part], built, codes[part], scales[part]),
    }
    with ThreadPoolExecutor(THREADS) as pool:
        for tile_bytes in TILE_SIZES:
            least = dict.fromkeys(steps, float("inf"))
            for _ in range(ROUNDS):
                for name, step in steps.items():
                    began = time.perf_counter()
                    list(pool.map(step, tiles(values, tile_bytes)))
                    least[name] = min(least[name], time.perf_counter() - began)
            speeds = ", ".join(f"{name} {values.nbytes / spent / 1e9:.1f} GB/s" for name, spent in least.items())
            ratio = least["encoded"] / least["moved only"]
            print(f"  tiles of {tile_bytes >> 20} MiB from host memory, {THREADS} threads: {speeds}, ratio {ratio:.2f}")


def summed(elements: int) -> None:
    """The sums of a gate, tiles against their planes, on both devices by as many threads."""
    values = gaussian(elements)
    codes, scales = planes_of(values.shape)
    built = build_encode_tables("amax", "BF16", encode.amax_of_tile(values))
    encode.encode_tile(values, built, codes, scales)
    rows = tile_rows(values.shape[1])
    parts = [slice(first, first + DEVICE_TILES * rows) for first in range(0, values.shape[0], DEVICE_TILES * rows)]

    def one(part: slice, device: str) -> None:
        planes = Planes(codes[part], scales[part], built.global_bits, "multiplier")
        compare_tiles(Dense(values[part], "BF16"), planes, rows, device=device)

    with ThreadPoolExecutor(THREADS) as pool:
        for device in ("cpu", "cuda"):
            least = float("inf")
            for _ in range(3):
                began = time.perf_counter()
                list(pool.map(lambda part: one(part, device), parts))  # noqa: B023
                least = min(least, time.perf_counter() - began)
            print(f"  sums of a gate, {device}, {THREADS} threads: {values.nbytes / least / 1e9:.1f} GB/s of BF16")


def planes_of(shape: tuple[int, ...]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    return np.zeros((shape[0], shape[1] // 2), np.uint8), np.zeros((shape[0], shape[1] // 16), np.uint8)


def same(one: Any, two: Any, what: str) -> None:
    equal = all(map(np.array_equal, one, two)) if isinstance(one, tuple) else one == two
    if not equal:
        raise SystemExit(f"{what}: the devices differ")


def compare_matrix(name: str, values: Bits) -> str:
    """Both devices on one matrix; its kind of grid."""
    amax = encode.amax_of_tile(values)
    same(cuda.amax_of_tile(values), amax, f"{name} amax")
    planes = Planes(*planes_of(values.shape), 0, "multiplier")
    for arithmetic in ("amax-llmcompressor", "amax"):
        built: EncodeTables = build_encode_tables(arithmetic, "BF16", amax)
        mine, theirs = planes_of(values.shape), planes_of(values.shape)
        encode.encode_tile(values, built, *mine)
        cuda.encode_tile(values, built, *theirs)
        same(mine, theirs, f"{name} {arithmetic}")
        planes = Planes(*mine, built.global_bits, built.sense)
    rows = tile_rows(values.shape[1])
    dense = Dense(values, "BF16")
    same(compare_tiles(dense, planes, rows), compare_tiles(dense, planes, rows, device="cuda"), f"{name} gate")
    for package in decode.DECODE_ARITHMETICS:
        table = decode.decode_table(planes.global_bits, planes.sense, "BF16", package)
        one, two = np.empty_like(values), np.empty_like(values)
        decode.decode_tile(planes.codes, planes.scales, decode.paired(table), one)
        cuda.decode_tile(planes.codes, planes.scales, table, two)
        same((one,), (two,), f"{name} expanded")
    two_sides = dense, Dense(one, "BF16"), rows
    same(compare_tiles(*two_sides), compare_tiles(*two_sides, device="cuda"), f"{name} dense")
    for word in choice.CHOICES:
        chosen = choice.build_choice_tables(word, "BF16", amax)
        mine, theirs = planes_of(values.shape), planes_of(values.shape)
        choice.choose_tile(values, chosen, *mine)
        cuda.choose_tile(values, chosen, *theirs)
        same(mine, theirs, f"{name} {word}")
    for weights in (values, one):
        found = recover.find_grid(lambda: (weights,))  # noqa: B023
        same(found, recover.find_grid(lambda: (weights,), device="cuda"), f"{name} grid")  # noqa: B023
        if found.status == "grid":
            built_grid = on_grid.build_grid_tables(found.found[0].global_bits, "multiplier")
            mine, theirs = planes_of(values.shape), planes_of(values.shape)
            on_grid.solve_tile(weights, built_grid, None, *mine)
            cuda.solve_tile(weights, built_grid, None, *theirs)
            same(mine, theirs, f"{name} solved")
    return recover.find_grid(lambda: (values,)).status


def compare_checkpoint(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    names = [
        name for name, ref in checkpoint.tensors.items()
        if ref.spec.dtype == "BF16" and len(ref.spec.shape) == 2 and ref.spec.shape[1] % 16 == 0
    ]  # fmt: skip
    with Reader(checkpoint) as reader, ThreadPoolExecutor(THREADS) as pool:

        def one(name: str) -> tuple[str, int]:
            shape = checkpoint.tensors[name].spec.shape
            values = np.frombuffer(reader.bytes_of(name), np.uint16).reshape(shape)
            return compare_matrix(name, values), values.nbytes

        found = list(pool.map(one, names))
    kinds = [kind for kind, _ in found]
    print(f"{folder.name}: {len(found)} matrices, {sum(size for _, size in found) / 1e9:.2f} GB equal on both devices "
          f"({kinds.count('grid')} on a grid)")  # fmt: skip


def folder_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def whole_verbs(source: Path, work: Path) -> None:
    """``pack-nvfp4`` and ``gate`` on both devices: stages in seconds, and equal folders."""
    for scales in ("auto", "mse"):
        digests = {}
        for device in ("cpu", "cuda"):
            out = work / f"{source.name}-{scales}-{device}"
            began = time.perf_counter()
            made = pack_nvfp4(source, out, scales=scales, options=Options(force=True, device=device))
            seconds = time.perf_counter() - began
            stages = ", ".join(f"{name} {spent:.1f}" for name, spent in getattr(made, "timings", {}).items())
            print(f"  pack {source.name} --scales {scales} --device {device}: {seconds:.1f} s ({stages})")
            digests[device] = folder_digest(out)
            began = time.perf_counter()
            report = gate(out, source, device=device)
            print(f"  gate --device {device}: {time.perf_counter() - began:.1f} s")
            digests[device] += hashlib.sha256(b"".join(report.files.values())).hexdigest()
        if digests["cpu"][:64] != digests["cuda"][:64]:
            raise SystemExit("the folders differ")
        print("  folders equal")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--checkpoint", type=Path, action="append", default=[])
    parser.add_argument("--work", type=Path)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    wanted = parser.parse_args()
    gpu.require_cuda()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "cores", os.cpu_count())
    elements = int(wanted.gigabytes * (1 << 29)) // 8192 * 8192
    kernels(elements)
    streamed(elements // 4)
    summed(elements // 4)
    for folder in wanted.checkpoint:
        compare_checkpoint(folder)
        if wanted.work is not None:
            whole_verbs(folder, wanted.work)
    assert CHECKER is not cuda.PROGRAM  # the checker has kernels of its own


if __name__ == "__main__":
    main()
