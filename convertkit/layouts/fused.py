"""Fused groups: linears that engines join into one matrix and that must share one global scale.

A group is a row of sibling templates with the same captures, declared in the layout; ``--fuse`` adds rows.
vLLM 0.33 and SGLang 0.5.23 keep one global scale per fused matrix and serve the other parts wrong by the ratio.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from convertkit.errors import Finding, finding, refusal
from convertkit.layouts.layout import Layout
from convertkit.layouts.rules import PLACEHOLDERS, Pattern, compile_template, natural_key, near

Group = tuple[str, ...]


def parse_fuse(text: str) -> Group:
    """A ``--fuse`` value, ``a.{i}.to_q,a.{i}.to_k``, as a group. Raises E_PATTERN if it is not one."""
    members = tuple(part.strip() for part in text.split(","))
    keys = {tuple(sorted(compile_template(member).keys)) for member in members}
    if len(members) < 2 or len(set(members)) < len(members):
        raise refusal("E_PATTERN", f"a fused group needs at least two different names, got '{text}'")
    if len(keys) > 1:
        raise refusal("E_PATTERN", f"the names of a fused group must have the same placeholders: '{text}'")
    if any(member.split(".")[-1] in PLACEHOLDERS for member in members):
        raise refusal("E_PATTERN", f"the last segment of a fused name must be literal: '{text}'")
    return members


def user_groups(texts: Iterable[str]) -> tuple[Group, ...]:
    """``--fuse`` values as groups, each also under a leading ``model.``, which users may leave out."""
    plain = [parse_fuse(text) for text in texts]
    return tuple(variant for group in plain for variant in (group, tuple(f"model.{member}" for member in group)))


def idle_members(groups: Sequence[Group], modules: Iterable[str]) -> tuple[Finding, ...]:
    """E_PATTERN_EMPTY for each of ``user_groups`` with a name that no module has: a group of which one name is
    misspelled would tie the others without it."""
    names, plain = list(modules), [group for group in groups if not _is_variant(group, groups)]
    found = []
    for group in plain:
        idle = [member for member in group if not _means_any((member, f"model.{member}"), names)]
        if idle:
            message = f"in the fused group '{','.join(group)}' {', '.join(idle)} matches no linear layer"
            found.append(finding("E_PATTERN_EMPTY", "error", message, fix=near(names)))
    return tuple(found)


def _is_variant(group: Group, groups: Sequence[Group]) -> bool:
    """Whether this is another group of these under a leading ``model.``."""
    stripped = tuple(member.removeprefix("model.") for member in group)
    return stripped != group and stripped in groups


def _means_any(members: Iterable[str], names: Sequence[str]) -> bool:
    patterns = [compile_template(member) for member in members]
    return any(pattern.match(name) is not None for pattern in patterns for name in names)


_PARTS = {"q": "q", "k": "k", "v": "v", "query": "q", "key": "k", "value": "v"}


def lookalikes(alone: Iterable[str]) -> tuple[Group, ...]:
    """Siblings of no group that are called alike but for q, k and v, such as ``add_q_proj``, ``add_k_proj`` and
    ``add_v_proj``: three linears of one input, which an engine may well fuse."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for module in alone:
        parent, _, leaf = module.rpartition(".")
        words = leaf.split("_")
        hits = [place for place, word in enumerate(words) if word in _PARTS]
        if len(hits) == 1:
            key = (parent, *words[: hits[0]], "", *words[hits[0] + 1 :])
            rows.setdefault(key, {})[_PARTS[words[hits[0]]]] = module
    return tuple((row["q"], row["k"], row["v"]) for row in rows.values() if len(row) == len("qkv"))


def fused_groups(modules: Iterable[str], layout: Layout, extra: Sequence[Group] = ()) -> dict[str, tuple[str, ...]]:
    """All modules in groups, each in exactly one: a module that is fused with nothing is a group of one.

    Keys are the first member in group order; groups and members come in natural order of names.
    Groups that share a module, by ``extra``, are joined.
    """
    by_leaf = _by_leaf((*extra, *layout.fused))
    hits = {module: _hits(module, by_leaf) or [(module, 0)] for module in sorted(modules, key=natural_key)}
    lead: dict[str, str] = {}
    for found in hits.values():
        roots = sorted({_root(lead, name) for name, _ in found})
        for root in roots:
            lead[root] = roots[0]
    members: dict[str, list[str]] = {}
    for module, found in hits.items():
        members.setdefault(_root(lead, found[0][0]), []).append(module)
    ordered = [sorted(group, key=lambda module: hits[module][0][1]) for group in members.values()]
    return {group[0]: tuple(group) for group in ordered}


def _root(lead: Mapping[str, str], name: str) -> str:
    while lead.get(name, name) != name:
        name = lead[name]
    return name


def _by_leaf(groups: Iterable[Group]) -> dict[str, list[tuple[Pattern, Pattern, int]]]:
    """Groups by the last segment of a member: (member, first member, position)."""
    table: dict[str, list[tuple[Pattern, Pattern, int]]] = {}
    for group in groups:
        first = compile_template(group[0])
        for position, member in enumerate(group):
            pattern = compile_template(member)
            table.setdefault(pattern.segments[-1], []).append((pattern, first, position))
    return table


def _hits(module: str, by_leaf: Mapping[str, list[tuple[Pattern, Pattern, int]]]) -> list[tuple[str, int]]:
    """(name of the first member, position) of every group that has the module."""
    found: list[tuple[str, int]] = []
    for pattern, first, position in by_leaf.get(module.rpartition(".")[2], ()):
        captures = pattern.match(module)
        if captures is not None:
            found.append((first.format(captures), position))
    return found
