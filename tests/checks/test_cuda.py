"""The checker's sums on a GPU are those of its compiled kernels, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from convertkit.checks.compare import Dense, Planes, compare_on_device, compare_tile, compare_tiles
from convertkit.checks.reference import narrowed
from convertkit.checks.served import ENGINES, Part, served_tables
from tests.cuda_on_cpu import on_cpu

torch = pytest.importorskip("torch")
cuda = pytest.importorskip("convertkit.checks.cuda")

PLACES = ["processor", *(["GPU"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    cuda._tables.cache_clear()
    if request.param != "GPU":
        on_cpu(monkeypatch, 900)
    yield request.param
    cuda._tables.cache_clear()


def dense(dtype: str, seed: int, shape: tuple[int, int]) -> NDArray[Any]:
    """Values of every size, with NaN, infinities, subnormals and zeros among them in odd seeds."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * np.exp2(rng.integers(-30, 12, (shape[0], 1)))
    values[rng.random(shape) < 0.05] = 0
    bits = narrowed(values.astype(np.float32), dtype)
    if seed % 2:
        flat = bits.reshape(-1)
        flat[rng.integers(0, flat.size, 20)] = rng.integers(0, 1 << (8 * bits.itemsize), 20).astype(bits.dtype)
        flat[5] = {"BF16": 0x7F80, "F16": 0xFC00, "F32": 0x7FC00001}[dtype]
    return bits


def sides(seed: int, shape: tuple[int, int]) -> Planes:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (shape[0], shape[1] // 2)).astype(np.uint8)
    scales = rng.integers(0, 256 if seed % 2 else 127, (shape[0], shape[1] // 16)).astype(np.uint8)
    codes[3] = 0
    scales[4] = 0
    return Planes(codes, scales, 0x3C123456, "divisor" if seed % 3 else "multiplier")


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("stored", [None, "BF16"])
def test_planes_against_dense(place: str, dtype: str, stored: str | None) -> None:
    for seed, shape in enumerate([(7, 1040), (64, 256), (5, 16), (40, 1024)]):
        reference, candidate = Dense(dense(dtype, seed, shape), dtype), sides(seed, shape)
        with np.errstate(all="ignore"):
            expected = compare_tile(reference, candidate, stored=stored)
            assert compare_on_device(reference, candidate, reference.bits.size, stored) == [expected]
            for rows in (1, 3, shape[0] + 5):
                tiles = compare_tiles(reference, candidate, rows, stored=stored)
                assert compare_tiles(reference, candidate, rows, stored=stored, device="cuda") == tiles
        assert expected.changed
        assert expected.flushed_blocks or shape[0] < 7


@pytest.mark.parametrize("one", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("two", ["BF16", "F16", "F32"])
def test_dense_against_dense(place: str, one: str, two: str) -> None:
    for seed, shape in enumerate([(7, 1041), (1, 21), (40, 1024)]):
        left, right = Dense(dense(one, seed, shape), one), Dense(dense(two, seed + 2, shape), two)
        expected = compare_tile(left, right)
        assert compare_on_device(left, right, left.bits.size) == [expected]
        for rows in (1, 3):
            assert compare_tiles(left, right, rows, device="cuda") == compare_tiles(left, right, rows)
        assert (expected.bit_differences is None) == (one != two)


@pytest.mark.parametrize("engine", list(ENGINES))
def test_planes_as_served(place: str, engine: str) -> None:
    planes = sides(2, (16, 256))
    tables = served_tables(ENGINES[engine], Part(planes.global_bits, planes.sense, 126))
    candidate = Planes(planes.codes, planes.scales, planes.global_bits, planes.sense, tables)
    reference = Dense(dense("BF16", 2, (16, 256)), "BF16")
    assert compare_on_device(reference, candidate, 16 * 256) == [compare_tile(reference, candidate)]


def test_planes_on_both_sides_stay_on_the_processor(place: str) -> None:
    one, two = sides(2, (16, 256)), sides(4, (16, 256))
    assert compare_tiles(one, two, 5, device="cuda") == compare_tiles(one, two, 5)
