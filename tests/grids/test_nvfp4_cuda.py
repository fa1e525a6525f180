"""The CUDA path gives the bytes of the compiled one: its sources run on the processor, and on a GPU if there is one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from convertkit.errors import ConvertError
from convertkit.grids.nvfp4 import choice, decode, devices, encode, on_grid, recover
from convertkit.grids.nvfp4.tables import build_encode_tables
from tests.cuda_on_cpu import on_cpu
from tests.grids.grid_tensors import KINDS, SHAPES, bf16, decoded, planes

torch = pytest.importorskip("torch")
cuda = pytest.importorskip("convertkit.grids.nvfp4.cuda")

PLACES = ["processor", "processor, newer GPU", *(["GPU"] if torch.cuda.is_available() else [])]
WIDTHS = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32}
FINITE = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for cached in (cuda._encoding, cuda._choosing, cuda._grid, cuda._decoding):
        cached.cache_clear()
    if request.param != "GPU":
        on_cpu(monkeypatch, 900 if "newer" in request.param else 800)
        monkeypatch.setattr(cuda.gpu, "require_cuda", lambda: None)
    yield request.param
    for cached in (cuda._encoding, cuda._choosing, cuda._grid, cuda._decoding):
        cached.cache_clear()


def weights(dtype: str, seed: int, shape: tuple[int, int] = (24, 96)) -> NDArray[Any]:
    """Every kind of block: Gaussian, any finite bits, zeros, one value alone, signed zeros, subnormals."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape).astype(np.float32) * np.float32(0.02)
    bits: NDArray[Any]
    if dtype == "F32":
        bits = values.view(np.uint32)
    else:
        halves = values.astype(np.float16).view(np.uint16)
        bits = halves if dtype == "F16" else (values.view(np.uint32) >> 16).astype(np.uint16)
    sign = np.array(1 << (8 * bits.dtype.itemsize - 1), bits.dtype)
    bits[3] = random.integers(0, FINITE[dtype], shape[1]).astype(bits.dtype)
    bits[4, ::3] |= sign
    bits[5] = 0
    bits[6] = 0
    bits[6, 40] = bits[0, 0]
    bits[7, ::2] = sign
    bits[8] = random.integers(0, 128, shape[1]).astype(bits.dtype)
    bits[9] = bits[3] if seed % 2 else bits[9]
    if seed > 1:  # without the row of any bits, whose largest value leaves every other block without codes
        bits[3] = bits[0]
    return np.ascontiguousarray(bits)


def room(shape: tuple[int, int]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    return np.full((shape[0], shape[1] // 2), 0x55, np.uint8), np.full((shape[0], shape[1] // 16), 0x55, np.uint8)


def tiles(values: NDArray[np.uint16], count: int = 2) -> list[NDArray[np.uint16]]:
    """A matrix by its rows, in ``count`` tiles if it has so many."""
    return np.array_split(values, min(count, len(values)))


@pytest.mark.parametrize("arithmetic", ["amax", "amax-llmcompressor"])
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("seed", range(4))
def test_encoding_equals_the_compiled_path(place: str, arithmetic: str, dtype: str, seed: int) -> None:
    values = weights(dtype, seed)
    amax = encode.amax_of_tile(values)
    assert cuda.amax_of_tile(values) == amax
    tables = build_encode_tables(arithmetic, dtype, amax)
    expected, made = room(values.shape), room(values.shape)
    encode.encode_tile(values, tables, *expected)
    cuda.encode_tile(values, tables, *made)
    assert made[1].tobytes() == expected[1].tobytes()
    assert made[0].tobytes() == expected[0].tobytes()


@pytest.mark.parametrize("name", list(choice.CHOICES))
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("least", [1, 8])
def test_choosing_scales_equals_the_compiled_path(place: str, name: str, dtype: str, least: int) -> None:
    for seed in range(4):
        values = weights(dtype, seed)
        tables = choice.build_choice_tables(name, dtype, encode.amax_of_tile(values), least_scale=least)
        expected, made = room(values.shape), room(values.shape)
        choice.choose_tile(values, tables, *expected)
        cuda.choose_tile(values, tables, *made)
        assert made[1].tobytes() == expected[1].tobytes(), seed
        assert made[0].tobytes() == expected[0].tobytes(), seed


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("sense", ["multiplier", "divisor"])
@pytest.mark.parametrize("arithmetic", ["exact", "modelopt"])
def test_decoding_equals_the_compiled_path(place: str, dtype: str, sense: str, arithmetic: str) -> None:
    random = np.random.default_rng(7)
    codes = random.integers(0, 256, (33, 40), np.uint8)
    scales = random.integers(0, 256, (33, 5), np.uint8)
    table = decode.decode_table(0x3A123456, sense, dtype, arithmetic)
    expected, made = (np.empty((33, 80), WIDTHS[dtype]) for _ in range(2))
    decode.decode_tile(codes, scales, table, expected)
    cuda.decode_tile(codes, scales, table, made)
    assert made.tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_grid_is_found_and_packed_as_by_the_compiled_path(place: str, kind: str) -> None:
    for seed in range(5):
        values = decoded(planes(kind, SHAPES[seed % len(SHAPES)], seed))
        sweep = partial(tiles, values)
        expected = recover.find_grid(sweep)
        assert recover.find_grid(sweep, device="cuda") == expected
        built = on_grid.build_grid_tables(expected.found[0].global_bits, "multiplier")
        mine, theirs = room(values.shape), room(values.shape)
        on_grid.solve_tile(values, built, None, *mine)
        cuda.solve_tile(values, built, None, *theirs)
        assert theirs[0].tobytes() == mine[0].tobytes()
        assert theirs[1].tobytes() == mine[1].tobytes()


def test_parts_and_two_grids_are_found_as_by_the_compiled_path(place: str) -> None:
    one, two = decoded(planes("amax", (64, 256), 1)), decoded(planes("random", (64, 256), 2))
    rng = np.random.default_rng(5)
    part = one.reshape(-1, 16).copy()
    off = rng.random(len(part)) < 0.1
    part[off] = bf16(rng.standard_normal((int(off.sum()), 16)) * 0.02)
    for values in (np.concatenate([one, two]), part.reshape(one.shape), bf16(rng.standard_normal((64, 256)))):
        sweep = partial(tiles, values, count=1)
        expected = recover.find_grid(sweep, thorough=True)
        assert recover.find_grid(sweep, thorough=True, device="cuda") == expected
        if expected.found:
            found = expected.found[0]
            built = on_grid.build_grid_tables(found.global_bits, "multiplier", least_scale=3)
            otherwise = on_grid.otherwise_tables(found.global_bits, "multiplier", 3)
            assert np.array_equal(cuda.scales_of_tile(values, built), on_grid.scales_of_tile(values, built))
            assert cuda.match_tile(values, built) == on_grid.match_tile(values, built)
            mine, theirs = room(values.shape), room(values.shape)
            on_grid.solve_tile(values, built, otherwise, *mine)
            cuda.solve_tile(values, built, otherwise, *theirs)
            assert theirs[0].tobytes() == mine[0].tobytes()
            assert theirs[1].tobytes() == mine[1].tobytes()


def test_a_machine_without_a_gpu_says_so() -> None:
    if torch.cuda.is_available():
        cuda.require_cuda()
        return
    for refuse in (cuda.require_cuda, lambda: devices.kernels_of("cuda"), lambda: devices.search_kernels_of("cuda")):
        with pytest.raises(ConvertError, match="no CUDA device") as caught:
            refuse()
        assert caught.value.status == 2
