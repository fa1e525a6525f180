"""Templates over dotted names, and names grouped into families.

A template is a dotted name in which whole segments may be placeholders: ``{i}`` a layer number, ``{e}`` an
expert number, ``{x}`` any one segment, ``{rest}`` any run of segments, also none. Nothing else is special.
A number is written as engines write it: decimal digits without leading zeros, and 18 at most.

Checkpoints of 122,880 tensors are normal, so names are grouped once into families (``families``) and rules
are applied to one name of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from sys import intern

from convertkit.errors import ConvertError, Finding, finding, refusal

PLACEHOLDERS: Mapping[str, str] = {
    "{i}": r"(0|[1-9][0-9]{0,17})\.",
    "{e}": r"(0|[1-9][0-9]{0,17})\.",
    "{x}": r"([^.]+)\.",
    "{rest}": r"((?:[^.]+\.)*?)",
}
"""What each placeholder accepts, as a piece of a pattern over the name followed by one dot."""

MAX_RUNS = 2
"""Runs per template: two keep the matching time at most quadratic in a name of at most 1,024 bytes."""

_SPECIAL = re.compile(r"[*?\[\]()|^$\\+{}\s]")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled template. ``match`` and ``format`` are inverse to each other."""

    template: str
    segments: tuple[str, ...]
    keys: tuple[str, ...]
    compiled: re.Pattern[str]

    def match(self, name: str) -> dict[str, str] | None:
        """Captures by placeholder (``i``, ``e``, ``x``, ``rest``; a second ``{x}`` is ``x2``), or None."""
        hit = self.compiled.fullmatch(name + ".")
        if hit is None:
            return None
        return {key: text.removesuffix(".") for key, text in zip(self.keys, hit.groups(), strict=True)}

    def format(self, captures: Mapping[str, str]) -> str:
        """The name that has these captures. Raises KeyError if one is missing."""
        counts: dict[str, int] = {}
        parts = [captures[_key(segment, counts)] if segment in PLACEHOLDERS else segment for segment in self.segments]
        return ".".join(part for part in parts if part)


def _key(segment: str, counts: dict[str, int]) -> str:
    """Capture key of a placeholder: repeated ``{i}`` and ``{e}`` are one value, others are numbered."""
    name = segment[1:-1]
    if name in ("i", "e"):
        return name
    counts[name] = counts.get(name, 0) + 1
    return name if counts[name] == 1 else f"{name}{counts[name]}"


def template_fault(template: str) -> str | None:
    """Why a template is malformed, or None."""
    segments = template.split(".")
    if not template or "" in segments:
        return "has an empty segment"
    for segment in segments:
        if segment not in PLACEHOLDERS and _SPECIAL.search(segment):
            return f"has '{segment}'; only whole segments {{i}}, {{e}}, {{x}} and {{rest}} are special"
    if segments.count("{rest}") > MAX_RUNS:
        return f"has more than {MAX_RUNS} {{rest}}"
    if any(a == b == "{rest}" for a, b in pairwise(segments)):
        return "has {rest} twice in a row"
    return None


EXAMPLE = "for example layers.{i}.mlp.{x}; {rest} is any run of parts, also none"


@lru_cache(maxsize=4096)
def compile_template(template: str) -> Pattern:
    """Compile a template. Raises ConvertError E_PATTERN if it is malformed."""
    fault = template_fault(template)
    if fault:
        raise refusal("E_PATTERN", f"the pattern '{template}' {fault}", fix=EXAMPLE)
    segments = tuple(template.split("."))
    counts: dict[str, int] = {}
    keys: list[str] = []
    text = ""
    for segment in segments:
        if segment not in PLACEHOLDERS:
            text += re.escape(segment) + r"\."
            continue
        key = _key(segment, counts)
        if key in keys:
            text += rf"(?:\{keys.index(key) + 1})\."
        else:
            keys.append(key)
            text += PLACEHOLDERS[segment]
    return Pattern(template, segments, tuple(keys), re.compile(text))


@dataclass(frozen=True, slots=True)
class Family:
    """Names that differ only in their numbers: the template, the numbers of each name, the names.

    ``names`` and ``indices`` run in natural order (numbers by value).
    """

    template: str
    indices: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]


_NUMBER_KEYS = ("{i}", "{e}")


_DEEP = 32
"""Dots in a name up to which its parents are remembered; deeper names do not occur but in hostile files."""


MAX_DIGITS = 18
"""Of a number in a name. Longer runs of digits count nothing, and Python refuses to read very long ones."""


def _is_number(part: str) -> bool:
    return part.isdecimal() and part.isascii() and len(part) <= MAX_DIGITS and (part == "0" or part[0] != "0")


@lru_cache(maxsize=1 << 18)
def template_of(name: str) -> tuple[str, tuple[int, ...]]:
    """A name as template and numbers: the first number is ``{i}``, the second ``{e}``, further ones ``{x}``."""
    parent, dot, leaf = name.rpartition(".")
    template: str = ""
    numbers: tuple[int, ...] = ()
    if dot and name.count(".") > _DEEP:
        for place, part in enumerate(parent.split(".")):
            template, numbers = _longer(template, numbers, part, "." if place else "")
    elif dot:
        template, numbers = template_of(parent)
    return _longer(template, numbers, leaf, dot)


def _longer(template: str, numbers: tuple[int, ...], part: str, dot: str) -> tuple[str, tuple[int, ...]]:
    if not _is_number(part):
        return intern(template + dot + part), numbers
    key = _NUMBER_KEYS[len(numbers)] if len(numbers) < 2 else "{x}"
    return intern(template + dot + key), (*numbers, int(part))


def families(names: Iterable[str]) -> dict[str, Family]:
    """Group names into families by template, templates in sorted order. One pass, then one sort per family."""
    groups: dict[str, list[tuple[tuple[int, ...], str]]] = {}
    for name in names:
        template, numbers = template_of(name)
        groups.setdefault(template, []).append((numbers, name))
    result: dict[str, Family] = {}
    for template in sorted(groups):
        members = sorted(groups[template])
        result[template] = Family(template, tuple(m[0] for m in members), tuple(m[1] for m in members))
    return result


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that orders numeric segments by value: ``layers.2`` comes before ``layers.10``."""
    return tuple(
        (0, int(part), part) if part.isdecimal() and part.isascii() and len(part) <= MAX_DIGITS else (1, 0, part)
        for part in name.split(".")
    )


def module_of(name: str) -> str:
    """The module that a tensor belongs to: ``a.b`` of ``a.b.weight``; a name of one part is its own."""
    return name.rpartition(".")[0] or name


def without_model(name: str) -> str:
    """A module name or template without a leading ``model.``, which users may leave out."""
    return name.removeprefix("model.")


@dataclass(frozen=True, slots=True)
class Selection:
    """Modules chosen by ``--include`` and ``--exclude``, in the order given, and the matches of each pattern."""

    modules: tuple[str, ...]
    included: Mapping[str, int]
    excluded: Mapping[str, int]


def select(
    candidates: Sequence[str], default: Sequence[str], include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> Selection:
    """Apply ``--include`` (replaces the default) and ``--exclude`` (subtracts) to module names.

    An ``--include`` pattern chooses among ``candidates``, an ``--exclude`` pattern counts its matches among
    them. Raises ConvertError with E_PATTERN or E_PATTERN_EMPTY for every bad pattern at once.
    """
    faults = [item for pattern in (*include, *exclude) if (item := _pattern_fault(pattern)) is not None]
    if faults:
        raise ConvertError(faults)
    hits = {pattern: _matching(pattern, candidates) for pattern in (*include, *exclude)}
    empty = [
        finding("E_PATTERN_EMPTY", "error", f"the pattern '{pattern}' matches no linear layer", fix=near(candidates))
        for pattern, found in hits.items()
        if not found
    ]
    if empty:
        raise ConvertError(empty)
    chosen = set().union(*(hits[pattern] for pattern in include)) if include else set(default)
    for pattern in exclude:
        chosen -= hits[pattern]
    order = candidates if include else default
    return Selection(
        tuple(module for module in order if module in chosen),
        {pattern: len(hits[pattern]) for pattern in include},
        {pattern: len(hits[pattern]) for pattern in exclude},
    )


def _pattern_fault(pattern: str) -> Finding | None:
    fault = template_fault(pattern)
    if fault is None:
        return None
    return finding("E_PATTERN", "error", f"the pattern '{pattern}' {fault}", fix=EXAMPLE)


def _matching(pattern: str, modules: Iterable[str]) -> set[str]:
    compiled = compile_template(without_model(pattern))
    return {module for module in modules if compiled.match(without_model(module)) is not None}


def near(candidates: Sequence[str], limit: int = 8) -> str:
    """Names to choose from, as templates, for the message of a pattern that matches nothing."""
    templates = list(families(candidates))
    more = f" and {len(templates) - limit} more" if len(templates) > limit else ""
    return f"layers here: {', '.join(templates[:limit])}{more}" if templates else "there is no layer to choose from"
