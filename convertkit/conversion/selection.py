"""Which linears a pack makes: candidates, the layout's default policy, the user's patterns, fused groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from convertkit.checkpoint import Checkpoint, TensorRef
from convertkit.dialects.spelling import GROUP
from convertkit.dtypes import FLOATS
from convertkit.errors import Finding, finding, raise_all, refusal
from convertkit.layouts.fused import Group, fused_groups, idle_members, lookalikes
from convertkit.layouts.layout import Layout
from convertkit.layouts.rules import families, module_of, select, template_of


@dataclass(frozen=True)
class Chosen:
    """The groups to pack, in natural order: each a tuple of modules that share one global scale.

    ``bundles`` maps every module of the source to the lead of its fused group; ``matches`` counts what each
    pattern matched; ``left`` are candidate linears that stay dense.
    """

    groups: tuple[tuple[str, ...], ...]
    weights: Mapping[str, TensorRef]
    bundles: Mapping[str, str]
    left: tuple[str, ...]
    matches: Mapping[str, int]


def _candidate_linears(source: Checkpoint) -> dict[str, TensorRef]:
    """Modules with a dense float matrix called ``weight``, in the source's order."""
    return {
        name.removesuffix(".weight"): ref
        for name, ref in source.tensors.items()
        if name.endswith(".weight") and ref.spec.dtype in FLOATS and len(ref.spec.shape) == 2
    }


def bundles_of(source: Checkpoint, layout: Layout, extra: Sequence[Group] = ()) -> dict[str, str]:
    """Each module that owns a tensor, to the lead of its fused group (itself if it is in none)."""
    modules = {module_of(name): None for name in source.tensors}
    return {member: lead for lead, members in fused_groups(modules, layout, extra).items() for member in members}


def choose(
    source: Checkpoint, layout: Layout, include: Sequence[str], exclude: Sequence[str], fuse: Sequence[Group] = ()
) -> Chosen:
    """Apply policy and patterns. Raises ``ConvertError`` with every fault of the selection at once.

    Codes: E_POLICY_UNKNOWN, E_PATTERN, E_PATTERN_EMPTY, E_FUSED_SPLIT, E_WIDTH, E_WEIGHT_DTYPE.
    """
    candidates = _candidate_linears(source)
    raise_all(idle_members(fuse, candidates))
    default = [module for module in candidates if layout.role_of(f"{module}.weight") in layout.packed_roles]
    if not default and not include:
        raise _no_policy(layout, candidates)
    picked = select(list(candidates), default, include, exclude)
    if not picked.modules:
        raise refusal("E_PATTERN_EMPTY", "the patterns leave no linear to pack", fix="loosen --exclude")
    groups = fused_groups(candidates, layout, fuse)
    chosen = set(picked.modules)
    taken = tuple(members for members in groups.values() if chosen.intersection(members))
    raise_all(
        [
            *_split_faults(taken, chosen),
            *_weight_faults(candidates[module] for members in taken for module in members if module in chosen),
            *_mixed_faults(taken, candidates),
        ]
    )
    bundles = bundles_of(source, layout, fuse)
    left = tuple(module for module in candidates if module not in chosen)
    weights = {module: candidates[module] for members in taken for module in members}
    return Chosen(taken, weights, bundles, left, {**picked.included, **picked.excluded})


def untied_findings(groups: Iterable[Sequence[str]]) -> Iterable[Finding]:
    """W_UNTIED for each kind of siblings that no group of these joins, although they are called like q, k and v."""
    rows = {row[0]: row for row in lookalikes(members[0] for members in groups if len(members) == 1)}
    for family in families(rows).values():
        first, count = rows[family.names[0]], len(family.names)
        templates = ",".join(template_of(module)[0] for module in first)
        yield finding(
            "W_UNTIED", "warning",
            f"{', '.join(first)} look like parts of one matrix and get a global scale each"
            + (f"; likewise in {count - 1:,} more" if count > 1 else ""),
            tensor=f"{first[0]}.weight", fix=f"if an engine fuses them: --fuse '{templates}'",
            data={"groups": [list(rows[name]) for name in family.names[:20]]},
        )  # fmt: skip


def _no_policy(layout: Layout, candidates: Mapping[str, TensorRef]) -> Exception:
    names = list(families(candidates))
    if not names:
        return refusal("E_POLICY_UNKNOWN", "the source has no dense linear layer", fix="nothing can be packed here")
    shown_names = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    return refusal(
        "E_POLICY_UNKNOWN",
        f"no default choice of linears is known for the layout '{layout.name}'",
        fix=f"choose with --include among: {shown_names}",
        data={"candidates": names},
    )


def _split_faults(groups: Iterable[tuple[str, ...]], chosen: set[str]) -> Iterable[Finding]:
    """One finding for all layers in which the same parts of a fused group would stay dense."""
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[tuple[str, ...]]] = {}
    for members in groups:
        outside = tuple(module.rpartition(".")[2] for module in members if module not in chosen)
        if outside:
            alike.setdefault((tuple(module.rpartition(".")[2] for module in members), outside), []).append(members)
    for (_, outside), same in alike.items():
        first, more = same[0], len(same) - 1
        stay = next(module for module in first if module not in chosen)
        yield finding(
            "E_FUSED_SPLIT",
            "error",
            f"engines fuse {', '.join(first)}; {', '.join(outside)} would stay dense"
            + (f"; likewise in {more:,} more" if more else ""),
            tensor=f"{stay}.weight",
            fix="select all parts of a fused layer, or none",
            data={"groups": [members[0] for members in same]},
        )


def _weight_faults(refs: Iterable[TensorRef]) -> Iterable[Finding]:
    for ref in refs:
        rows, width = ref.spec.shape
        if width % GROUP or not rows or not width:
            yield finding(
                "E_WIDTH",
                "error",
                f"shape [{rows}, {width}]: the input width is not a positive multiple of {GROUP}",
                file=ref.file,
                tensor=ref.spec.name,
                fix=f"leave it out: --exclude {ref.spec.name.removesuffix('.weight')}",
            )


def _mixed_faults(groups: Iterable[tuple[str, ...]], weights: Mapping[str, TensorRef]) -> Iterable[Finding]:
    for members in groups:
        dtypes = sorted({weights[module].spec.dtype for module in members})
        if len(dtypes) > 1:
            yield finding(
                "E_WEIGHT_DTYPE",
                "error",
                f"the parts of a fused layer have different dtypes: {', '.join(dtypes)}",
                tensor=f"{members[0]}.weight",
                fix="store all parts in one dtype first",
            )
