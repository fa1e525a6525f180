"""The record of written bytes against a plain list of booleans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convertkit.conversion.spans import Spans

SIZE = 40


@given(st.lists(st.tuples(st.integers(-2, SIZE + 2), st.integers(-2, SIZE + 2)), max_size=40))
def test_spans_are_a_set_of_bytes(pairs: list[tuple[int, int]]) -> None:
    spans, written = Spans(SIZE), [False] * SIZE
    for start, end in pairs:
        if not 0 <= start <= end <= SIZE or any(written[start:end]):
            with pytest.raises(ValueError, match="bytes"):
                spans.add(start, end)
            continue
        spans.add(start, end)
        written[start:end] = [True] * (end - start)
        assert spans.prefix == (written.index(False) if False in written else SIZE)
        assert spans.written_bytes == sum(written)
        for first, last in pairs:
            if 0 <= first <= last <= SIZE:
                assert spans.covers(first, last) == all(written[first:last])


def test_an_empty_file_is_complete() -> None:
    assert Spans(0).prefix == 0
    assert Spans(0).covers(0, 0)
