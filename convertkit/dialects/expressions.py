"""Expressions and globs read into positions and followers (Glushkov's construction), for ``patterns.Matcher``.

Only what can be matched without backtracking is read: repetition of a single character or class, alternatives,
groups, an end anchor. Everything else is a ``PatternFault``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

MAX_REPEATS = 8
MAX_NESTING = 32
MAX_POSITIONS = 20_000
MAX_LINKS = 100_000

Symbol = str
"""One character of a name, or the empty string for its end."""

Accepts = Callable[[Symbol], bool]


class PatternFault(ValueError):
    """A pattern that is not used. ``unsafe``: it could hang a reader; otherwise it is only not understood."""

    def __init__(self, message: str, unsafe: bool) -> None:
        super().__init__(message)
        self.unsafe = unsafe


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a pattern: may it be empty, where it can start and end (bit sets of positions), is it one
    repeatable position."""

    empty: bool
    first: int
    last: int
    single: bool = False


_EMPTY = Part(True, 0, 0)


@dataclass(slots=True)
class Net:
    """Positions of all patterns and which positions may follow each."""

    accepts: list[Accepts] = field(default_factory=list)
    follow: list[int] = field(default_factory=list)
    links: int = 0

    def add(self, accepts: Accepts) -> Part:
        if len(self.accepts) >= MAX_POSITIONS:
            raise PatternFault("the patterns are too long together", unsafe=True)
        self.accepts.append(accepts)
        self.follow.append(0)
        bit = 1 << (len(self.accepts) - 1)
        return Part(False, bit, bit, single=True)

    def link(self, last: int, first: int) -> None:
        """Let ``first`` follow each position of ``last``. Raises PatternFault for a chain of optional pieces, whose
        links grow with its square."""
        self.links += last.bit_count()
        if self.links > MAX_LINKS:
            raise PatternFault("the patterns have too many optional pieces", unsafe=True)
        while last:
            low = last & -last
            self.follow[low.bit_length() - 1] |= first
            last ^= low

    def join(self, left: Part, right: Part) -> Part:
        self.link(left.last, right.first)
        return Part(
            left.empty and right.empty,
            left.first | (right.first if left.empty else 0),
            right.last | (left.last if right.empty else 0),
        )


_CLASSES: dict[str, Accepts] = {
    "d": lambda c: c.isdecimal(),
    "D": lambda c: c != "" and not c.isdecimal(),
    "w": lambda c: c.isalnum() or c == "_",
    "W": lambda c: c != "" and not (c.isalnum() or c == "_"),
    "s": lambda c: c.isspace(),
    "S": lambda c: c != "" and not c.isspace(),
}


def _literal(char: str) -> Accepts:
    return lambda c: c == char


def _any(char: Symbol) -> bool:
    return char not in ("", "\n")


def _end(char: Symbol) -> bool:
    return char == ""


class Reader:
    """Recursive descent over one expression."""

    def __init__(self, text: str, net: Net) -> None:
        self.text, self.net, self.at, self.repeats, self.depth = text, net, 0, 0, 0

    def peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def take(self) -> str:
        if self.at >= len(self.text):
            raise PatternFault("the pattern ends too early", unsafe=True)
        self.at += 1
        return self.text[self.at - 1]

    def whole(self) -> Part:
        part = self.branches()
        if self.at < len(self.text):
            raise PatternFault("there is a ')' too many", unsafe=True)
        return part

    def branches(self) -> Part:
        part = self.sequence()
        while self.peek() == "|":
            self.take()
            other = self.sequence()
            part = Part(part.empty or other.empty, part.first | other.first, part.last | other.last)
        return part

    def sequence(self) -> Part:
        part = _EMPTY
        while self.peek() not in ("", "|", ")"):
            if self.peek() == "^":
                if self.at != 0 and self.text[self.at - 1] not in "(|:":
                    raise PatternFault("'^' inside a pattern", unsafe=False)
                self.take()
                continue
            part = self.net.join(part, self.repeated())
        return part

    def repeated(self) -> Part:
        part = self.atom()
        sign = self.peek()
        if sign not in ("*", "+", "?", "{"):
            return part
        self.take()
        low, high = self.bounds() if sign == "{" else {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        if self.peek() == "?":
            self.take()
        if self.peek() in ("*", "+", "?", "{"):
            raise PatternFault("a repeated repetition", unsafe=True)
        if (low, high) == (0, 1):
            return Part(True, part.first, part.last)
        if not part.single:
            raise PatternFault("a repeated group", unsafe=True)
        return self.expand(part, low, high)

    def expand(self, part: Part, low: int, high: int | None) -> Part:
        """``low`` to ``high`` copies of a single position (None: no upper bound)."""
        accepts = self.net.accepts[part.first.bit_length() - 1]
        self.repeats += high is None
        if self.repeats > MAX_REPEATS or low > 64 or (high or 0) > 64 or (high is not None and high < low):
            raise PatternFault("too many repetitions", unsafe=True)
        if high == 0:
            return _EMPTY
        copies = [part, *(self.net.add(accepts) for _ in range(max(low, high or 0, 1) - 1))]
        if high is None:
            self.net.link(copies[-1].last, copies[-1].first)
        whole = _EMPTY
        for count, copy in enumerate(copies):
            whole = self.net.join(whole, Part(count >= low, copy.first, copy.last))
        return whole

    def bounds(self) -> tuple[int, int | None]:
        body = ""
        while self.peek() != "}":
            body += self.take()
        self.take()
        low, comma, high = body.partition(",")
        if not low.isdecimal() or not (high.isdecimal() or high == ""):
            raise PatternFault("a malformed repetition", unsafe=True)
        if len(low) > 4 or len(high) > 4:
            raise PatternFault("too many repetitions", unsafe=True)
        return int(low), (int(high) if high else None) if comma else int(low)

    def atom(self) -> Part:
        char = self.take()
        if char == "(":
            return self.group()
        if char == "[":
            return self.net.add(self.klass())
        if char == ".":
            return self.net.add(_any)
        if char == "$":
            return self.net.add(_end)
        if char in "*+?{":
            raise PatternFault("nothing to repeat", unsafe=True)
        if char == "\\":
            return self.net.add(self.escape())
        return self.net.add(_literal(char))

    def group(self) -> Part:
        if self.peek() == "?":
            self.take()
            if self.take() != ":":
                raise PatternFault("a look-around, flag or named group", unsafe=False)
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise PatternFault("groups nested too deep", unsafe=True)
        part = self.branches()
        self.depth -= 1
        if self.take() != ")":
            raise PatternFault("a '(' is never closed", unsafe=True)
        return Part(part.empty, part.first, part.last)

    def escape(self) -> Accepts:
        char = self.take()
        if char in _CLASSES:
            return _CLASSES[char]
        if char.isalnum():
            raise PatternFault(f"the escape \\{char}", unsafe=False)
        return _literal(char)

    def klass(self) -> Accepts:
        negated = self.peek() == "^"
        if negated:
            self.take()
        items: list[Accepts] = []
        while self.peek() != "]" or not items:
            low = self.take()
            if low == "\\":
                items.append(self.escape())
            elif self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.take()
                items.append(_between(low, self.take()))
            else:
                items.append(_literal(low))
        self.take()
        return lambda c: c != "" and any(item(c) for item in items) != negated


def _between(low: str, high: str) -> Accepts:
    return lambda c: len(c) == 1 and low <= c <= high


def read_regex(text: str, net: Net) -> Part:
    """A regular expression, to be matched from the start of a name."""
    return Reader(text, net).whole()


def read_glob(text: str, net: Net) -> Part:
    """A shell glob over a whole name: ``*``, ``?`` and ``[...]``."""
    reader = Reader(text, net)
    part = _EMPTY
    while reader.peek():
        char = reader.take()
        if char == "*":
            star = net.add(lambda c: c != "")
            net.link(star.last, star.first)
            part = net.join(part, Part(True, star.first, star.last))
            reader.repeats += 1
        elif char == "[":
            if reader.peek() == "!":
                reader.text = reader.text[: reader.at] + "^" + reader.text[reader.at + 1 :]
            part = net.join(part, net.add(reader.klass()))
        else:
            part = net.join(part, net.add((lambda c: c != "") if char == "?" else _literal(char)))
    if reader.repeats > MAX_REPEATS:
        raise PatternFault("too many '*'", unsafe=True)
    return net.join(part, net.add(_end))
