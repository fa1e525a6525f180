"""Grid recovery: every kind of grid tensor comes back without one differing element, and nothing else is claimed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from convertkit.checks import reference
from convertkit.grids.nvfp4 import cells, encode, numbers, on_grid, recover, tables
from convertkit.grids.nvfp4.verdict import Found
from tests.grids.grid_tensors import KINDS, SHAPES, Planes, bf16, decoded, float_bits, planes

Bits = NDArray[np.uint16]


def packed(values: Bits, found: Found, least_scale: int = 1) -> Planes:
    """The planes of a tensor under a grid that was found."""
    built = on_grid.build_grid_tables(
        found.global_bits, found.sense, least_scale=least_scale, arithmetic=found.arithmetic
    )
    codes = np.full((values.shape[0], values.shape[1] // 2), 0xAA, np.uint8)
    scales = np.full((values.shape[0], values.shape[1] // 16), 0xAA, np.uint8)
    otherwise = on_grid.otherwise_tables(found.global_bits, found.sense, least_scale)
    on_grid.solve_tile(values, built, otherwise, codes, scales)
    return Planes(codes, scales, found.global_bits)


def ordinary(seed: int) -> Bits:
    rng = np.random.default_rng(seed)
    shape = SHAPES[seed % len(SHAPES)]
    draws = (rng.standard_normal, lambda size: rng.standard_t(3, size), lambda size: rng.uniform(-1, 1, size))
    return bf16(draws[seed % 3](shape) * 2.0 ** rng.uniform(-10, 0))


def mixed(share: float) -> tuple[Bits, NDArray[np.bool_]]:
    """An amax tensor in which some blocks are ordinary weights, and which."""
    values = decoded(planes("amax", (256, 1024), 1)).reshape(-1, 16)
    rng = np.random.default_rng(5)
    off = rng.random(len(values)) < share
    values[off] = bf16(rng.standard_normal((int(off.sum()), 16)) * 0.02)
    return values.reshape(256, 1024), off


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_tensors_of_each_kind_come_back_equal(kind: str) -> None:
    told = 0
    for seed in range(100):
        values = decoded(planes(kind, SHAPES[seed % len(SHAPES)], seed))
        sense: numbers.Sense = "divisor" if seed % 2 else "multiplier"
        verdict = recover.find_grid(lambda values=values: (values,), sense=sense)  # type: ignore[misc]
        if sense == "divisor" and "no divisor" in verdict.reason:
            told += 1
            sense = "multiplier"
            verdict = recover.find_grid(lambda values=values: (values,))  # type: ignore[misc]
        assert verdict.status == "grid", (seed, verdict)
        again = packed(values, verdict.found[0])
        assert np.array_equal(decoded(again, sense), values), seed
        assert not (again.scales & 0x80).any()
        assert int(again.scales.min()) > 0
        assert int(again.scales.max()) < 0x7F
    # amax/1536 of a BF16 amax is often so short a number that products are ties.
    assert told == 0 or kind in ("mse", "4/6")


def test_a_thousand_ordinary_tensors_are_claimed_to_lie_on_no_grid() -> None:
    for seed in range(1000):
        values = ordinary(seed)
        verdict = recover.find_grid(lambda values=values: (values,))  # type: ignore[misc]
        assert verdict.status == "none", seed
        assert "% of its values" in verdict.reason
        assert verdict.amax_bits == encode.amax_of_tile(values)


@pytest.mark.parametrize("kind", ["amax", "mse", "4/6"])
def test_the_recovered_scale_is_that_of_the_source_within_its_interval(kind: str) -> None:
    for seed in range(20):
        source = planes(kind, (64, 256), seed)
        values = decoded(source)
        verdict = recover.find_grid(lambda values=values: (values,))  # type: ignore[misc]
        ratio = float(numbers.float_of(verdict.found[0].global_bits)) / float(numbers.float_of(source.global_bits))
        assert abs(np.log2(ratio) - round(np.log2(ratio))) < 2e-3
        if round(np.log2(ratio)) == 0:
            assert np.array_equal(packed(values, verdict.found[0]).scales, source.scales)


def test_a_hint_gives_back_the_original_bytes() -> None:
    for seed in range(20):
        for kind in ("amax", "4/6"):
            source = planes(kind, (64, 256), seed)
            values = decoded(source)
            verdict = recover.find_grid(lambda values=values: (values,), hints=(source.global_bits,))  # type: ignore[misc]
            assert verdict.found[0].global_bits == source.global_bits
            again = packed(values, verdict.found[0])
            assert np.array_equal(again.scales, source.scales)
            assert np.array_equal(decoded(again), values)


def test_a_wrong_hint_does_no_harm() -> None:
    values = decoded(planes("amax", (64, 256), 3))
    verdict = recover.find_grid(lambda: (values,), hints=(float_bits(1.0), float_bits(3e-5)))
    assert verdict.status == "grid"
    assert np.array_equal(decoded(packed(values, verdict.found[0])), values)


@pytest.mark.parametrize(("sense", "package"), [("multiplier", "modelopt"), ("divisor", "compressed-tensors")])
def test_the_package_expands_the_found_scale_to_the_same_bits(sense: numbers.Sense, package: str) -> None:
    """The scale is taken from the middle of its interval, so that intermediate roundings change nothing."""
    for seed in range(20):
        values = decoded(planes("amax", (64, 256), seed))
        verdict = recover.find_grid(lambda values=values: (values,), sense=sense)  # type: ignore[misc]
        again = packed(values, verdict.found[0])
        theirs = reference.package_table(again.global_bits, sense, "BF16", package)
        assert np.array_equal(
            theirs[1:127, :8], reference.exact_rounded_table(again.global_bits, sense, "BF16")[1:127, :8]
        )


def test_a_grid_of_ties_is_refused_for_a_divisor() -> None:
    """Under g = 23/16 some products lie exactly between two BF16 numbers, and c*s/G does not for any FP32 G."""
    values = decoded(planes("random", (64, 256), 3)._replace(global_bits=float_bits(23 / 2**20)))
    assert recover.find_grid(lambda: (values,)).status == "grid"
    verdict = recover.find_grid(lambda: (values,), sense="divisor")
    assert verdict.status == "none"
    assert "no divisor" in verdict.reason


def as_modelopt(source: Planes) -> Bits:
    """The planes as ModelOpt expands them: block scale times global scale rounded to FP32, times the code, rounded."""
    table = reference.package_table(source.global_bits, "multiplier", "BF16", "modelopt")
    nibbles = np.stack([source.codes & 15, source.codes >> 4], axis=-1).reshape(source.codes.shape[0], -1)
    return np.ascontiguousarray(table[np.repeat(source.scales, 16, axis=1), nibbles].astype(np.uint16))


def test_products_so_near_a_tie_that_modelopt_rounds_them_otherwise_are_found_by_its_steps() -> None:
    """4 of the 128 mantissas of a largest magnitude: no global scale gives those values as exact products. With a
    fifth, 133, ModelOpt rounds all ties to one side, so that a neighbouring scale gives them."""
    codes = np.tile(np.arange(8, dtype=np.uint8) * 0x22 + 0x10, (126, 1))
    every = Planes(codes, np.arange(1, 127, dtype=np.uint8)[:, None], 0)
    stepped = {}
    for mantissa in range(128, 256):
        bits = tables.global_bits_of("amax", "BF16", 0x3F80 + mantissa - 128)
        values, exact = (decode(every._replace(global_bits=bits)) for decode in (as_modelopt, decoded))
        wrong = np.count_nonzero((values ^ exact) & 0x7FFF) // 2
        assert (wrong > 0) == (mantissa in (133, 161, 175, 203, 217))
        assert recover.find_grid(lambda exact=exact: (exact,)).found[0].arithmetic == "exact"  # type: ignore[misc]
        verdict = recover.find_grid(lambda values=values: (values,))  # type: ignore[misc]
        assert verdict.status == "grid"
        (found,) = verdict.found
        again = packed(values, found)
        decode = decoded if found.arithmetic == "exact" else as_modelopt
        assert np.array_equal(decode(again), values)
        if found.arithmetic != "exact":
            assert (found.arithmetic, found.global_bits, found.sense) == ("modelopt", bits, "multiplier")
            divisor = recover.find_grid(lambda values=values: (values,), sense="divisor")  # type: ignore[misc]
            assert f"ModelOpt's own steps expand with weight_scale_2 {numbers.float_of(bits):.9g}" in divisor.reason
            assert (divisor.status, len(divisor.found)) == ("part", 1)
            signed = values.copy()
            signed[0, np.flatnonzero(signed[0] == 0)[0]] = 0x8000  # ModelOpt expands no code to -0
            assert recover.find_grid(lambda signed=signed: (signed,)).status != "grid"  # type: ignore[misc]
            stepped[mantissa] = wrong
    assert stepped == {161: 45, 175: 45, 203: 90, 217: 90}


def test_groups_share_one_scale_over_many_tiles() -> None:
    source = planes("mse", (96, 256), 4)
    values = decoded(source)

    def sweep() -> Iterator[Bits]:
        yield from (values[first : first + 8] for first in range(0, 96, 8))

    verdict = recover.find_grid(sweep)
    assert verdict.status == "grid"
    assert verdict.blocks == np.count_nonzero((values.reshape(-1, 16) & 0x7FFF).any(axis=1))
    assert np.array_equal(decoded(packed(values, verdict.found[0])), values)


@pytest.mark.parametrize("share", [0.0005, 0.01, 0.1, 0.3])
def test_a_partly_on_grid_tensor_is_counted_block_by_block(share: float) -> None:
    values, off = mixed(share)
    verdict = recover.find_grid(lambda: (values,))
    assert verdict.status == "part"
    assert verdict.found[0].blocks == int((~off).sum())
    assert f"{int((~off).sum())} of {off.size} blocks" in verdict.reason
    built = on_grid.build_grid_tables(verdict.found[0].global_bits, "multiplier")
    assert np.array_equal(on_grid.scales_of_tile(values, built).reshape(-1) == 0, off)
    again = decoded(packed(values, verdict.found[0])).reshape(-1, 16)
    assert np.array_equal((again != values.reshape(-1, 16)).any(axis=1), off)


def test_two_grids_in_one_tensor_are_named() -> None:
    one, two = planes("amax", (128, 256), 1), planes("random", (128, 256), 2)
    values = np.concatenate([decoded(one), decoded(two)])
    verdict = recover.find_grid(lambda: (values,))
    assert verdict.status == "several"
    assert sum(item.blocks for item in verdict.found) == verdict.blocks
    for found, source in zip(verdict.found, (one, two), strict=True):
        ratio = float(numbers.float_of(found.global_bits)) / float(numbers.float_of(source.global_bits))
        assert abs(np.log2(ratio) - round(np.log2(ratio))) < 2e-3


def test_scales_that_were_rounded_to_bf16_first_are_seldom_claimed() -> None:
    """bf(c * bf(s * g)) is another arithmetic; where it is not on the grid it must not be called so."""
    for seed in range(30):
        source = planes("random", (64, 256), seed)
        scale = numbers.E4M3[source.scales] * numbers.float_of(source.global_bits)
        unit = reference.widened(reference.narrowed(scale.astype(np.float32), "BF16"), "BF16")
        nibbles = np.stack([source.codes & 15, source.codes >> 4], axis=-1).reshape(64, -1)
        values = bf16((numbers.E2M1[nibbles] * np.repeat(unit, 16, axis=1)).astype(np.float64))
        verdict = recover.find_grid(lambda values=values: (values,), thorough=True)  # type: ignore[misc]
        if verdict.status == "grid":
            assert np.array_equal(decoded(packed(values, verdict.found[0])), values)
        else:
            assert verdict.reason


def test_zeros_of_both_signs_lie_on_every_grid() -> None:
    values = np.zeros((2, 32), np.uint16)
    values[0, 3] = values[1, 20] = 0x8000
    verdict = recover.find_grid(lambda: (values,))
    assert (verdict.status, verdict.blocks) == ("grid", 0)
    assert np.array_equal(decoded(packed(values, verdict.found[0])), values)


@pytest.mark.parametrize("bad", [0x7F80, 0xFFC0])
def test_values_that_are_not_finite_end_the_search(bad: int) -> None:
    values = decoded(planes("amax", (16, 64), 1))
    values[3, 3] = bad
    verdict = recover.find_grid(lambda: (values,))
    assert (verdict.status, verdict.amax_bits) == ("none", bad & 0x7FFF)


def test_larger_block_scales_are_taken_where_asked_for() -> None:
    """Blocks 6, 4, 2 ... under scale 2^-7 are also 3, 2, 1 under 2^-6, which Marlin does not serve as zero."""
    codes = np.zeros((1, 16), np.uint8)
    codes[0, :8], codes[0, 8:12] = 0x77, (0x67, 0x46, 0x24, 0x02)
    source = Planes(codes, np.array([[0x7E, 0x04]], np.uint8), float_bits(1.25e-3))
    values = decoded(source)
    hint = (source.global_bits,)
    plain = packed(values, recover.find_grid(lambda: (values,), hints=hint).found[0])
    assert plain.scales.tolist() == source.scales.tolist()
    verdict = recover.find_grid(lambda: (values,), hints=hint, least_scale=8)
    lifted = packed(values, verdict.found[0], least_scale=8)
    assert lifted.scales.tolist() == [[0x7E, 0x08]]
    assert np.array_equal(decoded(lifted), values)


@pytest.mark.parametrize("fine", [False, True])
def test_cells_hold_every_scale_and_change_only_at_their_edges(fine: bool) -> None:
    made = cells.cells(fine)
    assert float(made.widths.sum()) == pytest.approx(1.0, abs=1e-12)
    assert set(made.patterns.sum(axis=1).tolist()) == {13.0}
    rng = np.random.default_rng(0)
    for scale in rng.uniform(1, 2, 300).astype(np.float32):
        cell = int(np.argmin(np.where(made.widths > 0, np.abs(made.scales - scale) - made.widths / 2, np.inf)))
        table = reference.exact_rounded_table(reference.bits_of(scale), "multiplier", "BF16")[8:127, 1:8]
        assert set((table & 0x7F).reshape(-1).tolist()) == set(np.flatnonzero(made.patterns[cell]).tolist())


def test_one_normal_value_among_subnormal_ones_is_no_grid() -> None:
    """A single mantissa is explained by every scale, and by those that explain nothing of it as well."""
    values = np.array([[81, 65, 35, 40, 6, 10, 3, 0, 0, 0, 0, 0, 0, 0, 0, 130]], np.uint16)
    verdict = recover.find_grid(lambda: (values,))
    assert (verdict.status, verdict.blocks) == ("none", 1)
    assert "0 of 1 blocks fit" in verdict.reason


def test_odd_tensors_are_claimed_only_if_they_come_back() -> None:
    """Constants, values at both ends of BF16, few mantissas, flipped bits: a claim holds, and nothing crashes."""
    rng = np.random.default_rng(5)

    def flipped() -> Bits:
        values = decoded(planes("random", (4, 32), int(rng.integers(1000)))).copy()
        values.reshape(-1)[rng.integers(0, values.size)] ^= np.uint16(1 << int(rng.integers(0, 16)))
        return values

    def any_of(count: int, top: int = 0x7F80) -> Bits:
        return rng.choice(rng.integers(0, top, count), (3, 16)).astype(np.uint16)

    makers = (
        lambda: np.full((2, 16), int(rng.integers(0, 0x7F80)), np.uint16),
        lambda: any_of(2),
        lambda: any_of(5, 300),
        lambda: (0x7F7F - rng.integers(0, 600, (2, 16))).astype(np.uint16),
        flipped,
    )
    claimed = 0
    for number in range(40):
        values = makers[number % len(makers)]()
        verdict = recover.find_grid(lambda values=values: (values,), thorough=True)  # type: ignore[misc]
        if verdict.found:
            again = decoded(packed(values, verdict.found[0])).reshape(-1, 16)
            equal = (again == values.reshape(-1, 16)).all(axis=1)
            nonzero = (values.reshape(-1, 16) & 0x7FFF).any(axis=1)
            assert int((equal & nonzero).sum()) >= verdict.found[0].blocks
            assert verdict.status != "grid" or equal.all()
            claimed += verdict.status == "grid"
    assert claimed >= 8
