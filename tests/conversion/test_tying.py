"""Folding a ratio into block scales: to the nearest E4M3 number, ties to even."""

from __future__ import annotations

from fractions import Fraction

import pytest

from convertkit.conversion.tying import folding

ONE, NEXT, AFTER, LARGEST = 0x38, 0x39, 0x3A, 0x7E


@pytest.mark.parametrize(
    ("ratio", "byte"),
    [
        (Fraction(17, 16), ONE),  # midway between 1 and 1.125
        (Fraction(19, 16), AFTER),  # midway between 1.125 and 1.25
        (Fraction(18, 16), NEXT),
        (Fraction(1701, 1600), NEXT),
        (Fraction(1899, 1600), NEXT),
        (Fraction(1000), LARGEST),
        (Fraction(1, 4096), 0),
    ],
)
def test_one_times_a_ratio(ratio: Fraction, byte: int) -> None:
    folded = folding(ratio)
    assert (folded.table[ONE], folded.table[ONE | 0x80]) == (byte, byte | 0x80)
    assert (ONE in folded.exact) == (ratio == Fraction(18, 16))
