"""The generator against plain integers and fractions, and its bits against pinned digests."""

from __future__ import annotations

import hashlib
from fractions import Fraction

import numpy as np
import pytest

from convertkit.demo import values
from convertkit.demo.values import Bits, Dense, OnGrid

PRECISION = {"BF16": (8, 127), "F16": (11, 15), "F32": (24, 127)}
E2M1 = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]


def e4m3(byte: int) -> Fraction:
    """Value of a non-negative E4M3 byte by its definition."""
    field, fraction = byte >> 3, byte & 7
    return Fraction(fraction, 512) if field == 0 else Fraction(8 + fraction, 8) * Fraction(2) ** (field - 7)


def decoded(bits: int, dtype: str) -> Fraction:
    """Value of finite storage bits by their definition."""
    precision, bias = PRECISION[dtype]
    width = 32 if dtype == "F32" else 16
    sign = -1 if bits >> (width - 1) else 1
    field = (bits & ((1 << (width - 1)) - 1)) >> (precision - 1)
    fraction = bits & ((1 << (precision - 1)) - 1)
    mantissa = fraction if field == 0 else fraction + (1 << (precision - 1))
    return sign * mantissa * Fraction(2) ** (max(field, 1) - bias - precision + 1)


def nearest(exact: Fraction, dtype: str) -> int:
    """Bits nearest to ``exact``, ties to even, by trying both neighbours; zero is positive."""
    if exact < 0:
        bits = nearest(-exact, dtype)
        return bits | (1 << (31 if dtype == "F32" else 15)) if bits else 0
    low, high = 0, (PRECISION[dtype][1] * 2 + 1 << PRECISION[dtype][0] - 1) - 1
    while low < high:  # largest bits whose value does not exceed it
        middle = (low + high + 1) // 2
        low, high = (middle, high) if decoded(middle, dtype) <= exact else (low, middle - 1)
    below, above = exact - decoded(low, dtype), decoded(low + 1, dtype) - exact
    return low if below < above or (below == above and low % 2 == 0) else low + 1


def splitmix(state: int, count: int) -> list[int]:
    """SplitMix64 in plain integers."""
    made, mask = [], (1 << 64) - 1
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & mask
        mixed = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & mask
        made.append(mixed ^ mixed >> 31)
    return made


def digest(bits: Bits) -> str:
    return hashlib.sha256(bits.astype(bits.dtype.newbyteorder("<")).tobytes()).hexdigest()


def test_words_are_splitmix64() -> None:
    # the first outputs for seed 1234567 as published with the reference implementation
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert splitmix(1234567, 4) == published
    assert values.words(1234567, 0, 4).tolist() == published
    assert values.words((1 << 64) - 5, 3, 9).tolist() == splitmix((1 << 64) - 5, 12)[3:]


def test_keys_are_what_the_module_says() -> None:
    expected = hashlib.sha256(b"convertkit demo 1\x007\x00values\x00fc.weight").digest()[:8]
    assert values.key_of(7, "values", "fc.weight") == int.from_bytes(expected, "little")


def test_quantiles_are_pinned_and_look_gaussian() -> None:
    levels = values.quantiles()
    assert hashlib.sha256(levels.astype("<i8").tobytes()).hexdigest() == (
        "6d398d8ca16a84557ef1fa19b9800f686025c91167f801256b1fe2bd80935cb3"
    )
    assert (np.diff(levels) >= 0).all()
    assert (levels == -levels[::-1]).all()
    unit = 1 << values.UNIT_BITS
    assert 1.0 < float(np.std(levels / unit)) < 1.1
    assert 4.5 < float(levels[-1] / unit) < 5.5
    # a Gaussian has its quartile at 0.6745; twelve bytes, a little flatter, have it 0.007 further out
    assert abs(float(levels[49152] / unit) - 0.6745 * (1 + 0.6745**2 / 64)) < 0.01


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_rounding_is_nearest_ties_to_even(dtype: str) -> None:
    random = np.random.default_rng(5)
    numbers = random.integers(-(1 << 52), 1 << 52, 300) >> random.integers(0, 52, 300)
    precision = PRECISION[dtype][0]
    ties = ((random.integers(1 << precision - 1, 1 << precision, 50) << 1) + 1) << random.integers(0, 20, 50)
    numbers = np.concatenate([numbers, ties, -ties, np.array([0, 1, -1, 3, (1 << 53) - 1])])
    for fraction_bits in (44, 60, 38):
        made = values.round_bits(numbers, fraction_bits, dtype).tolist()
        scale = Fraction(1, 1 << fraction_bits)
        assert made == [nearest(int(number) * scale, dtype) for number in numbers]


def test_rounding_keeps_subnormals_and_refuses_overflow() -> None:
    tiny = np.array([1, 2, 3, 5, 8, 1023, -1, -3], dtype=np.int64)
    made = values.round_bits(tiny, 26, "F16").tolist()
    assert made == [nearest(Fraction(int(number), 1 << 26), "F16") for number in tiny]
    assert made[0] == 0
    assert made[6] == 0, "a negative number that rounds to zero is a positive zero"
    assert values.round_bits(np.array([65504], dtype=np.int64), 0, "F16").tolist() == [0x7BFF]
    with pytest.raises(ValueError, match="too large"):
        values.round_bits(np.array([65520], dtype=np.int64), 0, "F16")
    with pytest.raises(ValueError, match="2\\*\\*53"):
        values.round_bits(np.array([1 << 53], dtype=np.int64), 0, "F32")


def streams() -> list[Dense | OnGrid]:
    std = values.fan_in_std(64)
    made: list[Dense | OnGrid] = [values.dense(3, "a", dtype, mean=0, std=std) for dtype in PRECISION]
    return made + [values.on_grid(3, "a", "group", dtype, std=std) for dtype in PRECISION]


@pytest.mark.parametrize("stream", streams(), ids=lambda stream: f"{type(stream).__name__}-{stream.dtype}")
def test_any_part_can_be_made_alone(stream: Dense | OnGrid) -> None:
    whole = values.values(stream, 0, 5000)
    for first, count in ((0, 1), (1, 1), (3, 14), (15, 2), (16, 16), (17, 4000), (4999, 1)):
        assert (values.values(stream, first, count) == whole[first : first + count]).all()
    far = (1 << 40) + 5
    assert (values.values(stream, far, 50)[20:] == values.values(stream, far + 20, 30)).all()


def test_dense_values_follow_their_definition() -> None:
    std = values.fan_in_std(5120)
    assert std == int((1 << 24) / 5120**0.5)
    key = values.key_of(0, "values", "x")
    scale = std * (768 + (key >> 32) % 512) >> 10
    lanes = [word >> 16 * place & 0xFFFF for word in splitmix(key, 50) for place in range(4)]
    levels = values.quantiles()
    expected = [nearest(Fraction(scale * int(levels[lane]) + (1 << 44), 1 << 44), "BF16") for lane in lanes]
    assert values.values(values.dense(0, "x", "BF16", mean=1 << 24, std=std), 0, 200).tolist() == expected


def test_grid_values_are_codes_times_scales_rounded_once() -> None:
    for dtype in PRECISION:
        stream = values.on_grid(1, "layers.0.mlp.up_proj.weight", "gate_up", dtype, std=values.fan_in_std(64))
        made, planes = values.values(stream, 0, 512), values.planes(stream, 0, 512)
        assert planes.codes.shape == (256,)
        assert planes.block_scale.shape == (32,)
        g = decoded(planes.global_bits, "F32")
        for place, bits in enumerate(made.tolist()):
            code = int(planes.codes[place // 2]) >> 4 * (place % 2) & 15
            magnitude = E2M1[code & 7] * e4m3(int(planes.block_scale[place // 16])) * g
            assert bits == nearest(-magnitude if code & 8 else magnitude, dtype)


def test_grid_planes_look_trained() -> None:
    stream = values.on_grid(1, "w", "w", "BF16", std=values.fan_in_std(4096))
    planes = values.planes(stream, 0, 1 << 18)
    codes = np.concatenate([planes.codes & 15, planes.codes >> 4])
    counts = np.bincount(codes, minlength=16)
    assert counts[8] == 0, "no negative zero"
    assert (np.delete(counts, 8) > 0).all()
    largest = (planes.codes & 7).reshape(-1, 8).max(1) | (planes.codes >> 4 & 7).reshape(-1, 8).max(1)
    assert 0.5 < float((largest == 7).mean()) < 0.95, "most blocks reach code 6, not all"
    assert planes.block_scale.min() >= 0x58
    assert planes.block_scale.max() <= 0x7E
    assert len(np.unique(planes.block_scale)) > 15
    deviation = np.std([float(decoded(bits, "BF16")) for bits in values.values(stream, 0, 20000).tolist()])
    assert 0.7 / 64 < deviation < 1.4 / 64


def test_groups_share_a_global_scale() -> None:
    def bits(name: str, group: str, seed: int = 0) -> int:
        return values.on_grid(seed, name, group, "BF16", std=values.fan_in_std(64)).global_bits

    assert bits("gate", "gate_up.0") == bits("up", "gate_up.0")
    assert len({bits("gate", "gate_up.0"), bits("gate", "gate_up.1"), bits("gate", "gate_up.0", seed=1)}) == 3


def test_planes_come_in_blocks() -> None:
    stream = values.on_grid(0, "w", "w", "BF16", std=values.fan_in_std(64))
    with pytest.raises(ValueError, match="blocks of 16"):
        values.planes(stream, 8, 16)


def test_bits_are_pinned() -> None:
    made = [digest(values.values(stream, 0, 100_000))[:16] for stream in streams()]
    assert made == [
        "ec6b2c6b80078c79",
        "8c2ef6e580c55ddf",
        "fd6a4316c01fa36e",
        "6102e70467529419",
        "0428fa51ac054bfa",
        "23decba8c52da060",
    ]
