"""Patterns of quantization configs, matched in time linear in the name.

compressed-tensors configs hold regular expressions (``re:...``, matched from the start of a name, as ``re.match``
does in compressed_tensors 0.20 ``utils/match.py:443``), ModelOpt configs shell globs (whole names). Configs come
from strangers and engines hand the expressions to a backtracking matcher, so those that could hang one are
refused: only a single character or class may be repeated. What is left is simulated as a set of positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from convertkit.dialects.expressions import Net, PatternFault, Symbol, read_glob, read_regex

__all__ = ["Matcher", "PatternFault", "Syntax", "pattern_fault"]

_MEMO = 200_000
"""Transitions kept before the table is emptied."""

NO_HITS: frozenset[int] = frozenset()

Syntax = Literal["regex", "glob"]


class Matcher:
    """Several patterns at once. ``hits`` gives the numbers of those that match a name."""

    def __init__(self, patterns: Sequence[tuple[Syntax, str]]) -> None:
        """Raises PatternFault for the first pattern that is not used; check each alone to name it."""
        self._net = Net()
        self._start = 0
        self._always = 0
        self._ends = 0
        self._accepted: dict[int, int] = {}
        for number, (syntax, text) in enumerate(patterns):
            part = read_glob(text, self._net) if syntax == "glob" else read_regex(text, self._net)
            self._start |= part.first
            self._always |= int(part.empty) << number
            self._ends |= part.last
            last = part.last
            while last:
                low = last & -last
                last ^= low
                self._accepted[low] = 1 << number
        self._memo: dict[tuple[int, Symbol], tuple[int, int]] = {}
        self._taking: dict[Symbol, int] = {}
        self._reached: dict[str, tuple[int, int]] = {}
        self._walked: dict[tuple[int, str], tuple[int, int]] = {}

    def _step(self, allowed: int, symbol: Symbol) -> tuple[int, int]:
        """From the positions allowed before a symbol: those allowed after it, and the patterns accepted there."""
        if symbol not in self._taking:
            bits = (int(accepts(symbol)) << place for place, accepts in enumerate(self._net.accepts))
            self._taking[symbol] = sum(bits)
        taken = rest = allowed & self._taking[symbol]
        after = accepted = 0
        while rest:
            low = rest & -rest
            rest ^= low
            after |= self._net.follow[low.bit_length() - 1]
        ends = taken & self._ends
        while ends:
            low = ends & -ends
            ends ^= low
            accepted |= self._accepted[low]
        if len(self._memo) > _MEMO:
            self._memo.clear()
        self._memo[allowed, symbol] = (after, accepted)
        return after, accepted

    def _reach(self, text: str) -> tuple[int, int]:
        """Positions allowed after a dotted text and patterns accepted in it. Names share their parents, so what was
        reached at each dot is kept."""
        known = self._reached.get(text)
        if known is not None:
            return known
        parent, dot, leaf = text.rpartition(".")
        allowed, found = self._reach(parent) if dot else (self._start, self._always)
        piece = dot + leaf
        after, accepted = self._walked.get((allowed, piece)) or self._walk(allowed, piece)
        self._reached[text] = (after, found | accepted)
        return after, found | accepted

    def _walk(self, allowed: int, piece: str) -> tuple[int, int]:
        """Positions after a part of a name and patterns accepted in it; most modules share their last names."""
        place, found = allowed, 0
        for symbol in piece:
            if not place:
                break
            step = self._memo.get((place, symbol)) or self._step(place, symbol)
            found |= step[1]
            place = step[0]
        if len(self._walked) > _MEMO:
            self._walked.clear()
        self._walked[allowed, piece] = (place, found)
        return place, found

    def hits(self, name: str) -> frozenset[int]:
        """Numbers of the patterns that match, expressions from the start of the name and globs the whole name."""
        allowed, found = self._reach(name)
        if allowed:
            found |= (self._memo.get((allowed, "")) or self._step(allowed, ""))[1]
        if not found:
            return NO_HITS
        return frozenset(number for number in range(found.bit_length()) if found >> number & 1)


def pattern_fault(syntax: Syntax, text: str) -> PatternFault | None:
    """Why a pattern is not used, or None."""
    try:
        Matcher([(syntax, text)])
    except PatternFault as fault:
        return fault
    return None
