"""Tallies, metrics and thresholds."""

from __future__ import annotations

from fractions import Fraction
from math import log10, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from convertkit.checks.fidelity import DEFAULT_LIMITS, THRESHOLDS, Tally, judge, metrics, total
from convertkit.checks.pack import check_pack_tile, expected_global
from convertkit.checks.reference import float_of
from convertkit.checks.tiles import LANES, NOTHING, TILE_ELEMENTS, Sum, flat_tiles, fold, row_tiles, tile_rows
from tests.checks import plain

FINITE = st.floats(-1e300, 1e300, allow_nan=False)


def row(tally: Tally, name: str = "a.weight", scope: str = "tensor") -> dict[str, Any]:
    return {"name": name, "scope": scope, "metrics": metrics(tally)}


def packed(values: NDArray[np.float32], *, swap: bool = False, factor: float = 1.0) -> Tally:
    source = plain.to_dtype(values, "BF16")
    bits = expected_global("amax", "BF16", int((source & 0x7FFF).max()))
    scales, codes = plain.encoded(plain.float32(source, "BF16"), "BF16", "amax", float_of(bits))
    codes = ((codes >> 4) | (codes << 4)).astype(np.uint8) if swap else codes
    recorded = int(np.float32(float_of(bits) * np.float32(factor)).view(np.uint32))
    return check_pack_tile(source, "BF16", codes, scales, recorded, "multiplier", "amax").fidelity


@given(st.lists(FINITE, max_size=60))
@settings(deadline=None)
def test_sums_keep_what_rounding_loses(numbers: list[float]) -> None:
    result = NOTHING
    for number in numbers:
        result = result + Sum(number)
    exact = sum((Fraction(number) for number in numbers), Fraction(0))
    spread = sum((abs(Fraction(number)) for number in numbers), Fraction(0))
    assert abs(Fraction(result.value) + Fraction(result.rest) - exact) <= spread * Fraction(2) ** -90


def test_compensation_by_hand() -> None:
    result = Sum(1e16) + Sum(1.0) + Sum(1.0) + Sum(-1e16)
    assert result.total == 2.0


def test_folding_adds_halves() -> None:
    lanes = np.zeros(LANES)
    lanes[0], lanes[LANES // 2], lanes[1] = 1e16, 1.0, -1e16
    assert fold(lanes) == (1e16 + 1.0) + -1e16


def test_tiles_cover_a_matrix_once() -> None:
    assert tile_rows(5120) == TILE_ELEMENTS // 5120
    assert tile_rows(2 * TILE_ELEMENTS) == 1
    tiles = list(row_tiles(1000, 5120))
    assert [first for first, _ in tiles] == list(range(0, 1000, 204))
    assert sum(count for _, count in tiles) == 1000
    assert list(flat_tiles(TILE_ELEMENTS + 3)) == [(0, TILE_ELEMENTS), (TILE_ELEMENTS, 3)]
    assert list(row_tiles(0, 16)) == []


def test_metrics_by_hand() -> None:
    tally = Tally(elements=4, changed=1, square_reference=Sum(25.0), square_candidate=Sum(16.0),
                  square_error=Sum(1.0), max_abs_error=1.0, bit_differences=1)  # fmt: skip
    assert metrics(tally) == {
        "elements": 4, "changed": 1, "changed_fraction": 0.25, "exact": False, "nonfinite": 0, "max_abs_error": 1.0,
        "rel_rms": 0.2, "sqnr_db": pytest.approx(10 * log10(25), rel=1e-15), "cosine": 1.0, "bit_differences": 1,
    }  # fmt: skip
    orthogonal = Tally(
        elements=2, changed=2, square_reference=Sum(1.0), square_candidate=Sum(1.0), square_error=Sum(2.0)
    )
    assert metrics(orthogonal)["cosine"] == 0.0


def test_metrics_of_equal_and_of_zero_tensors() -> None:
    equal = metrics(Tally(elements=2, square_reference=Sum(2.0), square_candidate=Sum(2.0)))
    assert (equal["exact"], equal["rel_rms"], equal["sqnr_db"], equal["cosine"]) == (True, 0.0, None, 1.0)
    zero = Tally(elements=2)
    assert (metrics(zero)["rel_rms"], metrics(zero)["cosine"]) == (0.0, None)
    assert judge([row(zero)]) == []
    noise = Tally(elements=2, changed=1, square_candidate=Sum(1.0), square_error=Sum(1.0), max_abs_error=1.0)
    assert metrics(noise)["rel_rms"] is None
    found = judge([row(noise)])
    assert [item.data["metric"] for item in found] == ["rel_rms", "sqnr_db", "cosine"]
    assert "undefined" in found[0].message


def test_block_metrics_by_hand() -> None:
    histogram = [0] * 256
    for byte, count in ((0x00, 1), (0x03, 2), (0x38, 5), (0x7E, 1), (0x7F, 3), (0xB8, 4)):
        histogram[byte] = count
    found = metrics(Tally(elements=256, blocks=16, flushed_blocks=4, saturated=64, scale_histogram=tuple(histogram)))
    assert found["block_scales"] == {
        "least": 0.0, "largest": 448.0, "zero": 1, "subnormal": 2, "negative": 4, "nan": 3,
        "exponents": [3, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1],
    }  # fmt: skip
    assert (found["flushed_fraction"], found["saturated_fraction"]) == (0.25, 0.25)


def test_usual_weights_pass_the_default_limits() -> None:
    rng = np.random.default_rng(0)
    shape = (64, 1024)
    for values in (
        rng.standard_normal(shape), rng.standard_t(3, shape), rng.laplace(size=shape),
        rng.standard_normal(shape) * np.exp(rng.standard_normal((64, 1))), np.sign(rng.standard_normal(shape)),
    ):  # fmt: skip
        tally = packed((values * 0.02).astype(np.float32))
        assert judge([row(tally)]) == []
        assert metrics(tally)["flushed_blocks"] == 0


def test_a_gaussian_weight_has_the_known_error() -> None:
    found = metrics(packed((np.random.default_rng(1).standard_normal((128, 1024)) * 0.02).astype(np.float32)))
    assert found["rel_rms"] == pytest.approx(0.095, abs=0.001)
    assert found["sqnr_db"] == pytest.approx(20.43, abs=0.1)
    assert found["cosine"] == pytest.approx(0.9955, abs=0.0005)


@pytest.mark.parametrize("fault", [{"swap": True}, {"factor": 1.1}, {"factor": 0.9}, {"factor": 0.82}, {"factor": 2.0}])
def test_broken_packs_fail_the_default_limits(fault: dict[str, Any]) -> None:
    values = (np.random.default_rng(2).standard_normal((64, 1024)) * 0.02).astype(np.float32)
    failed = {item.data["metric"] for item in judge([row(packed(values, **fault))])}
    assert {"rel_rms", "sqnr_db"} <= failed


def test_findings_name_the_tensor_the_metric_the_value_and_the_limit() -> None:
    tally = Tally(
        elements=100, changed=50, square_reference=Sum(1.0), square_candidate=Sum(1.0), square_error=Sum(0.04)
    )
    found = judge(
        [row(tally, "x.weight"), row(tally, "x", "group"), row(tally, "whole", "whole")], {"max_rel_rms": 0.1}
    )
    assert [item.code for item in found] == ["E_GATE"] * 3
    assert [item.where.tensor for item in found] == ["x.weight", None, None]
    assert found[0].data == {"scope": "tensor", "name": "x.weight", "metric": "rel_rms", "value": 0.2, "limit": 0.1}
    assert found[0].message == "tensor 'x.weight': rel_rms is 0.2 and must be at most 0.1"
    assert found[1].message.startswith("group 'x'")
    assert found[2].message.startswith("the whole checkpoint: rel_rms is 0.2")
    [item] = judge([row(tally, "x.weight")], {"max_rel_rms": None, "max_changed": 0.1})
    assert item.message == "tensor 'x.weight': changed_fraction is 0.5 (50 of 100 elements) and must be at most 0.1"


@pytest.mark.parametrize("name", sorted(THRESHOLDS))
def test_each_limit_is_applied(name: str) -> None:
    histogram = (0,) * 56 + (8,) + (0,) * 199
    tally = Tally(128, 64, 1, 64, Sum(1.0), Sum(1.0), Sum(0.5), 0.25, 8, 2, 32, histogram)
    value = metrics(tally)[THRESHOLDS[name].metric]
    assert judge([row(tally)], {name: value}) == []
    assert judge([row(tally)], {name: None}) == []
    step = 1e-9 * (1 if THRESHOLDS[name].at_most else -1)
    assert [item.data["metric"] for item in judge([row(tally)], {name: value - step})] == [THRESHOLDS[name].metric]


def test_rows_without_block_scales_and_rows_of_bytes() -> None:
    exact = Tally(elements=4, square_reference=Sum(1.0), square_candidate=Sum(1.0))
    assert judge([row(exact)], {"max_flushed": 0.0}) == []
    equal, other = ({"name": n, "scope": "tensor", "equal_bytes": n == "a"} for n in ("a", "b"))
    assert [item.where.tensor for item in judge([equal, other], DEFAULT_LIMITS)] == ["b"]


def test_tallies_merge_field_by_field() -> None:
    one = Tally(1, 1, 1, 1, Sum(1.0), Sum(2.0), Sum(3.0), 0.5, 1, 1, 1, (1,) * 256)
    two = Tally(2, 0, 3, None, Sum(4.0), Sum(5.0), Sum(6.0), 0.25, 0, 0, 0, ())
    assert one + two == Tally(3, 1, 4, None, Sum(5.0), Sum(7.0), Sum(9.0), 0.5, 1, 1, 1, (1,) * 256)
    assert total([one, one]) == one + one
    assert total([]) == Tally()
    assert sqrt(metrics(total([one, one]))["rel_rms"] ** 2) == pytest.approx(sqrt(3))
