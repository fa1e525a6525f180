"""Speed of grid recovery and scale choice: ratios within one run, one thread, against hashing and plain amax.

Run as::

    PYTHONPATH=. python benchmarks/recover.py [--rows 2048] [--width 8192] [--rounds 5]

Each step is timed once per round, the steps taking turns, and the least time counts: processor time of the thread,
since nothing here waits. Weights are made here: Gaussian,
and the same ones packed with an unknown global scale and expanded to BF16. What comes back is compared with what went
in before anything is printed. Goals are those of the project; a missed one is printed as such.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convertkit.checks import packs, reference
from convertkit.checks.pack import expected_global
from convertkit.grids.nvfp4 import choice, encode, numbers, on_grid, recover, tables
from convertkit.grids.nvfp4.verdict import Verdict

Bits = NDArray[np.uint16]
TILE_ROWS = 128


class Bench:
    """One matrix and room for its planes."""

    def __init__(self, rows: int, width: int) -> None:
        gaussian = np.random.default_rng(0).standard_normal((rows, width)).astype(np.float32) * np.float32(0.02)
        self.ordinary: Bits = reference.narrowed(gaussian, "BF16")
        self.codes = np.zeros((rows, width // 2), np.uint8)
        self.scales = np.zeros((rows, width // 16), np.uint8)
        self.gridded = self._gridded()

    def _gridded(self) -> Bits:
        """The ordinary weights, packed under a global scale that their amax does not tell, and expanded again."""
        plain = tables.build_encode_tables("amax", "BF16", encode.amax_of_tile(self.ordinary))
        bent = reference.bits_of(np.float32(numbers.float_of(plain.global_bits) * np.float32(1.0017)))
        encode.encode_tile(self.ordinary, tables.tables_under("amax", "BF16", bent), self.codes, self.scales)
        return self.expanded(bent)

    def expanded(self, global_bits: int) -> Bits:
        table = reference.exact_rounded_table(global_bits, "multiplier", "BF16").astype(np.uint16)
        nibbles = np.stack([self.codes & 15, self.codes >> 4], axis=-1).reshape(self.codes.shape[0], -1)
        return np.ascontiguousarray(table[np.repeat(self.scales, 16, axis=1), nibbles])

    def tiles(self, values: Bits) -> Iterator[tuple[Bits, NDArray[np.uint8], NDArray[np.uint8]]]:
        for first in range(0, values.shape[0], TILE_ROWS):
            part = slice(first, first + TILE_ROWS)
            yield values[part], self.codes[part], self.scales[part]

    def amax(self, values: Bits) -> None:
        largest = max(encode.amax_of_tile(tile) for tile, _, _ in self.tiles(values))
        built = tables.build_encode_tables("amax", "BF16", largest)
        for tile, codes, scales in self.tiles(values):
            encode.encode_tile(tile, built, codes, scales)

    def search(self, values: Bits) -> Verdict:
        return recover.find_grid(lambda: (tile for tile, _, _ in self.tiles(values)))

    def lossless(self, values: Bits) -> int:
        """Bits of the global scale that was found."""
        found = self.search(values).found[0]
        built = on_grid.build_grid_tables(found.global_bits, found.sense)
        for tile, codes, scales in self.tiles(values):
            on_grid.solve_tile(tile, built, None, codes, scales)
        return found.global_bits

    def choose(self, name: str) -> None:
        largest = max(encode.amax_of_tile(tile) for tile, _, _ in self.tiles(self.ordinary))
        built = choice.build_choice_tables(name, "BF16", largest)
        for tile, codes, scales in self.tiles(self.ordinary):
            choice.choose_tile(tile, built, codes, scales)

    def choose_checked(self, name: str) -> int:
        """What the checker finds wrong in planes that ``choose`` has just made: nothing."""
        unit: Any = SimpleNamespace(
            arithmetic=name, dtype="BF16", least_scale=1, reversible=False, spelling=SimpleNamespace(sense="multiplier")
        )
        largest = max(encode.amax_of_tile(tile) for tile, _, _ in self.tiles(self.ordinary))
        judge = packs._checker(unit, largest, expected_global(name, "BF16", largest), None)
        found = [judge(packs.Tile(*part)).tally for part in self.tiles(self.ordinary)]
        return sum(item.wrong_codes + item.wrong_scales for item in found)

    def check(self) -> None:
        """The recovered planes expand to the weights; ordinary ones are rejected."""
        assert np.array_equal(self.expanded(self.lossless(self.gridded)), self.gridded)
        assert self.search(self.ordinary).status == "none"
        self.choose("mse")
        assert self.choose_checked("mse") == 0


def seconds(step: Callable[[], object]) -> float:
    start = time.thread_time()
    step()
    return time.thread_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    for name, default in (("rows", 2048), ("width", 8192), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    wanted = parser.parse_args()
    bench = Bench(wanted.rows, wanted.width)
    bench.check()
    steps: dict[str, Callable[[], object]] = {
        "sha256": lambda: hashlib.sha256(bench.gridded.data).digest(),
        "amax pack": lambda: bench.amax(bench.gridded),
        "search and lossless pack": lambda: bench.lossless(bench.gridded),
        "search of ordinary weights": lambda: bench.search(bench.ordinary),
        "four-over-six": lambda: bench.choose("four-over-six"),
        "mse": lambda: bench.choose("mse"),
        "mse, checked": lambda: bench.choose_checked("mse"),
    }
    least = dict.fromkeys(steps, float("inf"))
    for _ in range(wanted.rounds):
        for name, step in steps.items():
            least[name] = min(least[name], seconds(step))
    size = bench.gridded.nbytes
    print(f"{wanted.rows} x {wanted.width} BF16, one thread, least of {wanted.rounds} rounds, bytes checked")
    for name, value in least.items():
        print(
            f"  {name:28} {value * 1000:8.1f} ms  {size / value / 1e9:6.2f} GB/s  {value / least['sha256']:5.2f} sha256"
        )
    ratio = least["search and lossless pack"] / least["amax pack"]
    print(f"  lossless / amax {ratio:.2f}, goal 3 at most; mse {size / least['mse'] / 1e9:.2f} GB/s, goal 0.1 at least")
    print(f"  check of mse / mse {least['mse, checked'] / least['mse']:.2f}, goal 1 at most")


if __name__ == "__main__":
    main()
