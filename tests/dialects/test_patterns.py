"""The matcher against Python's own ``re`` and ``fnmatch``, and the patterns it must refuse."""

from __future__ import annotations

import fnmatch
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convertkit.dialects.patterns import Matcher, pattern_fault

ATOM = st.sampled_from(["a", "b", r"\.", ".", "[ab]", "[^a]", "[a-b.]", r"\d", r"\w", "(a|b)", "(?:ab|b)", "(a|)"])
SIGN = st.sampled_from(["", "", "", "*", "+", "?", "*?", "+?", "{2}", "{1,2}", "{0,1}", "{2,}", "{0}", "{0,2}"])


@st.composite
def expressions(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(["", "", "^"]))
    for _ in range(draw(st.integers(0, 5))):
        atom = draw(ATOM)
        sign = draw(SIGN)
        text += atom + (sign if not atom.startswith("(") or sign in ("", "?") else "")
    return text + draw(st.sampled_from(["", "", "$"]))


NAMES = st.text("ab.1_", max_size=8)


@settings(max_examples=400)
@given(st.lists(expressions(), min_size=1, max_size=3), st.lists(NAMES, max_size=6))
def test_same_matches_as_re(patterns: list[str], names: list[str]) -> None:
    matcher = Matcher([("regex", pattern) for pattern in patterns])
    for name in names:
        assert matcher.hits(name) == {n for n, pattern in enumerate(patterns) if re.match(pattern, name)}


@settings(max_examples=200)
@given(st.text("ab.*?", max_size=8).filter(lambda text: text.count("*") <= 8), st.lists(NAMES, max_size=6))
def test_same_matches_as_fnmatch(glob: str, names: list[str]) -> None:
    matcher = Matcher([("glob", glob)])
    for name in names:
        assert bool(matcher.hits(name)) == fnmatch.fnmatchcase(name, glob)


@pytest.mark.parametrize("glob", ["[!a]b", "[ab]*", "*self_attn*", "model.layers.0.*", "lm_head*"])
def test_globs_of_real_configs(glob: str) -> None:
    names = ["cb", "ab", "abc", "model.layers.0.self_attn.q_proj", "model.layers.10.mlp", "lm_head", "lm_head.x"]
    matcher = Matcher([("glob", glob)])
    assert [bool(matcher.hits(name)) for name in names] == [fnmatch.fnmatchcase(name, glob) for name in names]


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a|aa)+$",
        "(.*)*",
        "a**",
        "(a|b)*",
        "(ab){2,}",
        "[a",
        "(a",
        "a)",
        "*a",
        "a{2}{3}",
        "a{x}",
        "a\\",
        "x{1000}",
        ".*" * 9,
        "a{3,2}",
    ],
)
def test_dangerous_or_malformed_patterns_are_refused(pattern: str) -> None:
    fault = pattern_fault("regex", pattern)
    assert fault is not None
    assert fault.unsafe


@pytest.mark.parametrize("pattern", ["(?!a)b", "(?i)a", r"(a)\1", "a^b", r"a\bb", "(?P<x>a)"])
def test_harmless_but_unread_patterns_are_told_apart(pattern: str) -> None:
    fault = pattern_fault("regex", pattern)
    assert fault is not None
    assert not fault.unsafe


def test_hostile_names_take_linear_time() -> None:
    matcher = Matcher([("regex", ".*a.*a.*a.*a.*a.*a.*ab"), ("glob", "*a*a*a*a*a*a*b")])
    began = time.perf_counter()
    assert not matcher.hits("a" * 1000)
    assert time.perf_counter() - began < 2  # a backtracking matcher needs about 1000**7 steps


def test_too_many_patterns_together_are_refused() -> None:
    with pytest.raises(ValueError, match="too long together"):
        Matcher([("regex", "a" * 500)] * 50)


def test_a_chain_of_optional_pieces_is_refused() -> None:
    fault = pattern_fault("regex", "a?" * 5000 + "b")
    assert fault is not None
    assert fault.unsafe
    assert pattern_fault("regex", "a?" * 50 + "b") is None


@pytest.mark.parametrize("text", ["(" * 5000 + ")" * 5000, "a{" + "9" * 5000 + "}", "a{1," + "9" * 5000 + "}"])
def test_patterns_that_would_exhaust_the_reader_are_unsafe(text: str) -> None:
    fault = pattern_fault("regex", text)
    assert fault is not None
    assert fault.unsafe
