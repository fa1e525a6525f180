"""The routed experts of a target in vLLM 0.33: one module a layer, loaded name by name or from stacked tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from convertkit.engines.model import Filled, Outcome, Parameter, Shape, Wrong
from convertkit.engines.quantized import Grid
from convertkit.engines.target_tables import Experts
from convertkit.engines.vllm_target_planes import EXPERTS, Plane
from convertkit.engines.vllm_target_shapes import Misfit, misfit_expert
from convertkit.engines.vllm_target_view import Number, Placed, View, named

GATE, UP, DOWN, GATE_UP_ALL, DOWN_ALL = range(5)
EXPERT_SHARES = ("gate_proj", "up_proj", "down_proj", "gate_up_proj", "down_proj")
TOUCHED = "touched"
"""Counts experts whose tensor is smaller than its place."""

Tally = dict[tuple[int, str], Counter[Number]]
"""By share and leaf: how many experts of each layer are filled."""


def follow_experts(view: View, row: Experts, mine: Sequence[Placed], grid: Grid, numbers: list[Number]) -> None:
    """Gate and up of all experts of a layer in one parameter, down in another; names that fit nothing are dropped
    without a word (``routed_experts.py:1060``)."""
    sizes = view.sizes
    hidden, width, count = sizes.words("H Ie E")
    planes = {plane.leaf: plane for plane in EXPERTS[grid]}
    shapes: dict[int, Shape] = {GATE: (width, hidden), UP: (width, hidden), DOWN: (hidden, width)}
    tally: Tally = {}
    for placed in mine:
        names, _ = placed.inside(numbers)
        if names and placed.share in (GATE_UP_ALL, DOWN_ALL):
            _stacked(view, placed, names, tally, (hidden, width, count), grid)
        elif names:
            _expert(view, row, placed, names, planes, shapes, tally, set(numbers))
    own = sizes.share(width, row.name)
    if grid != "dense":
        view.uncovered(row.name, own)
    for plane in planes.values():
        across = hidden // plane.divisor if plane.divisor else 0
        pairs = (count, 2 * own, across), (count, hidden, own // plane.divisor if plane.divisor else 0)
        rank_shapes = pairs if plane.divisor else ((count, 2), (count,))
        for stem, shares, shape in (("w13", (GATE, UP), rank_shapes[0]), ("w2", (DOWN,), rank_shapes[1])):
            _expert_outcomes(
                view, f"{row.name}.routed_experts.{stem}_{plane.leaf}", plane, shares, shape, tally, numbers
            )


def _expert(
    view: View, row: Experts, placed: Placed, names: Sequence[str], planes: dict[str, Plane],
    shapes: dict[int, Shape], tally: Tally, layers: set[Number],
) -> None:  # fmt: skip
    """One family of single experts."""
    share, plane = placed.share or 0, planes.get(placed.leaf)
    count = view.sizes.values.get("E", 0)
    stem = "w2" if share == DOWN else "w13"
    if plane is None and placed.leaf == "bias":
        view.settle(placed, None, skipped="unexpected bias")
        view.wrongs.append(
            Wrong("E_LOAD_DROPPED", f"{len(names)} unexpected biases are dropped", "vllm.bias", names[0])
        )
        return
    if plane is None:
        message = f"Layer {row.name} has no parameter '{stem}_{placed.leaf}' for checkpoint weight '{names[0]}'"
        view.refuse(message, "vllm.unknown-name", names[0])
        return
    view.settle(placed, f"{row.name}.routed_experts.{stem}_{plane.leaf}", EXPERT_SHARES[share].removesuffix("_proj"))
    beyond = [name for name, index in zip(placed.family.names, placed.family.indices, strict=True) if index[1] >= count]
    if beyond:
        message = f"{len(beyond)} tensors of experts that the config does not count ({count}) are dropped"
        view.wrongs.append(Wrong("E_LOAD_DROPPED", message, "vllm.experts-names", beyond[0]))
    rows, columns = shapes[share]
    view.strange_dtypes(names, plane.dtype)
    wanted: Shape = (rows, columns // plane.divisor) if plane.divisor else ()
    for shape, members in view.by_shape(names).items():
        kind: Misfit = misfit_expert(shape, wanted) if plane.divisor else "" if shape in ((), (1,)) else "no"
        if kind:
            view.fault(members, kind, wanted, "vllm.experts")
    short = {name for name in names if plane.divisor and misfit_expert(view.specs[name].shape, wanted) == "short"}
    pairs = zip(placed.family.names, placed.family.indices, strict=True)
    counted, touched = tally.setdefault((share, plane.leaf), Counter()), tally.setdefault((share, TOUCHED), Counter())
    for name, index in pairs:
        if index[1] < count and index[0] in layers:
            counted[index[0]] += name not in short
            touched[index[0]] += bool(short)


def _stacked(
    view: View, placed: Placed, names: Sequence[str], tally: Tally,
    size: tuple[int, int, int], grid: Grid,
) -> None:  # fmt: skip
    """All experts of a layer in one tensor, as transformers 5 saves them."""
    hidden, width, count = size
    if grid != "dense":
        view.refuse(
            f"'{names[0]}' is one tensor for all experts, which are built packed", "vllm.unknown-name", names[0]
        )
        return
    both = placed.share == GATE_UP_ALL
    wanted = (count, 2 * width, hidden) if both else (count, hidden, width)
    view.settle(placed, f"{placed.template.rpartition('.')[0]}.routed_experts.{'w13' if both else 'w2'}_weight")
    for shape, members in view.by_shape(names).items():
        kind = misfit_expert(shape, wanted)
        if kind:
            view.fault(members, kind, wanted, "vllm.experts")
    for name, number in zip(placed.family.names, placed.numbers(), strict=True):
        shape = view.specs[name].shape
        there = 0 if shape[1:] != wanted[1:] else min(shape[0], count)
        for share in (GATE, UP) if both else (DOWN,):
            tally.setdefault((share, "weight"), Counter())[number] += there


def _expert_outcomes(
    view: View, name: str, plane: Plane, shares: tuple[int, ...], shape: Shape,
    tally: Tally, numbers: Sequence[Number],
) -> None:  # fmt: skip
    count = view.sizes.values.get("E", 0)
    rule = "vllm.experts" if plane.rule == "vllm.linear" else plane.rule
    open_: list[str] = []
    partly: list[str] = []
    for number in numbers:
        found = sum(tally.get((share, plane.leaf), Counter())[number] for share in shares)
        some = found or any(tally.get((share, TOUCHED), Counter())[number] for share in shares)
        outcome: Outcome = "filled" if found >= count * len(shares) else "partly filled" if some else "unfilled"
        own = named(name, number)
        if outcome != "filled" and plane.unread:
            outcome = "defaulted"
        elif outcome != "filled":
            (open_ if outcome == "unfilled" else partly).append(own)
        parameter = Parameter(own, shape, plane.dtype, (), unread=plane.unread, rule=rule)
        view.outcomes.append(Filled(parameter, outcome, (), () if outcome == "filled" else (own,)))
    view.missing(open_, False, rule)
    view.missing(partly, False, rule, " in some experts")
