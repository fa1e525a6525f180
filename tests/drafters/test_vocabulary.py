"""d2t as offsets or absolute ids: told apart by range, order and mask, and refused where nothing tells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convertkit.conversion.vocabulary import judge_map

IDS = np.array([0, 1, 4, 8, 9, 15], np.int64)
OFFSETS = IDS - np.arange(6)


def mask_of(ids: Any, vocabulary: int = 16) -> np.ndarray[Any, np.dtype[np.bool_]]:
    mask = np.zeros(vocabulary, np.bool_)
    mask[ids] = True
    return mask


@pytest.mark.parametrize("masked", [True, False], ids=["with t2d", "without t2d"])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_both_forms_are_recognised(masked: bool, dtype: Any) -> None:
    mask = mask_of(IDS) if masked else None
    for form, stored in (("offsets", OFFSETS), ("absolute", IDS)):
        judged = judge_map(stored.astype(dtype), mask, 6, 16)
        assert (judged.form, judged.findings) == (form, ())
        assert judged.ids is not None
        assert judged.ids.tolist() == IDS.tolist()


def test_a_ramp_is_the_identity_and_not_doubled() -> None:
    """0, 1, 2, ... is the identity as absolute ids and every second token as offsets: only the mask can tell."""
    ramp = np.arange(6)
    judged = judge_map(ramp, None, 6, 16)
    assert judged.form is None
    assert "both" not in judged.findings[0].message
    assert "as offsets and as absolute ids" in judged.findings[0].message
    assert judge_map(ramp, mask_of(range(6)), 6, 16).form == "absolute"
    assert judge_map(ramp, mask_of(range(0, 12, 2)), 6, 16).form == "offsets"
    assert judge_map(np.zeros(6, np.int64), None, 6, 16).form == "offsets"


@pytest.mark.parametrize(
    ("stored", "mask", "vocabulary", "words"),
    [
        (OFFSETS + 12, None, 16, "outside of the vocabulary"),
        (np.array([0, 0, -2, 0, 0, 0]), None, 16, "that another one has"),
        (OFFSETS, mask_of([0, 1, 4, 8, 10, 15]), 16, "not marked in t2d"),
        (OFFSETS, mask_of([0, 1, 4]), 16, "t2d marks 3 tokens"),
        (OFFSETS[:5], None, 16, "5 entries"),
        (OFFSETS, mask_of(IDS, 20), 16, "t2d has 20 entries"),
        (OFFSETS.astype(np.float64), None, 16, "not a list of whole numbers"),
    ],
)
def test_maps_that_make_no_sense(stored: Any, mask: Any, vocabulary: int, words: str) -> None:
    judged = judge_map(stored, mask, 6, vocabulary)
    assert judged.form is None
    assert [item.code for item in judged.findings] == ["E_VOCABULARY_MAP"]
    assert words in judged.findings[0].message


def test_an_unusual_order_needs_the_mask() -> None:
    shuffled = IDS[[2, 0, 1, 5, 3, 4]]
    judged = judge_map(shuffled - np.arange(6), mask_of(IDS), 6, 16)
    assert judged.form == "offsets"
    assert [item.code for item in judged.findings] == ["W_VOCABULARY_MAP"]
    assert judge_map(shuffled - np.arange(6), None, 6, 16).form is None


@settings(max_examples=200, deadline=None)
@given(st.sets(st.integers(0, 199), min_size=1, max_size=60))
def test_a_mask_always_decides(tokens: set[int]) -> None:
    ids = np.array(sorted(tokens), np.int64)
    for form, stored in (("offsets", ids - np.arange(ids.size)), ("absolute", ids)):
        judged = judge_map(stored, mask_of(ids, 200), ids.size, 200)
        assert judged.ids is not None
        assert judged.ids.tolist() == ids.tolist()
        assert judged.form == form or (stored == ids - np.arange(ids.size)).all()
