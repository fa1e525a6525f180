"""Working out a renaming from a reference: which family of names here is which family there.

Families (names that differ only in numbers) are paired by the number of their members, by shape and dtype where both
are known, and by the segments that their names share. A pairing must be the best choice from either side and the only
one, otherwise nothing is guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from convertkit.errors import MAX_LISTED, Finding, finding, shown
from convertkit.layouts.renames import RenameRule, first_match
from convertkit.layouts.rules import PLACEHOLDERS, Family, compile_template, families

Form = tuple[str | None, tuple[int, ...]]
"""Dtype (None: any) and shape of a tensor."""


MAX_COMPARED = 1 << 17
"""Pairs of kinds of names that are compared; real checkpoints have some hundred kinds, most with a name in common."""

LEAST_ALIKE = (0.3, 0.55)
"""Likeness below which names are not paired, where shapes are known and where they are not."""


@dataclass(frozen=True)
class Likeness:
    """What was worked out. ``rules`` carry it out; ``left`` are templates here without a counterpart, ``missing``
    those of the reference that nothing here becomes; ``findings`` of severity error say why nothing is guessed."""

    rules: tuple[RenameRule, ...]
    left: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def likeness(here: Mapping[str, Form | None], there: Mapping[str, Form | None]) -> Likeness:
    """Rules that turn names ``here`` into names of the reference ``there``; the forms are None where unknown.

    Names are those of dense tensors: a packed linear counts as one ``weight`` of its logical shape and any dtype.
    """
    mine, yours = families(here), families(there)
    ours = {t: family for t, family in mine.items() if not _same(family, yours.get(t), here, there)}
    theirs = {t: family for t, family in yours.items() if t not in mine or t in ours}
    if _pairs(ours, theirs) > MAX_COMPARED:
        return Likeness((), tuple(sorted(ours)), tuple(sorted(theirs)), (_too_many(ours, theirs),))
    scores = _scores(ours, theirs, here, there)
    pairs, faults = _best(scores)
    missing = tuple(sorted(theirs.keys() - set(pairs.values())))
    left = tuple(sorted(ours.keys() - pairs.keys()))
    if faults:
        return Likeness((), left, missing, tuple(faults))
    bound = {template: family for template, family in mine.items() if template not in left}
    rules = tuple(_rules(pairs, bound, yours))
    wrong = _disagreement(rules, pairs, bound, yours)
    return Likeness((), left, missing, (wrong,)) if wrong else Likeness(rules, left, missing)


def _pairs(ours: Mapping[str, Family], theirs: Mapping[str, Family]) -> int:
    """How many pairs ``_scores`` compares."""
    sizes = Counter(len(family.names) for family in theirs.values())
    return sum(sizes[len(family.names)] for family in ours.values())


def _too_many(ours: Mapping[str, Family], theirs: Mapping[str, Family]) -> Finding:
    message = f"{len(ours):,} kinds of names here and {len(theirs):,} in the reference are too many to compare"
    return finding("E_LIKE_NONE", "error", message, fix="say how with --rename FROM=TO")


def _disagreement(
    rules: tuple[RenameRule, ...], pairs: Mapping[str, str], mine: Mapping[str, Family], yours: Mapping[str, Family]
) -> Finding | None:
    """The first name that the rules together do not rename as the pairs say."""
    patterns = [(compile_template(rule.source), compile_template(rule.target)) for rule in rules]
    for template, family in mine.items():
        goal = yours[pairs[template]].names if template in pairs else family.names
        for old, new in zip(family.names, goal, strict=True):
            if first_match(patterns, old)[1] != new:
                message = f"no template renames '{shown(old)}' to '{shown(new)}' and leaves the others alone"
                return finding("E_LIKE_NONE", "error", message, tensor=old, fix="say how with --rename FROM=TO")
    return None


def _same(
    mine: Family, yours: Family | None, here: Mapping[str, Form | None], there: Mapping[str, Form | None]
) -> bool:
    """Whether a family has its name in the reference already."""
    return yours is not None and mine.indices == yours.indices and _forms_agree(mine, yours, here, there)


def _forms_agree(
    mine: Family, yours: Family, here: Mapping[str, Form | None], there: Mapping[str, Form | None]
) -> bool:
    for old, new in zip(mine.names, yours.names, strict=True):
        a, b = here[old], there[new]
        if a is None or b is None:
            continue
        if a[1] != b[1] or (a[0] is not None and b[0] is not None and a[0] != b[0]):
            return False
    return True


def _scores(
    ours: Mapping[str, Family],
    theirs: Mapping[str, Family],
    here: Mapping[str, Form | None],
    there: Mapping[str, Form | None],
) -> dict[str, dict[str, float]]:
    """For every family here, the families there that could be it, with the likeness of their names (0 to 1)."""
    by_size: dict[int, list[Family]] = {}
    for family in theirs.values():
        by_size.setdefault(len(family.names), []).append(family)
    scores: dict[str, dict[str, float]] = {}
    for template, family in ours.items():
        found: dict[str, float] = {}
        for other in by_size.get(len(family.names), ()):
            alike = family.indices == other.indices or len(family.names) == 1
            if alike and _forms_agree(family, other, here, there):
                score = _alike(family.names[0], other.names[0])
                known = here[family.names[0]] is not None and there[other.names[0]] is not None
                if score >= LEAST_ALIKE[0 if known else 1]:
                    found[other.template] = score
        scores[template] = found
    return scores


def _alike(one: str, two: str) -> float:
    """Share of segments that two names have in common; the last one counts double, for it says what a tensor is."""
    a, b = one.split("."), two.split(".")
    left, right = Counter(a), Counter(b)
    shared = sum((left & right).values()) + (a[-1] == b[-1]) + _leaf_alike(a, b)
    return 2 * shared / (len(a) + len(b) + 4)


def _leaf_alike(a: list[str], b: list[str]) -> float:
    """Likeness of the last two names as text: ``embedding.weight`` and ``embeddings.weight`` are nearly the same."""
    one, two = ".".join(a[-2:]), ".".join(b[-2:])
    first, second = (Counter(map("".join, pairwise(text))) for text in (one, two))
    total = sum(first.values()) + sum(second.values())
    return 2 * sum((first & second).values()) / total if total else 0.0


def _best(scores: Mapping[str, Mapping[str, float]]) -> tuple[dict[str, str], list[Finding]]:
    """Pairs that are the one best choice from both sides, taken again and again until none is left."""
    pairs: dict[str, str] = {}
    open_ = {template: dict(found) for template, found in scores.items() if found}
    while open_:
        choice = {template: _top(found) for template, found in open_.items()}
        wanted: dict[str, dict[str, float]] = {}
        for template, found in open_.items():
            for other, score in found.items():
                wanted.setdefault(other, {})[template] = score
        settled = {
            template: other[0]
            for template, other in choice.items()
            if len(other) == 1 and _top(wanted[other[0]]) == [template]
        }
        if not settled:
            return pairs, [_ambiguous(template, found) for template, found in sorted(open_.items())]
        pairs.update(settled)
        taken = set(settled.values())
        open_ = {
            template: rest
            for template, found in open_.items()
            if template not in settled and (rest := {other: s for other, s in found.items() if other not in taken})
        }
    return pairs, []


def _top(found: Mapping[str, float]) -> list[str]:
    best = max(found.values())
    return sorted(other for other, score in found.items() if score == best)


def _ambiguous(template: str, found: Mapping[str, float]) -> Finding:
    names = sorted(found, key=lambda other: (-found[other], other))
    return finding(
        "E_LIKE_AMBIGUOUS",
        "error",
        f"'{shown(template)}' could be {' or '.join(f'{shown(name)}' for name in names[:4])} of the reference",
        tensor=template,
        fix="say which with --rename FROM=TO",
        data={"candidates": names[:MAX_LISTED]},
    )


def _rules(pairs: Mapping[str, str], ours: Mapping[str, Family], theirs: Mapping[str, Family]) -> Iterator[RenameRule]:
    """Few rules that rename just so: those that hold for the most families first.

    ``ours`` are all families here but those without a counterpart, which may follow any rule. A rule holds if every
    family that it touches becomes its counterpart.
    """
    spelled = {template: _spelled(ours[template], theirs[other]) for template, other in pairs.items()}
    wanted = {
        family.names[0]: theirs[pairs[template]].names[0] if template in pairs else family.names[0]
        for template, family in ours.items()
    }
    todo = {ours[template].names[0] for template in pairs}
    candidates = dict.fromkeys(rule for old, new in spelled.values() for rule in _candidates(old, new))
    reach = {rule: found for rule in candidates if (found := _reach(rule, wanted))}
    while todo:
        best = max(reach, key=lambda rule: len(reach[rule] & todo), default=None)
        if best is None or not reach[best] & todo:
            return
        yield best
        todo -= reach[best]


def _spelled(mine: Family, yours: Family) -> tuple[list[str], list[str]]:
    """Segments of the two templates, or of the names themselves if the reference has a number that is not here."""
    old, new = mine.template.split("."), yours.template.split(".")
    numbers = Counter(part for part in new if part in PLACEHOLDERS) - Counter(part for part in old)
    return (mine.names[0].split("."), yours.names[0].split(".")) if numbers else (old, new)


def _candidates(old: list[str], new: list[str]) -> Iterator[RenameRule]:
    """Rules that would explain one pair, general ones first; ``fixed`` segments of the common end are written out."""
    head, tail = _common(old, new), _common(old[::-1], new[::-1])
    tail = min(tail, len(old) - 1, len(new) - 1)
    for fixed in range(max(tail, 1)):
        a, b = old[: len(old) - tail + fixed], new[: len(new) - tail + fixed]
        if tail and a and b and not (fixed and a[-1] in PLACEHOLDERS):
            yield RenameRule(".".join((*a, "{rest}")), ".".join((*b, "{rest}")))
    start = min(head, len(old) - tail, len(new) - tail)
    if tail and start and old[start - 1] not in PLACEHOLDERS:
        a, b = old[start - 1 : len(old) - tail + max(tail - 1, 0)], new[start - 1 : len(new) - tail + max(tail - 1, 0)]
        yield RenameRule(".".join(("{rest}", *a, "{x}")), ".".join(("{rest}", *b, "{x}")))
    if tail:
        yield RenameRule(".".join((*old[:-1], "{x}")), ".".join((*new[:-1], "{x}")))
    yield RenameRule(".".join(old), ".".join(new))


def _common(one: list[str], two: list[str]) -> int:
    """Number of equal segments at the start."""
    return next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def _reach(rule: RenameRule, wanted: Mapping[str, str]) -> set[str]:
    """Names that the rule changes, or nothing if it changes one to what it should not be."""
    source, target = compile_template(rule.source), compile_template(rule.target)
    found = set()
    for name, new in wanted.items():
        captures = source.match(name)
        if captures is None:
            continue
        if target.format(captures) != new:
            return set()
        found.add(name)
    return found
