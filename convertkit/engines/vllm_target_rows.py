"""One row of a target in vLLM 0.33 against the stored families that belong to it: shapes, missing parts, parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convertkit.engines.model import Filled, Outcome, Parameter, Part, Refused, Shape, Wrong, stop
from convertkit.engines.quantized import Grid
from convertkit.engines.target_tables import Experts, Module, Row, Single
from convertkit.engines.vllm_linear import padded_rows
from convertkit.engines.vllm_target_experts import follow_experts
from convertkit.engines.vllm_target_planes import LINEAR, Plane
from convertkit.engines.vllm_target_shapes import Misfit, misfit_linear, misfit_single
from convertkit.engines.vllm_target_view import CACHE, Number, Placed, View, named

Have = dict[tuple[int | None, str], set[Number]]
"""Share and leaf of stored tensors, and the layers that have them."""


def follow(view: View, row: Row, built: Mapping[Grid, list[Number]]) -> None:
    """Everything about one row; ``built`` are its layers by grid."""
    known = {number for numbers in built.values() for number in numbers}
    mine = view.placed.get(row.name, [])
    for placed in mine:
        _beyond(view, row, placed, known)
    for grid, numbers in built.items():
        if isinstance(row, Single):
            _single(view, row, mine, numbers)
        elif isinstance(row, Experts):
            follow_experts(view, row, mine, grid, numbers)
        else:
            _module(view, row, mine, grid, numbers)


def _beyond(view: View, row: Row, placed: Placed, known: set[Number]) -> None:
    """Layers that the model does not have, or that are of another kind."""
    names = [name for name, number in zip(placed.family.names, placed.numbers(), strict=True) if number not in known]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        view.refuse(f"There is no module or parameter for '{names[0]}'{more}", "vllm.unknown-name", names[0])


def _single(view: View, row: Single, mine: Sequence[Placed], numbers: Sequence[Number]) -> None:
    wanted = view.sizes.words(row.shape)
    have: dict[Number, str] = {}
    for placed in mine:
        view.settle(placed, placed.template)
        names, _ = placed.inside(numbers)
        view.strange_dtypes(names, row.dtype or "BF16")
        for shape, members in view.by_shape(names).items():
            kind = misfit_single(shape, wanted, row.fit)
            if kind:
                view.fault(members, kind, wanted, "vllm.linear")
        have |= dict(zip(placed.numbers(), placed.family.names, strict=True))
    rows = wanted[0]
    if row.fit == "vocabulary":
        own: Shape = (view.sizes.share(padded_rows(rows), row.name), *wanted[1:])
    else:
        own = (view.sizes.share(rows, row.name), *wanted[1:]) if row.fit == "rows" else wanted
    lost = [number for number in numbers if number not in have]
    for number in numbers:
        name = named(row.name, number)
        source = () if number in lost else (have[number],)
        parameter = Parameter(name, own, row.dtype or "BF16", (Part("", wanted),), rule="vllm.silent")
        view.outcomes.append(Filled(parameter, "filled" if source else "unfilled", source, () if source else (name,)))
    view.missing([named(row.name, number) for number in lost], row.noticed, "vllm.silent")


def _module(view: View, row: Module, mine: Sequence[Placed], grid: Grid, numbers: list[Number]) -> None:
    planes = {plane.leaf: plane for plane in LINEAR[grid]}
    if _biased(view, row):
        planes["bias"] = Plane("bias", "BF16", 1, "vllm.linear")
    own, columns = view.sizes.rank_rows(row), view.sizes.rank_columns(row)
    if grid.startswith("mo") and columns % 16:
        message = "Unsupported model when in features size is not multiple of 16"
        raise stop("create", message, "vllm.width", tensor=row.name)
    if grid != "dense":
        view.uncovered(row.name, columns)
    have: Have = {}
    for placed in mine:
        names, layers = placed.inside(numbers)
        if not names:
            continue
        plane = planes.get(placed.leaf)
        if plane is None:
            _no_plane(view, placed, names)
            continue
        view.strange_dtypes(names, plane.dtype)
        share = "" if placed.share is None else row.parts[placed.share][0].replace(" ", "")
        view.settle(placed, f"{row.name}.{plane.leaf}", share)
        for shape, members in view.by_shape(names).items():
            wanted = _stored_shape(view, row, placed.share, plane)
            kind = _misfit_plane(shape, wanted, row, plane)
            if kind:
                view.fault(members, kind, wanted, "vllm.linear")
        have.setdefault((placed.share, plane.leaf), set()).update(layers)
    for plane in planes.values():
        _plane_outcomes(view, row, plane, numbers, have, (own, columns))


def _biased(view: View, row: Module) -> bool:
    return row.bias == "always" or bool(row.bias and view.sizes.text.get(row.bias))


def _no_plane(view: View, placed: Placed, names: Sequence[str]) -> None:
    """A leaf that the module has not, built as it is."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    if placed.leaf == "bias":
        view.settle(placed, None, skipped="unexpected bias")
        view.wrongs.append(
            Wrong("E_LOAD_DROPPED", f"{len(names)} unexpected biases are dropped", "vllm.bias", names[0])
        )
    elif view.quantized and f".{placed.leaf}" in CACHE:
        view.settle(placed, None, skipped="a scale of the KV cache")
    else:
        message = f"There is no module or parameter for '{names[0]}'{more}: the engine does not build it so"
        view.refuse(message, "vllm.unknown-name", names[0])


def _stored_shape(view: View, row: Module, share: int | None, plane: Plane) -> Shape:
    rows = [view.sizes.words(words)[0] for _, _, words in row.parts]
    height = sum(rows) if share is None else rows[share]
    if plane.leaf == "bias":
        return (height,)
    return () if plane.divisor == 0 else (height, view.sizes.words(row.columns)[0] // plane.divisor)


def _misfit_plane(found: Shape, wanted: Shape, row: Module, plane: Plane) -> Misfit:
    if plane.divisor == 0:
        return "" if found in ((), (1,)) else "no"
    if plane.leaf == "bias" and row.split != "rows":
        return "" if found == wanted else "no"
    return misfit_linear(found, wanted, row.split, row.name.endswith(".conv1d"))


def _plane_outcomes(
    view: View, row: Module, plane: Plane, numbers: Sequence[Number], have: Have, size: tuple[int, int]
) -> None:
    """One parameter per layer, filled by all of its shares, some or none."""
    parts = tuple(Part(share, _stored_shape(view, row, place, plane)) for place, (share, _, _) in enumerate(row.parts))
    slots = sum(max(len(share.split()), 1) for share, _, _ in row.parts)
    shape: Shape = (slots,) if plane.divisor == 0 else (size[0], size[1] // plane.divisor)
    shape = (_bias_rows(view, row),) if plane.leaf == "bias" else shape
    if row.name.endswith(".conv1d"):
        shape = (shape[0], 1, *shape[1:])
    dtype = plane.dtype
    whole = have.get((None, plane.leaf), set())
    there = [have.get((place, plane.leaf), set()) | whole for place in range(len(row.parts))]
    open_: list[str] = []
    partly: list[str] = []
    for number in numbers:
        name = f"{named(row.name, number)}.{plane.leaf}"
        lost = tuple(row.parts[place][1] for place, layers in enumerate(there) if number not in layers)
        outcome: Outcome = "filled" if not lost else "unfilled" if len(lost) == len(parts) else "partly filled"
        if outcome != "filled" and plane.unread:
            outcome = "defaulted"
        elif outcome != "filled":
            (open_ if outcome == "unfilled" else partly).append(name)
        parameter = Parameter(name, shape, dtype, parts, plane.fresh, unread=plane.unread, rule=plane.rule)
        view.outcomes.append(Filled(parameter, outcome, (), lost))
    if plane.fresh == "refused later" and (open_ or partly):
        first = (open_ or partly)[0]
        message = f"NVFP4 weight_scale for {first.rpartition('.')[0]} was never loaded (still NaN)"
        view.refusals.append(Refused("process_weights_after_loading", message, "vllm.block-scale", first))
        return
    view.missing(open_, False, plane.rule)
    view.missing(partly, False, plane.rule, " in a share of it")


def _bias_rows(view: View, row: Module) -> int:
    whole = sum(view.sizes.words(words)[0] for _, _, words in row.parts)
    return view.sizes.rank_rows(row) if row.split == "rows" else whole
