"""Expressions and globs of a quantization config reworded, so that they mean renamed modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from convertkit.dialects.patterns import Matcher, Syntax
from convertkit.layouts.renames import RenameRule
from convertkit.layouts.rules import PLACEHOLDERS, families


def meant(syntax: Syntax, text: str, modules: Sequence[str]) -> set[str]:
    """Stored modules that a pattern means. Globs also mean a module whose parent they match, as ModelOpt reads them."""
    is_meant = _meaning(syntax, text)
    return {module for module in modules if is_meant(module)}


def means_any(syntax: Syntax, text: str, modules: Iterable[str]) -> bool:
    """Whether a pattern means one of these modules."""
    is_meant = _meaning(syntax, text)
    return any(is_meant(module) for module in modules)


def _meaning(syntax: Syntax, text: str) -> Callable[[str], bool]:
    """Whether a pattern means a module."""
    matcher = Matcher([(syntax, text)])
    if syntax == "regex":
        return lambda module: bool(matcher.hits(module))
    known: dict[str, bool] = {}

    def hit(name: str) -> bool:
        if name not in known:
            parent = name.rpartition(".")[0]
            known[name] = bool(matcher.hits(name)) or (bool(parent) and hit(parent))
        return known[name]

    return hit


def literal_swaps(rule: RenameRule) -> Iterator[tuple[str, str]]:
    """Literal dotted runs that the rule replaces, the longest context first: with and without what both sides share."""
    old, new = _literals(rule.source), _literals(rule.target)
    if len(old) != len(new):
        return
    pairs = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
    if len(pairs) != 1:
        return
    before, after = pairs[0]
    yield ".".join(before), ".".join(after)
    while before and after and before[0] == after[0]:
        before, after = before[1:], after[1:]
        if before:
            yield ".".join(before), ".".join(after)


def _literals(template: str) -> list[list[str]]:
    runs: list[list[str]] = [[]]
    for segment in template.split("."):
        if segment in PLACEHOLDERS:
            runs.append([])
        else:
            runs[-1].append(segment)
    return runs


def replaced(text: str, old: str, new: str) -> str:
    """``text`` with the dotted run replaced, whether its dots are escaped, bare, or both are written."""
    for dot in (r"\.", "."):
        literal = old.replace(".", dot)
        if literal in text:
            fresh = new.replace(".", dot)
            if not new:  # nothing is left of the run: its dot goes too
                return text.replace(literal + dot, "").replace(literal, "")
            return text.replace(literal, fresh)
    return text


def spelled_out(wanted: set[str], modules: set[str], syntax: Syntax) -> list[str]:
    """Entries that mean exactly these modules: one per family where the family is whole, else the names."""
    entries: list[str] = []
    everything = families(modules)
    for template, family in families(wanted).items():
        whole = len(family.names) > 1 and len(everything[template].names) == len(family.names)
        if whole and syntax == "regex":
            parts = [r"\d+" if part in PLACEHOLDERS else re.escape(part) for part in template.split(".")]
            text = r"\.".join(parts) + "$"
            if meant("regex", text, tuple(modules)) == set(family.names):
                entries.append("re:" + text)
                continue
        entries.extend(family.names)
    return entries
