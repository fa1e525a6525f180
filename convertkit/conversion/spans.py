"""Which bytes of a file are written: disjoint spans, each byte once."""

from __future__ import annotations

from bisect import bisect_right


class Spans:
    """Written spans of a file of ``size_bytes``, merged where they touch. Not locked: the sink holds its lock."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._starts: list[int] = []
        self._ends: list[int] = []

    @property
    def prefix(self) -> int:
        """The first byte that is not written yet; everything before it is."""
        return self._ends[0] if self._starts and self._starts[0] == 0 else 0

    @property
    def written_bytes(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def add(self, start: int, end: int) -> None:
        """Note that ``[start, end)`` is written. Raises ``ValueError`` outside the file or for a byte noted before."""
        if not 0 <= start <= end <= self.size_bytes:
            raise ValueError(f"bytes {start} to {end} do not lie in a file of {self.size_bytes}")
        if start == end:
            return
        at = bisect_right(self._starts, start)
        if (at and self._ends[at - 1] > start) or (at < len(self._starts) and self._starts[at] < end):
            raise ValueError(f"bytes {start} to {end} are written twice")
        left = at > 0 and self._ends[at - 1] == start
        right = at < len(self._starts) and self._starts[at] == end
        if left and right:
            self._ends[at - 1] = self._ends[at]
            del self._starts[at], self._ends[at]
        elif left:
            self._ends[at - 1] = end
        elif right:
            self._starts[at] = start
        else:
            self._starts.insert(at, start)
            self._ends.insert(at, end)

    def covers(self, start: int, end: int) -> bool:
        """Whether all of ``[start, end)`` is written."""
        at = bisect_right(self._starts, start)
        return start == end or (at > 0 and self._ends[at - 1] >= end)
